"""Collectives: right values on every rank, at the bandwidth the hardware should give."""

from __future__ import annotations

import pytest

from pytest_gpucluster.checks.bandwidth_gate import judge_bandwidth, on_cpu_ranks, record
from pytest_gpucluster.checks.compare import skip_if_alone
from pytest_gpucluster.expectations.bandwidth import NoExpectation, all_reduce
from pytest_gpucluster.expectations.profile import Profile
from pytest_gpucluster.facts.model import NodeFacts
from pytest_gpucluster.ranks.group import ProcessGroup
from pytest_gpucluster.verdict.recorder import Findings

pytestmark = [pytest.mark.gpucluster_level("standard"), pytest.mark.distributed(timeout=300)]

# Around NCCL's protocol switches (LL, LL128, Simple), odd counts included.
COUNTS = (1, 3, 1023, 65_536, 262_144, 262_147, 4_194_304)
CPU_COUNTS = COUNTS[:-1]
ROUNDS = 3
GPU_SIZES = (2**20, 2**24, 2**28, 2**30)
CPU_SIZES = (2**20, 2**24)
BUDGET_S = {"nccl": 2.0, "gloo": 1.5}
MEMORY_SHARE = 0.25  # of the free memory, for one buffer


def test_all_reduce_values(process_group: ProcessGroup, findings: Findings) -> None:
    """An all-reduce of random data gives every rank exactly the right values.

    Needs: two ranks. Threshold: bit equality in float32, bfloat16, float16, float64 and int32;
    the data are whole numbers whose sums are exact. When it fails: the link or GPU named
    corrupts data; do not train here.
    """
    skip_if_alone(process_group, findings)
    import torch

    from pytest_gpucluster.measure.collectives import verify_all_reduce

    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32)
    wrong: dict[int, str] = {}
    for count in COUNTS if process_group.backend == "nccl" else CPU_COUNTS:
        for dtype in dtypes:
            for seed in range(ROUNDS if count < CPU_COUNTS[-1] else 1):
                for entry in verify_all_reduce(process_group, count, dtype, seed):
                    name = str(dtype).removeprefix("torch.")
                    wrong.setdefault(entry.rank, f"{entry.describe()} ({name}, {count} elements)")
    everyone = len(wrong) == process_group.world_size > 1
    for rank, description in list(wrong.items())[: 1 if everyone else None]:
        findings.report(
            "fail",
            "collective.data_wrong",
            "all ranks" if everyone else f"rank {rank}",
            f"all-reduce delivers wrong values. {description}",
            next_step="Do not train here. Repeat with NCCL_ALGO=Ring and NCCL_P2P_DISABLE=1 to "
            "tell a link from a GPU.",
            measured=f"{len(wrong)} of {process_group.world_size} ranks wrong",
            expected="exact values on every rank",
        )


def test_all_reduce_bandwidth(
    process_group: ProcessGroup,
    node_facts: NodeFacts,
    node_profile: Profile | None,
    findings: Findings,
) -> None:
    """The bus bandwidth of an all-reduce reaches what follows from the node's links.

    Needs: two ranks. Threshold: 0.85 x the expectation derived from the facts, or the profile's
    floor; the whole interval below it fails, straddling it warns; above the physical ceiling
    fails too (the clock or the size is wrong). On CPU ranks only a profile's floor is judged.
    When it fails: look at NVLink state, clocks and NCCL_* variables, then at single pairs
    (--gpucluster-level=extended).
    """
    skip_if_alone(process_group, findings)
    import torch

    from pytest_gpucluster.measure.collectives import measure_all_reduce

    on_gpu = process_group.backend == "nccl"
    sizes = _sizes_that_fit(process_group) if on_gpu else CPU_SIZES
    for size in sizes:
        budget = BUDGET_S[process_group.backend]
        speed = measure_all_reduce(process_group, size, torch.float32, budget)
        if on_gpu:
            expectation = all_reduce(
                node_facts, process_group.world_size, size_bytes=size, profile=node_profile
            )
        else:
            expectation = on_cpu_ranks(node_profile, largest=size == sizes[-1])
        if isinstance(expectation, NoExpectation) and not on_gpu:
            record(findings, speed, expectation)
        else:
            judge_bandwidth(findings, speed, expectation, last=size == sizes[-1])


def _sizes_that_fit(group: ProcessGroup) -> list[int]:
    """Sizes for which every GPU has room; agreed among the ranks."""
    import torch

    free, _ = torch.cuda.mem_get_info(group.device)
    room = MEMORY_SHARE * min(group.exchange(free))
    return [size for size in GPU_SIZES if size <= room] or [GPU_SIZES[0]]
