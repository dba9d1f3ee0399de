"""A pytest plugin for engine.py: when each test starts, what the leader spends, ranks' memory."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

import psutil
import pytest

_starts: list[float] = []
_cpu: list[float] = []
_memory: list[float] = []


class Stopwatch:
    """Only in the session that leads."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        _starts.append(time.perf_counter())
        _cpu.append(time.process_time())

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        if len(_starts) == int(os.environ["BENCHMARK_TESTS"]) // 2 + 1:
            _memory.extend(memory_mb())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        _starts.append(time.perf_counter())
        _cpu.append(time.process_time())
        told = {
            "seconds": _differences(_starts),
            "leader_cpu_s": _differences(_cpu),
            "memory_mb": _memory,
            "exit_code": int(exitstatus),
        }
        Path(os.environ["BENCHMARK_OUT"]).write_text(json.dumps(told), encoding="utf-8")


def _differences(values: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(values)]


def memory_mb() -> list[float]:
    """USS of each rank in MB: the grandchildren, as ranks come from a fork server."""
    ranks = [
        grandchild
        for child in psutil.Process().children()
        for grandchild in child.children(recursive=True)
    ]
    used = []
    for rank in ranks:
        try:
            used.append(rank.memory_full_info().uss / 1e6)
        except psutil.Error:
            continue
    return sorted(used, reverse=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(), "benchmark-stopwatch")
