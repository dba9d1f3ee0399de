"""Whole runs of ``pytest --gpucluster``, as a user starts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from pytest_gpucluster.testing import fake_nvml
from tests.detection.run import Outcome, fake_environment, run_pytest
from tests.integration.ranked import ranked  # noqa: F401 - pytest finds fixtures by name


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the fake NVML library is built, once for all xdist workers."""
    shared = tmp_path_factory.getbasetemp().parent / "fake-nvml"
    shared.mkdir(exist_ok=True)
    with FileLock(shared / "build.lock"):
        fake_nvml.build(shared)
    return shared


@pytest.fixture
def gpucluster(tmp_path: Path) -> Callable[..., Outcome]:
    """Run the acceptance in an empty folder; see `run_pytest` for the rest."""

    def run(
        *arguments: str,
        folder: Path = tmp_path,
        environment: dict[str, str] | None = None,
        configured: bool = False,
        plugins: bool = False,
    ) -> Outcome:
        return run_pytest(
            folder,
            *arguments,
            environment=environment or {},
            configured=configured,
            plugins=plugins,
        )

    return run


@pytest.fixture
def on_machine(
    tmp_path: Path, libraries: Path, gpucluster: Callable[..., Outcome]
) -> Callable[..., Outcome]:
    """Run the inventory on a fake machine, with faults on top."""

    def run(machine: str, *arguments: str, overlay: str = "", level: str = "inventory") -> Outcome:
        fake = fake_environment(tmp_path, libraries, machine, overlay)
        return gpucluster(f"--gpucluster-level={level}", *arguments, environment=fake)

    return run
