"""The built-in checks: their ids, their levels, and what their docstrings owe a reader."""

from __future__ import annotations

import importlib
import re
from itertools import pairwise

import pytest

from pytest_gpucluster import collection
from pytest_gpucluster.collection import is_builtin, level_by_check, required_checks
from pytest_gpucluster.options import LEVELS, Setting, Settings, defaults

# One check of each file and the level at which it starts to run.
LEVEL_OF = {
    "gpucluster/test_collectives.py::test_all_reduce_values": "standard",
    "gpucluster/test_compute.py::test_matrix_products": "extended",
    "gpucluster/test_ddp.py::test_gradients_equal_across_ranks": "standard",
    "gpucluster/test_environment.py::test_shared_memory": "inventory",
    "gpucluster/test_gpu_state.py::test_mig_off": "inventory",
    "gpucluster/test_gpus.py::test_present": "inventory",
    "gpucluster/test_kernel_log.py::test_no_xid": "inventory",
    "gpucluster/test_memory_errors.py::test_ecc_mode": "inventory",
    "gpucluster/test_network.py::test_ports": "inventory",
    "gpucluster/test_nvlink.py::test_links_up": "inventory",
    "gpucluster/test_p2p.py::test_peer_access": "inventory",
    "gpucluster/test_pairs.py::test_pair_bandwidth": "extended",
    "gpucluster/test_pcie.py::test_width": "inventory",
    "gpucluster/test_soak.py::test_sustained_load": "soak",
    "gpucluster/test_software.py::test_driver": "inventory",
    "gpucluster/test_storage.py::test_write_and_read": "extended",
}


def at_level(level: str) -> Settings:
    return Settings({**defaults().by_name, "level": Setting(level, "option")})


def run_of(check: str) -> object:
    file, _, function = check.removeprefix("gpucluster/").partition("::")
    module = importlib.import_module(f"pytest_gpucluster.checks.{file.removesuffix('.py')}")
    return getattr(module, function)


def test_every_check_file_is_known_and_has_a_check() -> None:
    files = {check.partition("::")[0] for check in level_by_check()}
    assert files == {f"gpucluster/{path.name}" for path in collection.check_files()}
    assert files == {check.partition("::")[0] for check in LEVEL_OF}


@pytest.mark.parametrize("check", LEVEL_OF)
def test_the_level_read_from_the_source_is_the_checks(check: str) -> None:
    assert level_by_check()[check] == LEVEL_OF[check]


def test_every_level_named_in_a_check_exists() -> None:
    assert set(level_by_check().values()) == set(LEVELS)


def test_what_is_read_from_the_sources_is_what_pytest_collects(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(
        "--gpucluster", "--gpucluster-level=soak", "--collect-only", "-q"
    )
    collected = {line for line in result.outlines if line.startswith("gpucluster/")}
    assert collected == set(level_by_check())


@pytest.mark.parametrize("level", LEVELS)
def test_pytest_deselects_what_lies_above_the_level(level: str, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(
        "--gpucluster", f"--gpucluster-level={level}", "--collect-only", "-q"
    )
    collected = [line for line in result.outlines if line.startswith("gpucluster/")]
    assert sorted(collected) == sorted(required_checks(at_level(level)))


def test_a_higher_level_asks_for_all_that_a_lower_one_asks_for() -> None:
    required = [set(required_checks(at_level(level))) for level in LEVELS]
    assert all(low < high for low, high in pairwise(required))
    assert required[-1] == set(level_by_check())


def test_a_check_that_is_named_runs_whatever_its_level(pytester: pytest.Pytester) -> None:
    check = "gpucluster/test_soak.py::test_sustained_load"
    result = pytester.runpytest_inprocess(
        "--gpucluster", "--gpucluster-level=inventory", "--collect-only", "-q", check
    )
    assert [line for line in result.outlines if "::" in line] == [check]


def test_built_in_checks_stand_beside_the_users_tests(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\npython_functions = check_*\npython_classes = Check*")
    pytester.makepyfile(test_site="def check_rack(): pass\ndef test_not_mine(): pass")
    result = pytester.runpytest_inprocess("--gpucluster", "--collect-only", "-q")
    lines = [line for line in result.outlines if "::" in line]
    assert "gpucluster/test_gpus.py::test_present" in lines
    assert [line for line in lines if not is_builtin(line)] == ["test_site.py::check_rack"]


def test_without_the_option_no_check_is_collected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_site="def test_rack(): pass")
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    assert [line for line in result.outlines if "::" in line] == ["test_site.py::test_rack"]


def test_the_ids_of_checks_and_of_users_tests_are_told_apart() -> None:
    assert is_builtin("gpucluster/test_gpus.py::test_present")
    assert not is_builtin("tests/gpucluster/test_gpus.py::test_present")
    assert not is_builtin("test_gpucluster.py::test_present")


@pytest.mark.parametrize("check", level_by_check())
def test_a_check_says_what_it_verifies_needs_and_what_to_do(check: str) -> None:
    text = run_of(check).__doc__
    assert text, "no docstring"
    summary, _, rest = text.partition("\n")
    assert summary.endswith(".")
    assert len(summary.split()) >= 4
    rest = " ".join(rest.split())
    assert re.search(r"\bNeeds: \S", rest)
    assert re.search(r"\b(?:Threshold|When it (?:fails|warns|is unverified)): \S", rest)
