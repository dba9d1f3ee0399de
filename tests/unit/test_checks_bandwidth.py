"""Measured bandwidth against floor, expectation and ceiling."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.checks.bandwidth_gate import judge_bandwidth, on_cpu_ranks
from pytest_gpucluster.expectations.bandwidth import BandwidthExpectation, NoExpectation
from pytest_gpucluster.measure.collectives import AllReduceSpeed
from pytest_gpucluster.measure.statistics import Interval
from tests.unit.checking import Found, profile, recorder

SIZE = 2**28


def speed(low: float, high: float) -> AllReduceSpeed:
    interval = Interval((low + high) / 2, low, high, 0.98, 7)
    return AllReduceSpeed(SIZE, "float32", 8, 20, interval, 200.0, 3, 1.25)


def expected(certain: bool = True, gated: bool = True, **more: Any) -> BandwidthExpectation:
    values = {"expected_gbs": 480.0, "floor_gbs": 400.0, "ceiling_gbs": 840.0, **more}
    return BandwidthExpectation(
        derivation="18 links", source="catalogue: H100 SXM", certain=certain, gated=gated, **values
    )


def judge(
    low: float,
    high: float,
    expectation: BandwidthExpectation | NoExpectation | None = None,
    last: bool = True,
) -> Found:
    found = recorder()
    judge_bandwidth(found.recorder, speed(low, high), expectation or expected(), last=last)
    return found


def codes(found: Found) -> list[tuple[str, str]]:
    return [(finding.severity, finding.code) for finding in found.findings]


def test_bandwidth_above_the_floor_passes_and_is_recorded() -> None:
    found = judge(470, 490)
    assert found.quiet
    (measurement,) = found.measurements
    assert measurement.name == "all_reduce busbw 256 MiB"
    assert (measurement.value, measurement.low, measurement.high) == (480, 470, 490)
    assert (measurement.expected, measurement.floor, measurement.ceiling) == (480, 400, 840)
    assert measurement.unit == "GB/s"
    assert measurement.source == "catalogue: H100 SXM"
    assert measurement.derivation == "18 links"
    assert measurement.conditions["ranks"] == 8
    assert measurement.conditions["bytes"] == SIZE


def test_a_whole_interval_below_the_floor_fails() -> None:
    found = judge(300, 399)
    assert codes(found) == [("fail", "collective.bandwidth_low")]
    (finding,) = found.findings
    assert (finding.measured, finding.expected, finding.unit) == (349.5, 400, "GB/s")
    assert finding.source == "catalogue: H100 SXM"
    assert "256 MiB over 8 ranks" in finding.message
    assert "Rank 3 was slowest" in finding.next_step


def test_an_interval_that_straddles_the_floor_warns() -> None:
    assert codes(judge(399, 450)) == [("warn", "collective.bandwidth_marginal")]
    assert codes(judge(300, 401)) == [("warn", "collective.bandwidth_marginal")]


def test_an_interval_that_touches_the_floor_from_above_passes() -> None:
    assert judge(400, 450).quiet


def test_an_uncertain_floor_warns_and_never_rejects() -> None:
    found = judge(300, 399, expected(certain=False))
    assert codes(found) == [("warn", "collective.bandwidth_low")]


@pytest.mark.parametrize("certain", [True, False])
def test_more_than_the_ceiling_fails_as_a_wrong_measurement(certain: bool) -> None:
    found = judge(900, 950, expected(certain=certain))
    assert codes(found) == [("fail", "collective.bandwidth_impossible")]
    assert "clock" in found.findings[0].next_step


def test_within_the_tolerance_of_the_clock_the_ceiling_is_not_exceeded() -> None:
    assert judge(840 * 1.005, 840 * 1.02).quiet
    assert judge(800, 950).quiet, "its lower end is possible"


def test_without_an_expectation_the_last_size_says_that_nothing_was_judged() -> None:
    nothing = NoExpectation("unknown GPU")
    assert judge(1, 2, nothing, last=False).quiet
    found = judge(1, 2, nothing)
    assert not found.findings
    (reason,) = found.unverified
    assert "measured but not judged: unknown GPU" in reason
    assert "bandwidth.all_reduce_gbs" in reason
    assert found.measurements[0].derivation == "unknown GPU"


def test_without_an_expectation_the_ceiling_still_holds() -> None:
    found = judge(900, 950, NoExpectation("uneven links", ceiling_gbs=840))
    assert codes(found) == [("fail", "collective.bandwidth_impossible")]


def test_sizes_too_small_are_recorded_and_not_judged() -> None:
    found = judge(1, 2, expected(gated=False), last=False)
    assert found.quiet
    assert found.measurements[0].floor is None
    assert found.measurements[0].conditions["gated"] is False


def test_when_not_even_the_largest_size_can_be_judged_it_is_said() -> None:
    found = judge(1, 2, expected(gated=False), last=True)
    assert not found.findings
    assert found.unverified == ["all-reduce bandwidth: no size was large enough to be judged"]


def test_cpu_ranks_are_judged_by_a_profiles_floor_only_and_once() -> None:
    floor = profile("[bandwidth]\nall_reduce_gbs = 0.5")
    for none in (None, profile("[gpus]\ncount = 8")):
        assert isinstance(on_cpu_ranks(none, largest=True), NoExpectation)
    small, large = on_cpu_ranks(floor, largest=False), on_cpu_ranks(floor, largest=True)
    assert isinstance(small, BandwidthExpectation)
    assert isinstance(large, BandwidthExpectation)
    assert (small.gated, large.gated) == (False, True)
    assert codes(judge(0.1, 0.2, large)) == [("fail", "collective.bandwidth_low")]
