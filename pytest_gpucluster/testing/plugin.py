"""For teams that test their own checks: runs of pytest on a fake node, with faults injected.

In a conftest.py: ``pytest_plugins = ["pytester", "pytest_gpucluster.testing.plugin"]``.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.testing import faults, machines

LONGEST_RUN_S = 300.0
CLEARED = ("GPUCLUSTER_", "PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD")


@dataclass(frozen=True)
class Run:
    """A finished run of pytest. ``verdict`` is ``None`` where no acceptance was asked for."""

    exit_code: int
    output: str
    outcomes: dict[str, int]  # {"passed": 3, "failed": 1}
    verdict: dict[str, Any] | None

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The findings of all nodes, as they stand in ``verdict.json``."""
        nodes = self.verdict["nodes"] if self.verdict else []
        return [finding for node in nodes for finding in node["findings"]]


class GpuclusterPytester:
    """Prepares a folder and a machine, and runs pytest there in a process of its own."""

    def __init__(self, pytester: pytest.Pytester, libraries: Path) -> None:
        self.pytester = pytester
        self._libraries = libraries
        self._environment: dict[str, str] = {}
        self._arguments: list[str] = []

    def machine(self, name: str, *faults_on_top: str) -> None:
        """Let the run see a fake node: one of `machines.MACHINES`, with faults on top.

        ``machine("h100x8", fault("links_down", gpu=2))``. The fake NVML library is compiled by
        the machine's C compiler at first use.
        """
        from pytest_gpucluster.testing import fake_nvml

        description = self.pytester.path / "machine.txt"
        description.write_text("\n".join([machines.machine(name), *faults_on_top, ""]))
        library = fake_nvml.build(self._libraries)
        self._environment |= machines.environment(description, library)

    def fault(self, name: str, rank: int | str = faults.EVERY_RANK, test: str = "") -> None:
        """Inject one of `faults.FAULTS` on a rank, in tests whose id contains ``test``."""
        self._environment[faults.VARIABLE] = f"{name}:{rank}:{test}"
        self._arguments = ["-p", "pytest_gpucluster.testing.faults"]

    def run(self, *arguments: str) -> Run:
        """Run pytest with these arguments over the folder's files."""
        with pytest.MonkeyPatch.context() as patch:
            for name in list(os.environ):
                if name.startswith(CLEARED):
                    patch.delenv(name)
            for name, value in self._environment.items():
                patch.setenv(name, value)
            patch.setenv("GPUCLUSTER_LEASES", str(self.pytester.path / "leases"))
            result = self.pytester.run(
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                *self._arguments,
                *arguments,
                timeout=LONGEST_RUN_S,
            )
        file = self.pytester.path / "gpucluster-report" / "verdict.json"
        return Run(
            exit_code=int(result.ret),
            output=f"{result.stdout}\n{result.stderr}",
            outcomes=_outcomes(result),
            verdict=json.loads(file.read_text()) if file.exists() else None,
        )


def _outcomes(result: pytest.RunResult) -> dict[str, int]:
    try:
        return result.parseoutcomes()
    except ValueError:  # it ended before it had anything to count
        return {}


@pytest.fixture
def gpucluster_pytester(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> GpuclusterPytester:
    """Run pytest on a fake node or with faulty ranks, and look at outcomes and verdict."""
    libraries = tmp_path_factory.getbasetemp() / "gpucluster-libraries"
    libraries.mkdir(exist_ok=True)
    return GpuclusterPytester(pytester, libraries)
