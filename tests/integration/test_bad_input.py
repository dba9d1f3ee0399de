"""What is wrong with the input ends the run with a message that says what and what next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.detection.run import Outcome

Runner = Callable[..., Outcome]
USAGE_ERROR = 4


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--gpucluster-level=fast", ("fast", "inventory, standard, extended or soak")),
        ("--gpucluster-ranks=none", ("none", "whole number")),
        ("--gpucluster-missing=maybe", ("maybe", "auto, skip or fail")),
        ("--gpucluster-timeout=soon", ("soon", "30m")),
        ("--gpucluster-profile=hgx-h900", ("hgx-h900", "hgx-h100")),
        ("--gpucluster-profile=missing.toml", ("missing.toml",)),
        ("--gpucluster-evidence=missing.json", ("missing.json", "No such file")),
        ("--gpucluster-report=/proc/nowhere", ("/proc/nowhere", "--gpucluster-report=DIR")),
    ],
)
def test_a_wrong_value_is_a_usage_error(
    gpucluster: Runner, argument: str, words: tuple[str, ...]
) -> None:
    run = gpucluster("--gpucluster-rehearse", "--gpucluster-level=inventory", argument)
    assert run.exit_code == USAGE_ERROR, run.output
    for word in words:
        assert word in run.output
    assert "Traceback" not in run.output
    assert run.verdict == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpus]\ncuont = 8\n", ("site.toml", "cuont", "count")),
        ('[gpus]\ncount = "eight"\n', ("site.toml", "gpus.count", "eight")),
        ("[gpus\n", ("site.toml", "line 1")),
        ("[pcie]\nwidth = 7\n", ("site.toml", "pcie.width", "7")),
    ],
)
def test_a_malformed_profile_names_file_key_and_value(
    gpucluster: Runner, tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "site.toml").write_text(text)
    run = gpucluster("--gpucluster-profile=site.toml", "--gpucluster-level=inventory")
    assert run.exit_code == USAGE_ERROR
    for word in words:
        assert word in run.output


def test_a_floor_above_the_ceiling_is_refused(on_machine: Runner, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("[bandwidth]\nall_reduce_gbs = 5000\n")
    run = on_machine("h100x8", "--gpucluster-profile=site.toml")
    assert run.exit_code == USAGE_ERROR
    assert "can never pass" in run.output


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[]", b'{"host": {"name": 7}}'])
def test_facts_that_are_none_are_refused(gpucluster: Runner, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "facts.json").write_bytes(text)
    run = gpucluster("--gpucluster-evidence=facts.json", "--gpucluster-level=inventory")
    assert run.exit_code == USAGE_ERROR
    assert "facts.json" in run.output


def test_a_verdict_of_an_earlier_run_is_gone_when_a_run_fails(
    gpucluster: Runner, tmp_path: Path
) -> None:
    gpucluster("--gpucluster-rehearse", "--gpucluster-level=inventory")
    assert (tmp_path / "gpucluster-report/verdict.json").exists()
    run = gpucluster("--gpucluster-rehearse", "--gpucluster-profile=missing.toml")
    assert run.exit_code == USAGE_ERROR
    assert not (tmp_path / "gpucluster-report/verdict.json").exists()


def test_the_old_binding_package_is_named(gpucluster: Runner, tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "pynvml").mkdir(parents=True)
    (old / "pynvml/__init__.py").write_text("def nvmlInit(): pass\n")
    info = old / "pynvml-11.5.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 11.5.3\n")
    run = gpucluster("--gpucluster-level=inventory", environment={"PYTHONPATH": str(old)})
    assert run.exit_code == 1
    assert "pynvml" in run.output
    facts = json.loads(next((tmp_path / "gpucluster-report/facts").glob("*.json")).read_text())
    assert "11.5.3" in facts["software"]["nvml_binding_problem"]
    assert "nvidia-ml-py" in facts["unreadable"][0]["reason"]


def test_several_launched_processes_are_refused_by_name(gpucluster: Runner) -> None:
    run = gpucluster("--gpucluster-rehearse", environment={"WORLD_SIZE": "8", "RANK": "3"})
    assert run.exit_code == USAGE_ERROR
    assert "WORLD_SIZE=8" in run.output


def test_a_report_folder_that_fills_up_does_not_hide_the_verdict(
    gpucluster: Runner, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest, shutil\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtestloop(session):\n"
        "    shutil.rmtree('gpucluster-report'); open('gpucluster-report', 'w').close()\n"
    )
    run = gpucluster("--gpucluster-rehearse", "--gpucluster-level=inventory")
    assert run.exit_code not in (0, 1)
    assert "verdict: rehearsed" in run.output
    assert "gpucluster-report" in run.output
