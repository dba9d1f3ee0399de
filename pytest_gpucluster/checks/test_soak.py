"""Sustained load: values stay right and bandwidth does not drift."""

from __future__ import annotations

import statistics
import time

import pytest

from pytest_gpucluster.checks.compare import skip_if_alone
from pytest_gpucluster.options import Settings
from pytest_gpucluster.ranks.group import ProcessGroup
from pytest_gpucluster.verdict.findings import Measurement
from pytest_gpucluster.verdict.recorder import Findings

pytestmark = [pytest.mark.gpucluster_level("soak"), pytest.mark.distributed(timeout=600)]

SIZE = {"nccl": 2**28, "gloo": 2**22}
CYCLE_S = 1.0
DRIFT = 0.9  # the last third against the first


def test_sustained_load(
    process_group: ProcessGroup, gpucluster_settings: Settings, findings: Findings
) -> None:
    """All-reduces under sustained load give right values and keep their bandwidth.

    Needs: two ranks and --gpucluster-soak. Threshold: no wrong value ever; the median busbw of
    the last third of at least 0.9 x that of the first warns below. When it fails: look at
    temperatures and clocks over time.
    """
    skip_if_alone(process_group, findings)
    import torch

    from pytest_gpucluster.measure.collectives import measure_all_reduce, verify_all_reduce

    ends = time.monotonic() + gpucluster_settings["soak"]
    size = SIZE[process_group.backend]
    series: list[float] = []
    while max(process_group.exchange(ends - time.monotonic())) > 0:
        wrong = verify_all_reduce(process_group, size // 16, torch.float32, seed=len(series))
        if wrong:
            findings.report(
                "fail",
                "collective.data_wrong",
                f"rank {wrong[0].rank}",
                f"after {len(series)} cycles under load: {wrong[0].describe()}",
                next_step="Do not train here; look at temperatures and link errors over time.",
            )
            return
        speed = measure_all_reduce(process_group, size, torch.float32, CYCLE_S)
        series.append(speed.busbw.median)
    third = max(1, len(series) // 3)
    first, last = statistics.median(series[:third]), statistics.median(series[-third:])
    findings.measured(
        Measurement(
            name="all_reduce busbw under sustained load",
            value=round(statistics.median(series), 3),
            unit="GB/s",
            low=round(min(series), 3),
            high=round(max(series), 3),
            derivation=f"first third {first:.3g}, last third {last:.3g}",
            conditions={
                "bytes": size,
                "cycles": len(series),
                "seconds": gpucluster_settings["soak"],
            },
        )
    )
    if len(series) >= 6 and last < DRIFT * first:
        findings.report(
            "warn",
            "collective.bandwidth_drift",
            "all ranks",
            f"busbw fell from {first:.3g} to {last:.3g} GB/s under sustained load.",
            next_step="Look at temperatures, clocks and power over time.",
            measured=round(last, 3),
            expected=f">={DRIFT * first:.3g}",
            unit="GB/s",
            source="the first third of the soak",
        )
