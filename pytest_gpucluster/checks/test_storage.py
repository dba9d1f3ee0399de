"""The file system under the report folder keeps what it is given."""

from __future__ import annotations

import os

import pytest

from pytest_gpucluster.options import Settings
from pytest_gpucluster.verdict.findings import Measurement
from pytest_gpucluster.verdict.recorder import Findings

pytestmark = pytest.mark.gpucluster_level("extended")

BLOCKS = 64  # MiB


def test_write_and_read(
    gpucluster_settings: Settings, findings: Findings, pytestconfig: pytest.Config
) -> None:
    """64 MiB written to the report folder come back unchanged.

    Needs: a writable report folder. Threshold: equal checksums; the speed is recorded, not
    judged. When it fails: check the file system and its server.
    """
    if gpucluster_settings["evidence"] is not None:
        findings.unverified("nothing is run on the node whose facts are judged")
        return
    from pytest_gpucluster.measure.storage import write_and_read

    folder = pytestconfig.invocation_params.dir / gpucluster_settings["report"]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = write_and_read(folder / f".storage-check-{os.getpid()}", BLOCKS)
    except OSError as error:
        findings.report(
            "fail",
            "storage.unusable",
            "node",
            f"{folder}: {error.strerror}",
            next_step="Make room, or check the file system and its server.",
        )
        return
    for name, value in (("write", result.write_gbs), ("read", result.read_gbs)):
        findings.measured(
            Measurement(
                f"storage {name}",
                round(value, 3),
                "GB/s",
                derivation="recorded, not judged",
                conditions={"bytes": BLOCKS * 2**20, "flushed": name == "write"},
            )
        )
    if not result.intact:
        findings.report(
            "fail",
            "storage.data_wrong",
            "node",
            f"{folder}: what was read is not what was written.",
            next_step="Do not put checkpoints here; check the file system.",
        )
