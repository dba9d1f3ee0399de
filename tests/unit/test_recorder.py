"""What a check reports through `findings` reaches the report's properties, and no more."""

from __future__ import annotations

import pytest

from pytest_gpucluster.verdict.findings import (
    FINDING,
    MEASUREMENT,
    UNVERIFIED,
    Finding,
    Measurement,
    NotChecked,
    decode,
)
from pytest_gpucluster.verdict.recorder import Findings


def test_a_finding_carries_its_node_and_check() -> None:
    properties: list[tuple[str, object]] = []
    recorder = Findings("node-1", "test_x.py::test_y", properties)
    recorder.report("fail", "a.b", "GPU2", "is broken", next_step="Replace it.", measured=1)
    (finding,) = decode(properties, FINDING, Finding)
    assert (finding.node, finding.check, finding.component) == (
        "node-1",
        "test_x.py::test_y",
        "GPU2",
    )
    assert recorder.failures == [finding]
    assert "GPU2: is broken" in recorder.describe_failures()
    assert "Replace it." in recorder.describe_failures()


def test_a_warning_is_no_failure() -> None:
    recorder = Findings("n", "c", [])
    recorder.report("warn", "a.b", "GPU2", "is odd", next_step="Look.")
    assert recorder.failures == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_unverified(value: float) -> None:
    properties: list[tuple[str, object]] = []
    recorder = Findings("n", "c", properties)
    recorder.measured(Measurement("busbw", value, "GB/s"))
    assert decode(properties, MEASUREMENT, Measurement) == []
    (gap,) = decode(properties, UNVERIFIED, NotChecked)
    assert "busbw" in gap.reason
    assert recorder.not_verified
