"""The session's terminal for ranks: their output as it comes, and a debugger on one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.ranks.rank import Terminal


def wants_debugger(config: pytest.Config) -> bool:
    return bool(config.getoption("usepdb", False) or config.getoption("trace", False))


def debug_rank(config: pytest.Config, chosen: int | None) -> int | None:
    """The rank to debug; raises `pytest.UsageError` if a debugger was asked for without one."""
    if chosen is None and wants_debugger(config):
        raise pytest.UsageError(
            "--pdb and --trace of a test on several ranks need to know which rank gets the "
            "terminal: add --gpucluster-debug-rank=0."
        )
    if chosen is not None and hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "--gpucluster-debug-rank needs the terminal, which xdist's workers do not have. "
            "Run without -n."
        )
    return chosen


def real_terminal(config: pytest.Config) -> Terminal:
    """Handles on what stood behind standard input and output before pytest captured them."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.suspend_global_capture(in_=True)
    try:
        return (
            Connection(os.dup(0), writable=False),
            Connection(os.dup(1), readable=False),
        )
    finally:
        capture.resume_global_capture()


class Stream:
    """With ``-s``: what ranks print goes to the session's output, each line with its rank."""

    def __init__(self, logs: Path, write_line: Callable[[str], object]) -> None:
        self._logs = logs
        self._write_line = write_line
        self._read: dict[Path, int] = {path: path.stat().st_size for path in self._files()}
        self._partial: dict[Path, bytes] = {}

    def pump(self) -> None:
        """Show what the ranks have printed since the last call."""
        for path in self._files():
            for line in self._new_lines(path):
                rank = path.stem.removeprefix("rank")
                self._write_line(f"[rank {rank}] {line.decode(errors='replace')}")

    def _files(self) -> Iterable[Path]:
        return sorted(self._logs.glob("rank*.out"), key=lambda path: (len(path.name), path.name))

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
            self._read[path] = file.tell()
        *lines, rest = (self._partial.get(path, b"") + data).split(b"\n")
        self._partial[path] = rest
        yield from lines
