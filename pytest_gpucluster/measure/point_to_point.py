"""Bandwidth between two ranks, every pair of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.localise.rounds import rounds
from pytest_gpucluster.measure.statistics import Interval, summarise
from pytest_gpucluster.measure.timing import time_iterations

if TYPE_CHECKING:
    import torch

    from pytest_gpucluster.ranks.group import ProcessGroup

Pair = tuple[int, int]
BATCHES = 7


def measure_pairs(
    group: ProcessGroup, size_bytes: int, iterations: int
) -> tuple[dict[Pair, Interval], dict[Pair, int]]:
    """Send ``size_bytes`` from the lower to the higher rank of every pair and back.

    Returns GB/s per direction (both directions one after the other) and, for pairs that
    delivered wrong data, how many elements differed. Disjoint pairs run at the same time; all
    ranks return the same.
    """
    import torch

    count = size_bytes // 4
    buffer = torch.empty(count, dtype=torch.float32, device=group.device)
    seconds: dict[Pair, list[float]] = {}
    wrong: dict[Pair, int] = {}
    for pairs in rounds(range(group.world_size)):
        mine = next((pair for pair in pairs if group.rank in pair), None)
        result = _play(group, mine, buffer, iterations) if mine is not None else None
        for answer in filter(None, group.exchange(result)):
            pair = (int(answer["pair"][0]), int(answer["pair"][1]))
            seconds.setdefault(pair, answer["seconds"])
            if answer["wrong"]:
                wrong[pair] = answer["wrong"]
    moved = 2 * count * 4
    return (
        {pair: summarise([moved / s / 1e9 for s in times]) for pair, times in seconds.items()},
        wrong,
    )


def _play(
    group: ProcessGroup, pair: Pair, buffer: torch.Tensor, iterations: int
) -> dict[str, object]:
    import torch
    import torch.distributed as dist

    sends_first = group.rank == pair[0]
    other = pair[1] if sends_first else pair[0]

    def there_and_back() -> None:
        if sends_first:
            dist.send(buffer, other)
            dist.recv(buffer, other)
        else:
            dist.recv(buffer, other)
            dist.send(buffer, other)

    def pattern(rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank)
        return torch.randn(len(buffer), generator=generator)

    buffer.copy_(pattern(pair[0]) if sends_first else torch.zeros(len(buffer)))
    there_and_back()  # warms the connection up; afterwards both hold the lower rank's data
    differing = int((buffer.cpu() != pattern(pair[0])).sum())
    times = [time_iterations(there_and_back, iterations, group.device) for _ in range(BATCHES)]
    return {"pair": pair, "seconds": times, "wrong": differing}
