"""What every test needs: an environment in which nothing of the caller's is set."""

from __future__ import annotations

import os

import pytest

SETTINGS = ("GPUCLUSTER", "NCCL_", "PYTEST_ADDOPTS", "CUDA_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def _plain_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No setting of the caller's reaches a test, and no lease of a test's reaches the caller."""
    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPUCLUSTER_LEASES", str(tmp_path_factory.getbasetemp() / "leases"))


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    # Importing Hypothesis takes a second, and each pytest inside a test would do it.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    return pytester
