"""A collective at several world sizes, on every rank: GPUs with NCCL, CPUs with Gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from pytest_gpucluster import ProcessGroup


@pytest.mark.distributed(world_size=[2, 4], timeout=60)
def test_sum_of_ranks(process_group: ProcessGroup) -> None:
    tensor = torch.full((1000,), float(process_group.rank), device=process_group.device)
    dist.all_reduce(tensor)
    assert (tensor == sum(range(process_group.world_size))).all()


@pytest.mark.distributed(world_size=2, env={"NCCL_ALGO": "Ring"})
def test_gather_over_a_ring(process_group: ProcessGroup) -> None:
    mine = torch.full((4,), float(process_group.rank), device=process_group.device)
    everyone = [torch.empty_like(mine) for _ in range(process_group.world_size)]
    dist.all_gather(everyone, mine)
    assert [part[0].item() for part in everyone] == list(range(process_group.world_size))
