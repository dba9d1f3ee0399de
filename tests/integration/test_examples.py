"""The examples are what they say: they run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.detection.run import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_examples_run_in_a_rehearsal(gpucluster: Callable[..., Outcome], tmp_path: Path) -> None:
    for path in EXAMPLES.glob("test_*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "conftest.py").write_text(
        'pytest_plugins = ["pytester", "pytest_gpucluster.testing.plugin"]'
    )
    run = gpucluster("--gpucluster-rehearse", "--gpucluster-level=inventory")
    assert run.exit_code == 0, run.output
    assert len(list(EXAMPLES.glob("test_*.py"))) == 5
    outcomes = {c["check"]: c["outcome"] for c in run.verdict["nodes"][0]["checks"]}
    assert outcomes["test_training_step.py::test_training_step"] == "passed"
    for size in (2, 4):
        name = f"test_collectives.py::test_sum_of_ranks[ranks={size}]"
        assert outcomes[name] == "passed"
    assert outcomes["test_own_check.py::test_the_check_names_the_faulty_rank[kill]"] == "passed"
    assert outcomes["test_site_rules.py::test_cool_at_idle"] == "skipped"
    assert outcomes["test_gated_on_hardware.py::test_gather_over_nvlink"] == "skipped"


def test_the_example_profile_judges_a_node(
    on_machine: Callable[..., Outcome],
) -> None:
    run = on_machine("h100x8", f"--gpucluster-profile={EXAMPLES}/site-h100.toml")
    assert run.exit_code == 1  # the fake machine has no InfiniBand
    assert {finding["code"] for finding in run.findings} >= {"nic.missing"}
