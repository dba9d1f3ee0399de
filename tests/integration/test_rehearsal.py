"""`pytest --gpucluster` in an empty folder, on a machine without GPUs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pytest_gpucluster
from tests.detection.run import Outcome

Runner = Callable[..., Outcome]


def test_rehearsal_passes_and_accepts_nothing(gpucluster: Runner, tmp_path: Path) -> None:
    run = gpucluster("--gpucluster-rehearse")
    assert run.exit_code == 0, run.output
    assert run.verdict["verdict"] == "rehearsed"
    assert run.verdict["mode"] == "rehearsal"
    assert "accepted" not in run.verdict["counts"]
    report = tmp_path / "gpucluster-report"
    assert {path.name for path in report.iterdir()} >= {
        "verdict.json",
        "report.html",
        "facts",
        "measurements.jsonl",
        "ranks",
    }
    lines = (report / "measurements.jsonl").read_text().splitlines()
    assert {json.loads(line)["name"] for line in lines} >= {"all_reduce busbw 16 MiB"}
    assert "rehears" in (report / "report.html").read_text().lower()


def test_without_a_gpu_the_node_is_rejected_with_one_finding(gpucluster: Runner) -> None:
    run = gpucluster()
    assert run.exit_code == 1
    assert run.verdict["verdict"] == "rejected"
    (finding,) = run.findings
    assert finding["code"] == "gpu.missing"
    assert "no NVIDIA GPU" in finding["message"]
    assert "no NVIDIA GPU" in run.output
    assert finding["next_step"]


def test_ids_are_the_same_from_a_subfolder_and_beside_own_tests(
    gpucluster: Runner, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\npython_functions = it_*\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/test_own.py").write_text("def it_passes(process_group): pass\n")
    run = gpucluster("--collect-only", "-q", folder=tmp_path / "sub", configured=True)
    assert run.exit_code == 0, run.output
    ids = run.output.splitlines()
    assert "gpucluster/test_nvlink.py::test_links_up" in ids
    assert any(line.endswith("test_own.py::it_passes") for line in ids)
    assert run.verdict == {}


def test_under_xdist_the_verdict_is_the_same(gpucluster: Runner) -> None:
    run = gpucluster("--gpucluster-rehearse", "-n", "2", plugins=True)
    assert run.exit_code == 0, run.output
    assert run.verdict["verdict"] == "rehearsed"
    assert len(run.verdict["measurements"]) >= 2


def test_own_failing_test_rejects(gpucluster: Runner, tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_mine(): assert 1 == 2\n")
    run = gpucluster("--gpucluster-rehearse", "--gpucluster-level=inventory")
    assert run.exit_code == 1
    assert run.verdict["verdict"] == "rejected"
    (finding,) = run.findings
    assert finding["check"] == "test_own.py::test_mine"
    assert "1 == 2" in finding["message"]


@pytest.mark.parametrize(
    ("selection", "exit_code"),
    [
        (["-k", "not test_python"], 8),
        (["--deselect=gpucluster/test_software.py::test_python"], 8),
        (["gpucluster/test_software.py::test_torch"], 8),
        (["-k", "no_such_check"], 5),
    ],
)
def test_a_selection_never_passes_for_the_whole(
    gpucluster: Runner, selection: list[str], exit_code: int
) -> None:
    run = gpucluster("--gpucluster-rehearse", "--gpucluster-level=inventory", *selection)
    assert run.exit_code == exit_code, run.output
    assert run.verdict["verdict"] == "unverified"
    assert any("test_python" in entry["check"] for entry in run.unverified)


def test_last_failed_reruns_the_id_the_report_prints(gpucluster: Runner, tmp_path: Path) -> None:
    cache = ["-o", f"cache_dir={tmp_path}/cache", "-p", "cacheprovider"]
    gpucluster(*cache)
    run = gpucluster(*cache, "--lf")
    assert "gpucluster/test_gpus.py" in run.output
    assert "1 failed" in run.output
    assert "passed" not in run.output.splitlines()[-1]


def test_the_summary_appears_in_pytest_html_and_junit(gpucluster: Runner, tmp_path: Path) -> None:
    run = gpucluster(
        "--gpucluster-rehearse",
        f"--html={tmp_path}/out.html",
        "--self-contained-html",
        f"--junitxml={tmp_path}/out.xml",
        plugins=True,
    )
    assert run.exit_code == 0, run.output
    page = (tmp_path / "out.html").read_text()
    for word in ("rehearsed", "Node", "Measured", "Expected"):
        assert word in page
    junit = (tmp_path / "out.xml").read_text()
    assert "all_reduce busbw 16 MiB" in junit
    assert 'classname="gpucluster.test_ddp"' in junit


@pytest.mark.parametrize("where", ["project", "elsewhere"])
def test_the_checks_are_found_wherever_the_package_lies(
    gpucluster: Runner, tmp_path: Path, where: str
) -> None:
    """Below the folder that is collected, and below a conftest.py of somebody else's."""
    installed = tmp_path / "project/site"
    shutil.copytree(Path(pytest_gpucluster.__file__).parent, installed / "pytest_gpucluster")
    (tmp_path / "elsewhere").mkdir()
    if where == "elsewhere":
        (tmp_path / "project/conftest.py").write_text("raise SystemError('not mine')\n")
    run = gpucluster(
        "--gpucluster-rehearse",
        "--gpucluster-level=inventory",
        folder=tmp_path / where,
        environment={"PYTHONPATH": str(installed)},
    )
    assert run.exit_code == 0, run.output
    assert run.verdict["verdict"] == "rehearsed"


def test_an_id_that_names_nothing_is_a_usage_error(gpucluster: Runner) -> None:
    run = gpucluster("--gpucluster-rehearse", "gpucluster/test_no_such.py::test_thing")
    assert run.exit_code == 4
    assert "gpucluster/test_no_such.py::test_thing: no such built-in check" in run.output


def test_a_users_test_may_not_bear_a_built_in_id(gpucluster: Runner, tmp_path: Path) -> None:
    (tmp_path / "gpucluster").mkdir()
    (tmp_path / "gpucluster/test_nvlink.py").write_text("def test_links_up(): pass\n")
    run = gpucluster("--gpucluster-rehearse")
    assert run.exit_code == 4
    assert "Rename the folder" in run.output
