"""How long an operation takes on this rank's device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from pytest_gpucluster.ranks.group import ProcessGroup


def time_iterations(run: Callable[[], object], iterations: int, device: torch.device) -> float:
    """Seconds per call of ``iterations`` back-to-back calls, without host synchronisation
    between them: CUDA events on a GPU, the monotonic clock on a CPU."""
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(iterations):
            run()
        return (time.perf_counter() - started) / iterations
    import torch

    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(iterations):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / iterations


def choose_iterations(seconds_per_call: float, batch_s: float, most: int = 1000) -> int:
    """How many calls fill a batch of ``batch_s`` seconds."""
    return max(1, min(most, round(batch_s / max(seconds_per_call, 1e-9))))


def batches(
    group: ProcessGroup,
    run: Callable[[], object],
    prepare: Callable[[], object],
    count: int,
    budget_s: float,
) -> tuple[list[list[float]], int]:
    """Seconds per call: one list over the ranks for each of ``count`` batches.

    ``prepare`` runs before each batch, untimed. Warm-up first; the number of iterations is
    agreed among the ranks (a collective needs the same on all) and fills the budget, in
    seconds. Returns the times and that number.
    """
    prepare()
    time_iterations(run, 2, group.device)
    trial = time_iterations(run, 3, group.device)
    iterations = choose_iterations(max(group.exchange(trial)), budget_s / count)
    mine = []
    for _ in range(count):
        prepare()
        group.barrier()
        mine.append(time_iterations(run, iterations, group.device))
    by_rank = group.exchange(mine)
    return [list(batch) for batch in zip(*by_rank, strict=True)], iterations
