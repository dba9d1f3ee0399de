"""Run one case in a folder of its own, as a user would: a pytest process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from pytest_gpucluster.facts.evidence.saved_facts import load_facts
from pytest_gpucluster.facts.model import NodeFacts, to_json
from pytest_gpucluster.testing import fake_nvml, machines
from pytest_gpucluster.testing.fake_torch import install_fake_torch
from tests.detection.cases import Case

CLEARED = ("GPUCLUSTER_", "NCCL_", "CUDA_", "PYTEST_", "SLURM", "OMPI_", "PMI_")
DEADLINE_S = 120


@dataclass(frozen=True)
class Outcome:
    """What a run said. ``verdict`` is ``{}`` when it wrote none."""

    exit_code: int
    verdict: dict[str, Any]
    output: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [f for node in self.verdict.get("nodes", []) for f in node["findings"]]

    @property
    def unverified(self) -> list[dict[str, Any]]:
        return [u for node in self.verdict.get("nodes", []) for u in node["unverified"]]


@dataclass(frozen=True)
class Judgement:
    """Whether a fault was found at all, and blamed on the right part only."""

    detected: bool
    blamed: bool
    outcome: Outcome


def run_pytest(
    folder: Path,
    *arguments: str,
    environment: dict[str, str],
    configured: bool = False,
    plugins: bool = False,
) -> Outcome:
    """``pytest --gpucluster ...`` in ``folder``, without anything of the caller's settings.

    ``configured``: with the ini files that pytest finds from there. ``plugins``: with the other
    plugins that are installed; loading them takes longer than the checks.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(CLEARED)}
    command = [sys.executable, "-m", "pytest", "--gpucluster", "-p", "no:cacheprovider"]
    if not plugins:
        inherited["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command += ["-p", "pytest_gpucluster.plugin"]
    done = subprocess.run(
        [*command, *([] if configured else ["-c", os.devnull]), *arguments],
        cwd=folder,
        env={**inherited, "GPUCLUSTER_LEASES": str(folder / "leases"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    verdict = folder / "gpucluster-report/verdict.json"
    found = json.loads(verdict.read_text()) if verdict.exists() else {}
    return Outcome(done.returncode, found, done.stdout)


def fake_environment(
    folder: Path, libraries: Path, machine: str, overlay: str = "", **torch: Any
) -> dict[str, str]:
    """The environment of a node with a fake NVML and a fake CUDA build of torch."""
    description = folder / "machine.txt"
    description.write_text(f"{machines.machine(machine)}\n{overlay}\n")
    stand_in = install_fake_torch(folder / "stand-in", **torch)
    return {
        **machines.environment(description, fake_nvml.build(libraries)),
        "PYTHONPATH": str(stand_in),
    }


def run_case(case: Case, folder: Path, libraries: Path) -> Outcome:
    """Inject the case's fault and let the acceptance judge."""
    arguments = [f"--gpucluster-level={case.level}", *case.arguments]
    if case.profile is not None:
        (folder / "profile.toml").write_text(case.profile)
        arguments.append("--gpucluster-profile=profile.toml")
    if case.fault is not None:
        arguments += ["--gpucluster-rehearse", f"--gpucluster-ranks={case.ranks}"]
        arguments += ["-p", "pytest_gpucluster.testing.faults", f"gpucluster/{case.check}"]
        return run_pytest(folder, *arguments, environment={"GPUCLUSTER_FAULT": case.fault})
    if case.change is not None:
        facts = case.change(healthy_facts(libraries, case.machine))
        (folder / "facts.json").write_bytes(to_json(facts))
        return run_pytest(folder, *arguments, "--gpucluster-evidence=facts.json", environment={})
    fake = fake_environment(folder, libraries, case.machine, case.overlay, **case.torch)
    return run_pytest(folder, *arguments, environment={**fake, **case.environment})


def healthy_facts(libraries: Path, machine: str) -> NodeFacts:
    """The facts that a healthy fake machine saves; read once for all cases."""
    with FileLock(libraries / f"{machine}.lock"):
        saved = libraries / f"{machine}.json"
        if not saved.exists():
            with tempfile.TemporaryDirectory(dir=libraries) as name:
                folder = Path(name)
                fake = fake_environment(folder, libraries, machine)
                run_pytest(folder, "--gpucluster-level=inventory", environment=fake)
                (written,) = (folder / "gpucluster-report/facts").glob("*.json")
                written.rename(saved)
        return load_facts(saved)


def judge(case: Case, outcome: Outcome) -> Judgement:
    """Detected: the right code from the right check. Blamed: nothing else is called faulty."""
    check = f"gpucluster/{case.check}"
    accepted = outcome.verdict.get("verdict") not in case.verdicts
    if case.code is None:
        said = any(entry["check"] == check for entry in outcome.unverified)
        return Judgement(said and not accepted, said and not outcome.findings, outcome)
    mine = [f for f in outcome.findings if f["code"] == case.code and f["check"] == check]
    blamed = {(f["code"], f["component"]) for f in outcome.findings if f["severity"] == "fail"}
    blamed |= {(f["code"], f["component"]) for f in mine}
    return Judgement(bool(mine) and not accepted, blamed == {(case.code, case.component)}, outcome)
