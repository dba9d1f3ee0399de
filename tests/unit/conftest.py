"""What several unit tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from pytest_gpucluster.testing import fake_nvml


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake NVML library, built once for all xdist workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "unit-fake-nvml"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "build.lock"):
        return fake_nvml.build(folder)
