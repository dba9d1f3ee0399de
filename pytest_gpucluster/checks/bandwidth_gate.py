"""Measured bandwidth against floor, expectation and ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.expectations.bandwidth import BandwidthExpectation, NoExpectation
from pytest_gpucluster.verdict.findings import Measurement

if TYPE_CHECKING:
    from pytest_gpucluster.expectations.profile import Profile
    from pytest_gpucluster.measure.collectives import AllReduceSpeed
    from pytest_gpucluster.verdict.findings import Severity
    from pytest_gpucluster.verdict.recorder import Findings

CEILING_TOLERANCE = 1.01  # clocks are good to far better than this


def judge_bandwidth(
    findings: Findings,
    speed: AllReduceSpeed,
    expectation: BandwidthExpectation | NoExpectation,
    *,
    last: bool,
) -> None:
    """Record one size, and judge it where the expectation says that it can be judged.

    ``last``: the largest size. If not even that can be judged, the check is unverified.
    """
    known = expectation if isinstance(expectation, BandwidthExpectation) else None
    gated = known is not None and known.gated
    record(findings, speed, expectation, gated=gated)
    limit = expectation.ceiling_gbs
    if limit is not None and speed.busbw.low > CEILING_TOLERANCE * limit:
        advice = "Check the clock and the size: no link is that fast."
        source = known.source if known else None
        _report(findings, speed, "fail", "bandwidth_impossible", "at most", limit, source, advice)
    if known is None:
        if last:
            reason = getattr(expectation, "reason", "")
            findings.unverified(
                f"all-reduce bandwidth was measured but not judged: {reason}. Give a floor with "
                "bandwidth.all_reduce_gbs in a profile."
            )
        return
    advice = (
        f"Rank {speed.slowest_rank} was slowest ({speed.rank_spread:.2f} x the fastest). Check "
        "NVLink state, clocks and NCCL_* variables; measure pairs with --gpucluster-level=extended."
    )
    floor = known.floor_gbs
    if gated and speed.busbw.high < floor:
        severity: Severity = "fail" if known.certain else "warn"
        _report(findings, speed, severity, "bandwidth_low", "at least", floor, known.source, advice)
    elif gated and speed.busbw.low < floor:
        _report(
            findings, speed, "warn", "bandwidth_marginal", "at least", floor, known.source, advice
        )
    elif last and not gated:
        findings.unverified("all-reduce bandwidth: no size was large enough to be judged")


def on_cpu_ranks(profile: Profile | None, *, largest: bool) -> BandwidthExpectation | NoExpectation:
    """In a rehearsal nothing follows from the hardware; a profile's floor is judged once."""
    floor = profile.bandwidth.all_reduce_gbs if profile else None
    if profile is None or floor is None:
        return NoExpectation("CPU ranks: a rehearsal expects no bandwidth")
    return BandwidthExpectation(
        floor, floor, None, "the profile's floor", profile.label, certain=True, gated=largest
    )


def record(
    findings: Findings,
    speed: AllReduceSpeed,
    expectation: BandwidthExpectation | NoExpectation,
    *,
    gated: bool = False,
) -> None:
    """Keep one size for the report without judging it."""
    known = expectation if isinstance(expectation, BandwidthExpectation) else None
    ceiling = expectation.ceiling_gbs
    findings.measured(
        Measurement(
            name=f"all_reduce busbw {_size(speed.size_bytes)}",
            value=round(speed.busbw.median, 3),
            unit="GB/s",
            low=round(speed.busbw.low, 3),
            high=round(speed.busbw.high, 3),
            expected=round(known.expected_gbs, 3) if known else None,
            floor=round(known.floor_gbs, 3) if known and gated else None,
            ceiling=round(ceiling, 3) if ceiling is not None else None,
            source=known.source if known else None,
            derivation=known.derivation if known else getattr(expectation, "reason", None),
            conditions={
                **speed.conditions(),
                "gated": gated,
                "data_checked": "in a pass of its own",
            },
        )
    )


def _report(
    findings: Findings,
    speed: AllReduceSpeed,
    severity: Severity,
    code: str,
    relation: str,
    limit: float,
    source: str | None,
    advice: str,
) -> None:
    findings.report(
        severity,
        f"collective.{code}",
        "all ranks",
        f"all-reduce of {_size(speed.size_bytes)} over {speed.ranks} ranks: busbw "
        f"{speed.busbw.median:.3g} GB/s ({speed.busbw.low:.3g} to {speed.busbw.high:.3g}), "
        f"expected {relation} {limit:.3g} GB/s.",
        next_step=advice,
        measured=round(speed.busbw.median, 3),
        expected=round(limit, 3),
        unit="GB/s",
        source=source,
    )


def _size(size_bytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:g} {unit}"
    return f"{size_bytes} B"
