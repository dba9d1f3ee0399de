"""Ways in which a node could be accepted without having been checked, each tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.facts.model import Gpu, NodeFacts, to_json
from pytest_gpucluster.testing.machines import fault
from tests.detection.run import Outcome, healthy_facts

Runner = Callable[..., Outcome]
USAGE_ERROR = 4


@pytest.fixture
def judged(gpucluster: Runner, libraries: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Judge the facts of a healthy machine after a change."""

    def run(change: Callable[[NodeFacts], NodeFacts], *arguments: str, machine: str = "h100x8"):  # type: ignore[no-untyped-def]
        path = tmp_path / "facts.json"
        path.write_bytes(to_json(change(healthy_facts(libraries, machine))))
        level = "--gpucluster-level=inventory"
        return gpucluster(f"--gpucluster-evidence={path}", level, *arguments)

    return run


def of_gpu(index: int, **values: Any) -> Callable[[NodeFacts], NodeFacts]:
    def change(facts: NodeFacts) -> NodeFacts:
        gpus = tuple(replace(g, **values) if g.index == index else g for g in facts.gpus or ())
        return replace(facts, gpus=gpus)

    return change


def test_a_conftest_may_not_replace_a_fixture(on_machine: Runner, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef node_gpus(node_facts): return node_facts.gpus[:2]\n"
    )
    run = on_machine("h100x8", overlay=fault("remap_failure"))
    assert run.exit_code == USAGE_ERROR
    assert "node_gpus is replaced by conftest" in run.output


def test_the_judge_may_not_be_switched_off(on_machine: Runner) -> None:
    run = on_machine("h100x8", "-p", "no:gpucluster-session")
    assert run.exit_code == USAGE_ERROR


@pytest.mark.parametrize("visible", ["0,1,99,3,4,5,6,7", "0,0,0,0,0,0,0,0", "-1", ""])
def test_hidden_gpus_are_noticed(
    gpucluster: Runner, libraries: Path, tmp_path: Path, visible: str
) -> None:
    from tests.detection.run import fake_environment

    fake = fake_environment(tmp_path, libraries, "h100x8")
    environment = {**fake, "CUDA_VISIBLE_DEVICES": visible}
    run = gpucluster("--gpucluster-level=inventory", environment=environment)
    assert run.exit_code == 8, run.output


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetRemappedRows", "nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode"]
)
def test_a_driver_that_lacks_an_old_call_is_not_trusted(on_machine: Runner, call: str) -> None:
    run = on_machine("h100x8", overlay=f"gpu.*.error.{call} 13")
    assert run.exit_code == 8, run.output


@pytest.mark.parametrize(
    "silent",
    [{"remapped_rows": None}, {"recovery_action": None}, {"compute_mode": None}, {"ecc": None}],
    ids=str,
)
def test_a_gpu_that_does_not_tell_what_the_others_do_is_unverified(
    judged: Callable[..., Outcome], silent: dict[str, None]
) -> None:
    run = judged(of_gpu(2, **silent))
    assert run.exit_code == 8, run.output
    assert "GPU2" in run.output


def test_rows_that_no_gpu_tells_are_unverified(judged: Callable[..., Outcome]) -> None:
    def forget(facts: NodeFacts) -> NodeFacts:
        gpus: tuple[Gpu, ...] = tuple(replace(g, remapped_rows=None) for g in facts.gpus or ())
        return replace(facts, gpus=gpus)

    assert judged(forget).exit_code == 8


@pytest.mark.parametrize("nvlink", ["unknown", None])
def test_pairs_that_could_not_be_read_are_unverified(
    judged: Callable[..., Outcome], nvlink: Any
) -> None:
    def change(facts: NodeFacts) -> NodeFacts:
        pairs = tuple(replace(p, nvlink=nvlink) for p in facts.pairs or ()) if nvlink else ()
        return replace(facts, pairs=pairs)

    assert judged(change).exit_code == 8


def test_nothing_runs_for_saved_facts_and_that_is_said(
    judged: Callable[..., Outcome],
) -> None:
    run = judged(lambda facts: facts, "--gpucluster-level=standard")
    assert run.exit_code == 8
    assert "nothing is run" in run.output
    assert any("taken" in remark for remark in run.verdict["remarks"])


def test_a_rehearsal_on_one_rank_rehearses_nothing(gpucluster: Runner) -> None:
    run = gpucluster("--gpucluster-rehearse", "--gpucluster-ranks=1")
    assert run.exit_code == 8


@pytest.mark.parametrize(
    "text",
    ["[network]\nrequired = false\n", "[fabric]\ncompleted = false\n"],
)
def test_false_in_a_profile_is_no_demand(on_machine: Runner, tmp_path: Path, text: str) -> None:
    (tmp_path / "site.toml").write_text(text)
    run = on_machine("h100x8", "--gpucluster-profile=site.toml")
    assert run.exit_code == 0, run.output


def test_cards_without_a_bridge_are_no_fault(on_machine: Runner) -> None:
    """Four cards, one bridge."""
    bridged = "gpus 4\ngpu.2.link.*.active 0\ngpu.3.link.*.active 0"
    run = on_machine("rtx3090x2", overlay=bridged)
    assert not [f for f in run.findings if f["code"].startswith("nvlink.")], run.output
