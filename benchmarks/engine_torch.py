"""torch's own harnesses over trivial all-reduce tests, timed: run by engine.py, one mode each.

``python engine_torch.py MODE RANKS TESTS`` prints one line of JSON. MODE is ``continuous``
(MultiProcContinuousTest), ``process`` (MultiProcessTestCase) or ``spawn`` (torch.multiprocessing
per test). Needs the package expecttest.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
import unittest
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.testing._internal.common_distributed import (
    MultiProcContinuousTest,
    MultiProcessTestCase,
)

MODE, RANKS, TESTS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def check() -> None:
    """The trivial test: one all-reduce of one number, and its value."""
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


def memory_mb() -> list[float]:
    """USS of each rank (the children that run torch), in MB."""
    used = []
    for child in psutil.Process().children(recursive=True):
        try:
            used.append(child.memory_full_info().uss / 1e6)
        except psutil.Error:
            continue
    return sorted(used, reverse=True)[:RANKS]


class Continuous(MultiProcContinuousTest):
    """One group for all tests; ranks are kept."""

    world_size = RANKS

    @classmethod
    def backend_str(cls) -> str:
        return "gloo"

    @classmethod
    def device_type(cls) -> str:
        return "cpu"


class PerTest(MultiProcessTestCase):
    """New processes for each test."""

    @property
    def world_size(self) -> int:
        return RANKS

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


def _in_group(self: Any) -> None:
    store = dist.FileStore(self.file_name, self.world_size)
    dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
    check()
    dist.destroy_process_group()


for number in range(TESTS):
    setattr(Continuous, f"test_{number:03}", lambda self: check())
    setattr(PerTest, f"test_{number:03}", _in_group)


class Stopwatch(unittest.TestResult):
    """Notes when each test starts, and the ranks' memory once in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[float] = []
        self.memory: list[float] = []

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.starts.append(time.perf_counter())

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        if MODE == "continuous" and len(self.starts) == TESTS // 2 + 1:
            self.memory = memory_mb()


def _spawned(rank: int, file: str) -> None:
    store = dist.FileStore(file, RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    check()
    dist.destroy_process_group()


def spawn_each() -> tuple[list[float], list[float]]:
    starts: list[float] = []
    for _ in range(TESTS):
        starts.append(time.perf_counter())
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_spawned, args=(f"{folder}/rendezvous",), nprocs=RANKS)
    return starts, []


def main() -> None:
    if MODE == "spawn":
        starts, memory = spawn_each()
    else:
        case = Continuous if MODE == "continuous" else PerTest
        result = Stopwatch()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        problems = [text for _, text in (*result.failures, *result.errors)]
        if problems or result.skipped or len(result.starts) != TESTS:
            raise SystemExit(f"{MODE}: {result}\n{problems[:1]}\n{result.skipped[:1]}")
        starts, memory = result.starts, result.memory
    starts.append(time.perf_counter())
    times = [after - before for before, after in itertools.pairwise(starts)]
    print(json.dumps({"seconds": times, "memory_mb": memory, "leader_cpu_s": None}))


if __name__ == "__main__":
    main()
