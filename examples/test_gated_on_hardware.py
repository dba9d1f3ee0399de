"""Tests gated on hardware: they skip, fail or stay unverified by what the node should have."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pytest_gpucluster import ProcessGroup, requires_gpus, requires_infiniband, requires_nvlink


@requires_nvlink(min_links=4, all_pairs=True)
@pytest.mark.distributed(backend="nccl")
def test_gather_over_nvlink(process_group: ProcessGroup) -> None:
    mine = torch.full((1024,), float(process_group.rank), device=process_group.device)
    everyone = [torch.empty_like(mine) for _ in range(process_group.world_size)]
    dist.all_gather(everyone, mine)
    for rank, part in enumerate(everyone):
        assert (part == rank).all()


@requires_gpus(8)
@requires_infiniband(min_rate_gbps=400)
def test_node_is_ready_for_large_jobs() -> None:
    """Nothing to do: the marks are the test."""
