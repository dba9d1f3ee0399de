"""Faults for proving checks: what is asked for must exist, and nothing else may happen."""

from __future__ import annotations

import pytest
import torch  # noqa: F401 - torch can be imported once per process, so not inside pytester

from pytest_gpucluster.testing import faults
from pytest_gpucluster.testing.faults import FAULTS, VARIABLE

PLUGIN = ("-p", "pytest_gpucluster.testing.faults")


@pytest.mark.parametrize(
    "wanted",
    [
        None,
        "",
        "corrupt_all_reduce",
        "corrupt_all_reduce:",
        "corrupt_all_reduce:one",
        "fire:1",
        "corrupt_all_reduce:-1",
    ],
)
def test_a_fault_that_does_not_exist_is_a_usage_error(
    wanted: str | None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wanted is not None:
        monkeypatch.setenv(VARIABLE, wanted)
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess(*PLUGIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    error = result.stderr.str()
    assert f"{VARIABLE}={wanted!r}" in error
    assert "expected FAULT:RANK or FAULT:RANK:TEST with a rank number" in error
    for fault in FAULTS:
        assert fault in error


@pytest.mark.parametrize("rank", ["0", "7", "all"])
def test_a_session_that_is_no_rank_is_left_alone(
    rank: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"wrong_product:{rank}")
    pytester.makepyfile(
        """
        import torch

        def test_product():
            assert (torch.eye(4) @ torch.eye(4)).equal(torch.eye(4))
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_the_leader_can_be_chosen_and_is_healthy_again_between_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "wrong_product:leader")
    pytester.makepyfile(
        """
        import pytest, torch

        def right():
            return bool((torch.eye(4) @ torch.eye(4)).equal(torch.eye(4)))

        @pytest.fixture
        def before_and_after():
            assert right()
            yield
            assert right()

        def test_product(before_and_after):
            assert not right()
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_every_fault_says_what_it_does_under_its_own_name() -> None:
    for name, fault in FAULTS.items():
        assert fault.__name__ == name
        assert fault.__doc__
    public = {name for name, value in vars(faults).items() if value in FAULTS.values()}
    assert public == set(FAULTS)
