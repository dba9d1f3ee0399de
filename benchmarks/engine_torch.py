"""torch's own harnesses over trivial all-reduce tests: run by engine.py, one in each process.

``python engine_torch.py MODE RANKS TESTS``, MODE ``continuous`` (MultiProcContinuousTest) or
``process`` (MultiProcessTestCase). Needs the package expecttest. One more test, the last, notes
the ranks' memory.
"""

from __future__ import annotations

import sys
import unittest
from typing import Any

import torch
import torch.distributed as dist
from engine_sampling import Clocks, note_memory
from torch.testing._internal.common_distributed import (
    MultiProcContinuousTest,
    MultiProcessTestCase,
)

MODE, RANKS, TESTS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


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


def _check(self: Any) -> None:
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == RANKS


def _check_and_note(self: Any) -> None:
    _check(self)
    note_memory()


def _in_group(body: Any) -> Any:
    def test(self: Any) -> None:
        store = dist.FileStore(self.file_name, RANKS)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=RANKS)
        body(self)
        dist.destroy_process_group()

    return test


# unittest runs the tests of a class in the order of their names.
for number in range(TESTS + 1):
    body = _check_and_note if number == TESTS else _check
    setattr(Continuous, f"test_{number:06}", body)
    setattr(PerTest, f"test_{number:06}", _in_group(body))


class Stopwatch(unittest.TestResult):
    """Reads the clocks when a test starts."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks = Clocks()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.clocks.read()


def main() -> None:
    case = Continuous if MODE == "continuous" else PerTest
    result = Stopwatch()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    problems = [text for _, text in (*result.failures, *result.errors, *result.skipped)]
    if problems or result.testsRun != TESTS + 1:
        said = problems[0] if problems else ""
        raise SystemExit(f"{result.testsRun} of {TESTS + 1} tests ran. {said}")
    result.clocks.write()


if __name__ == "__main__":
    main()
