"""Collectives: whether the values are right, and how fast they come.

algbw and busbw as nccl-tests defines them (NVIDIA/nccl-tests: doc/PERFORMANCE.md): algbw is
bytes / time, busbw of an all-reduce over n ranks is algbw x 2(n-1)/n. The slowest rank is the
result.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.measure.statistics import Interval, summarise
from pytest_gpucluster.measure.timing import batches

if TYPE_CHECKING:
    import torch

    from pytest_gpucluster.ranks.group import ProcessGroup

BATCHES = 7


@dataclass(frozen=True)
class AllReduceSpeed:
    """busbw in GB/s of one size; ``slowest_rank`` by the median of its batches."""

    size_bytes: int
    dtype: str
    ranks: int
    iterations: int
    busbw: Interval
    algbw_gbs: float
    slowest_rank: int
    rank_spread: float  # slowest over fastest rank, by median time

    def conditions(self) -> dict[str, Any]:
        """What a reader needs to take the number again."""
        return {
            "collective": "all_reduce",
            "operation": "sum",
            "dtype": self.dtype,
            "bytes": self.size_bytes,
            "ranks": self.ranks,
            "iterations": self.iterations,
            "batches": self.busbw.batches,
            "confidence": round(self.busbw.confidence, 3),
            "algbw_gbs": round(self.algbw_gbs, 3),
            "in_place": True,
            "slowest_rank": self.slowest_rank,
            "rank_spread": round(self.rank_spread, 3),
            "method": "back to back, barrier before each batch, slowest rank, median of batches",
        }


@dataclass(frozen=True)
class WrongValues:
    """What one rank received wrong."""

    rank: int
    count: int
    total: int
    first_index: int
    found: float
    expected: float

    def describe(self) -> str:
        return (
            f"rank {self.rank}: {self.count} of {self.total} elements are wrong, first at index "
            f"{self.first_index}: found {self.found:g}, expected {self.expected:g}"
        )


def measure_all_reduce(
    group: ProcessGroup, size_bytes: int, dtype: torch.dtype, budget_s: float
) -> AllReduceSpeed:
    """Time all-reduces of ``size_bytes`` for about ``budget_s`` seconds, in place."""
    import torch
    import torch.distributed as dist

    count = max(1, size_bytes // dtype.itemsize)
    # Random bits load links and switches as real gradients do; that sums overflow in the end
    # changes nothing about the time. Values have a pass of their own.
    tensor = torch.empty(count, dtype=dtype, device=group.device)
    times, iterations = batches(
        group, lambda: dist.all_reduce(tensor), tensor.normal_, BATCHES, budget_s
    )
    moved = count * dtype.itemsize
    factor = 2 * (group.world_size - 1) / group.world_size
    slowest = [max(batch) for batch in times]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    return AllReduceSpeed(
        size_bytes=moved,
        dtype=str(dtype).removeprefix("torch."),
        ranks=group.world_size,
        iterations=iterations,
        busbw=summarise([moved / seconds / 1e9 * factor for seconds in slowest]),
        algbw_gbs=moved / statistics.median(slowest) / 1e9,
        slowest_rank=medians.index(max(medians)),
        rank_spread=max(medians) / min(medians),
    )


def verify_all_reduce(
    group: ProcessGroup, count: int, dtype: torch.dtype, seed: int
) -> list[WrongValues]:
    """All-reduce random data and compare every element on every rank.

    The data are whole numbers small enough for every partial sum to be exact in ``dtype``, so
    that any order of summation must give the same bits. All ranks return the same list.
    """
    import torch.distributed as dist

    limit = largest_exact_term(dtype, group.world_size)
    expected = sum(
        (_data(count, dtype, limit, seed, rank) for rank in range(1, group.world_size)),
        start=_data(count, dtype, limit, seed, 0),
    )
    tensor = _data(count, dtype, limit, seed, group.rank).to(group.device)
    dist.all_reduce(tensor)
    received = tensor.cpu()
    wrong = (received != expected).nonzero().flatten()
    mine = None
    if len(wrong):
        first = int(wrong[0])
        mine = [len(wrong), first, float(received[first]), float(expected[first])]
    return [
        WrongValues(rank, int(entry[0]), count, int(entry[1]), entry[2], entry[3])
        for rank, entry in enumerate(group.exchange(mine))
        if entry is not None
    ]


def largest_exact_term(dtype: torch.dtype, world_size: int) -> int:
    """The largest whole number of which ``world_size`` can be summed exactly in ``dtype``."""
    import torch

    if dtype.is_floating_point:
        exact = int(2 / torch.finfo(dtype).eps)  # whole numbers up to here have no gaps
    else:
        exact = torch.iinfo(dtype).max
    return max(1, min(exact // world_size, 10_000))


def _data(count: int, dtype: torch.dtype, limit: int, seed: int, rank: int) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(seed * 100_003 + rank)
    return torch.randint(-limit, limit + 1, (count,), generator=generator).to(dtype)
