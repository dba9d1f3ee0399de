"""What engine.py's sessions and ranks note about themselves: clocks and memory. Imports little,
because what it imports would count as the ranks' memory.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

KB = 1024


class Clocks:
    """The clocks of the process that leads the ranks, read at the start of each test."""

    def __init__(self) -> None:
        self._read: list[tuple[float, float, float | None]] = []

    def read(self) -> None:
        self._read.append((time.perf_counter(), time.process_time(), _ready_s()))

    def write(self) -> None:
        """Seconds from each start to the next: of the wall, of CPU, and ready without a core."""
        wall, cpu, ready = zip(*self._read, strict=True)
        told = {
            "wall_s": _differences(wall),
            "cpu_s": _differences(cpu),
            "ready_s": None if None in ready else _differences(ready),
        }
        Path(os.environ["BENCHMARK_CLOCKS"]).write_text(json.dumps(told), encoding="utf-8")


def _ready_s() -> float | None:
    """Seconds in which this process could have run but another had the core; None if unknown.

    Second field of schedstat: https://docs.kernel.org/scheduler/sched-stats.html
    """
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _differences(values: tuple[float, ...]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(values)]


def note_memory() -> None:
    """Write this rank's USS in MB: the private pages of its memory, psutil's definition."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    uss = sum(KB * int(line.split()[1]) for line in rollup if line.startswith("Private_"))
    Path(os.environ["BENCHMARK_MEMORY"], str(os.getpid())).write_text(str(uss / 1e6))
