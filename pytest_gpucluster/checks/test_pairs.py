"""Every pair of GPUs: data intact, and no pair or GPU slower than its peers."""

from __future__ import annotations

import statistics

import pytest

from pytest_gpucluster.checks.compare import skip_if_alone
from pytest_gpucluster.localise.suspects import blame, slow_pairs
from pytest_gpucluster.ranks.group import ProcessGroup
from pytest_gpucluster.verdict.findings import Measurement
from pytest_gpucluster.verdict.recorder import Findings

pytestmark = [pytest.mark.gpucluster_level("extended"), pytest.mark.distributed(timeout=600)]

SLOW = 0.5  # of the median of all pairs
SIZE = {"nccl": 2**28, "gloo": 2**22}
ITERATIONS = {"nccl": 20, "gloo": 4}


def test_pair_bandwidth(process_group: ProcessGroup, findings: Findings) -> None:
    """Each pair delivers its data unchanged and at half its peers' speed or more.

    Needs: two ranks; three pairs before a slow one can be named. Threshold: the whole interval
    under 0.5 x the median of all pairs. A GPU whose every pair is slow is blamed itself. When
    it fails: look at the NVLinks or the PCIe slot of the GPU or pair named.
    """
    skip_if_alone(process_group, findings)
    from pytest_gpucluster.measure.point_to_point import measure_pairs

    backend = process_group.backend
    speeds, wrong = measure_pairs(process_group, SIZE[backend], ITERATIONS[backend])
    for (a, b), speed in sorted(speeds.items()):
        findings.measured(
            Measurement(
                name=f"rank {a} <-> rank {b}",
                value=round(speed.median, 3),
                unit="GB/s",
                low=round(speed.low, 3),
                high=round(speed.high, 3),
                derivation="relative to the other pairs",
                conditions={
                    "bytes": SIZE[backend],
                    "iterations": ITERATIONS[backend],
                    "batches": speed.batches,
                    "direction": "one after the other",
                },
            )
        )
    everybody = list(speeds)
    members, pairs = blame(wrong, everybody)
    for component in [f"rank {m}" for m in members] + [f"rank {a}-rank {b}" for a, b in pairs]:
        findings.report(
            "fail",
            "p2p.data_wrong",
            component,
            "data arrived changed.",
            next_step="Do not train here; check the links between these GPUs, and IOMMU and ACS.",
            measured=sum(wrong.values()),
            expected=0,
            unit="elements",
        )
    medians = {pair: speed.median for pair, speed in speeds.items()}
    highs = {pair: speed.high for pair, speed in speeds.items()}
    usual = statistics.median(medians.values())
    members, pairs = blame(slow_pairs(medians, highs, SLOW), everybody)
    slow = {f"rank {m}": [medians[pair] for pair in everybody if m in pair] for m in members}
    slow |= {f"rank {a}-rank {b}": [medians[a, b]] for a, b in pairs}
    for component, found in slow.items():
        findings.report(
            "fail",
            "p2p.slow",
            component,
            f"moves {max(found):.3g} GB/s at best, the median of all pairs is {usual:.3g} GB/s.",
            next_step="Look at the NVLinks, the PCIe slot and the clocks of what is named.",
            measured=round(max(found), 3),
            expected=f">={SLOW * usual:.3g}",
            unit="GB/s",
            source="the other pairs of this node",
        )
