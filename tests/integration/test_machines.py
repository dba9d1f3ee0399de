"""Whole acceptances of fake machines: healthy ones, and what the verdict says of broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gpucluster.testing.machines import fault
from pytest_gpucluster.verdict.validate import validate
from tests.detection.cases import HEALTHY_MACHINES
from tests.detection.run import Outcome

Runner = Callable[..., Outcome]


@pytest.mark.parametrize("machine", HEALTHY_MACHINES)
def test_a_healthy_machine_is_accepted_without_a_word(on_machine: Runner, machine: str) -> None:
    run = on_machine(machine)
    assert run.verdict["verdict"] == "accepted", run.output
    assert run.exit_code == 0
    assert run.findings == []
    assert run.unverified == []


@pytest.mark.parametrize(
    ("machine", "profile"),
    [
        ("a100x8", "hgx-a100"),
        ("h100x8", "hgx-h100"),
        ("h200x8", "hgx-h200"),
        ("b200x8", "hgx-b200"),
        ("gb200x4", "gb200-tray"),
        ("l40sx8", "l40s-pcie"),
    ],
)
def test_a_healthy_machine_meets_its_built_in_profile(
    on_machine: Runner, machine: str, profile: str
) -> None:
    run = on_machine(machine, f"--gpucluster-profile={profile}")
    assert run.verdict["verdict"] == "accepted", run.output
    assert run.verdict["profile"] == {"name": profile, "source": "option"}


def test_links_down_blame_the_gpu_once(on_machine: Runner, tmp_path: Path) -> None:
    run = on_machine("h100x8", overlay=fault("links_down"))
    assert run.exit_code == 1
    (finding,) = run.findings
    assert (finding["code"], finding["component"]) == ("nvlink.links_down", "GPU2")
    assert (finding["measured"], finding["expected"]) == (0, 18)
    assert "look at GPU2" in finding["message"]
    validate((tmp_path / "gpucluster-report/verdict.json").read_bytes())


def test_the_wrong_machine_for_a_profile_is_rejected(on_machine: Runner) -> None:
    run = on_machine("h100x8", "--gpucluster-profile=hgx-h200")
    assert run.exit_code == 1
    assert {f["code"] for f in run.findings} >= {"gpu.wrong_model", "memory.size"}


def test_a_driver_that_hangs_ends_in_time_and_is_never_accepted(on_machine: Runner) -> None:
    run = on_machine("h100x8", overlay=fault("hung_call"))
    assert run.verdict["verdict"] in ("rejected", "unverified")
    assert run.exit_code in (1, 8)
    assert run.verdict["duration_s"] < 30
    assert "did not answer in 20 s" in run.output
    assert "nvmlDeviceGetTemperature" in run.output


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ("driver_mismatch", ("error 18", "different versions", "reboot")),
        ("not_loaded", ("error 9", "not loaded")),
        ("gpu_lost", ("GPU2", "fallen off the bus")),
        ("unknown_gpu", ("NVIDIA X9000", "catalogue", "profile")),
    ],
)
def test_a_broken_driver_says_what_and_what_next(
    on_machine: Runner, overlay: str, words: tuple[str, ...]
) -> None:
    run = on_machine("h100x8", overlay=fault(overlay))
    assert run.exit_code in (1, 8)
    for word in words:
        assert word in run.output


def test_a_standard_run_without_working_nccl_is_not_accepted(on_machine: Runner) -> None:
    """The fake torch cannot compute: ranks do not start, and nothing is taken for a pass."""
    run = on_machine("h100x8", level="standard")
    assert run.exit_code != 0
    assert run.verdict.get("verdict") not in ("accepted", "accepted_with_warnings")


def test_a_required_check_that_is_left_out_is_unverified(on_machine: Runner) -> None:
    run = on_machine("h100x8", "-k", "not test_links_up")
    assert run.exit_code == 8
    assert run.verdict["verdict"] == "unverified"
    (gap,) = run.unverified
    assert gap["check"] == "gpucluster/test_nvlink.py::test_links_up"
    assert "deselected" in gap["reason"]


def test_optional_checks_may_be_left_out(on_machine: Runner, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[checks]\noptional = ["gpucluster/test_nvlink.py::*"]\n')
    run = on_machine("h100x8", "--gpucluster-profile=site.toml", "-k", "not test_nvlink")
    assert run.exit_code == 0, run.output


def test_allowed_warnings_do_not_count(on_machine: Runner, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[checks]\nallow_warnings = ["persistence.off"]\n')
    overlay = fault("persistence_off")
    run = on_machine("h100x8", "--gpucluster-profile=site.toml", overlay=overlay)
    assert run.verdict["verdict"] == "accepted", run.output
    node = run.verdict["nodes"][0]
    assert any("persistence.off" in entry["reason"] for entry in node["not_applicable"])


def test_a_profile_is_saved_from_an_accepted_node_and_used_again(
    on_machine: Runner, tmp_path: Path
) -> None:
    golden = tmp_path / "golden.toml"
    run = on_machine("h100x8", f"--gpucluster-save-profile={golden}")
    assert run.exit_code == 0, run.output
    assert "count = 8" in golden.read_text()
    run = on_machine("h100x8", f"--gpucluster-profile={golden}", overlay=fault("gpu_missing"))
    assert run.exit_code == 1
    assert [finding["code"] for finding in run.findings] == ["gpu.missing"]


def test_no_profile_is_saved_from_a_rejected_node(on_machine: Runner, tmp_path: Path) -> None:
    golden = tmp_path / "golden.toml"
    run = on_machine(
        "h100x8", f"--gpucluster-save-profile={golden}", overlay=fault("remap_failure")
    )
    assert run.exit_code == 1
    assert not golden.exists()
    assert "was not written" in run.output


def test_saved_facts_are_judged_like_the_node(
    on_machine: Runner, gpucluster: Runner, tmp_path: Path
) -> None:
    live = on_machine("h100x8", overlay=fault("links_down"))
    (saved,) = (tmp_path / "gpucluster-report/facts").glob("*.json")
    kept = tmp_path / "kept.json"
    saved.rename(kept)
    again = gpucluster(
        f"--gpucluster-evidence={kept}", "--gpucluster-level=inventory", folder=tmp_path
    )
    assert again.verdict["mode"] == "evidence"
    assert again.findings == live.findings


def test_marks_gate_a_users_tests_by_what_the_node_should_have(
    on_machine: Runner, tmp_path: Path
) -> None:
    (tmp_path / "test_own.py").write_text(
        "from pytest_gpucluster import *\n"
        "@requires_nvlink(min_links=18, all_pairs=True)\ndef test_links(): pass\n"
        "@requires_nvswitch\ndef test_switch(): pass\n"
        "@requires_compute_capability('10.0')\ndef test_newer(): pass\n"
        "@requires_infiniband(min_rate_gbps=400)\ndef test_network(): pass\n"
    )
    run = on_machine("h100x8")
    outcomes = {c["check"]: c["outcome"] for c in run.verdict["nodes"][0]["checks"]}
    assert outcomes["test_own.py::test_links"] == "passed"
    assert outcomes["test_own.py::test_switch"] == "passed"
    assert outcomes["test_own.py::test_newer"] == "skipped"
    assert outcomes["test_own.py::test_network"] == "skipped"
    assert [gap["check"] for gap in run.unverified] == ["test_own.py::test_network"]
    broken = on_machine("h100x8", overlay=fault("links_down"))
    assert {f["check"] for f in broken.findings} == {
        "gpucluster/test_nvlink.py::test_links_up",
        "test_own.py::test_links",
    }


def test_the_inventory_of_eight_gpus_is_quick(on_machine: Runner, tmp_path: Path) -> None:
    on_machine("h100x8")  # compiles what Python caches
    run = on_machine("h100x8")
    assert run.verdict["duration_s"] < 3
    facts = json.loads(next((tmp_path / "gpucluster-report/facts").glob("*.json")).read_text())
    assert len(facts["gpus"]) == 8
