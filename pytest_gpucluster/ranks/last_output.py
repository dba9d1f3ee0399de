"""What a rank had printed when it died.

pytest captures output in unlinked files, which would vanish with the rank. So the leader
keeps its own handles on them. pytest empties them after each phase: what is left is the output
of the phase the rank died in.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import pytest

LONGEST = 64 * 2**10  # bytes, the end is kept
STREAMS = {1: "stdout", 2: "stderr"}


def show(config: pytest.Config) -> list[int]:
    """On a rank: handles on what its standard output and error are during a test."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        return []
    capture.resume_global_capture()
    try:
        return [os.open(f"/proc/self/fd/{stream}", os.O_RDONLY) for stream in STREAMS]
    except OSError:
        return []
    finally:
        capture.suspend_global_capture(in_=False)


def tap(pid: int, shown: Sequence[int]) -> dict[int, int]:
    """On the leader: its own handles on those files, if they are pytest's unlinked ones.

    Empty where the system does not allow it, and for a rank that captures nothing.
    """
    handles: dict[int, int] = {}
    for stream, number in zip(STREAMS, shown, strict=False):
        with contextlib.suppress(OSError):
            handle = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
            if os.fstat(handle).st_nlink:
                os.close(handle)
            else:
                handles[stream] = handle
    return handles


def read(handles: dict[int, int]) -> list[tuple[str, str]]:
    """(``stdout``, text) and (``stderr``, text) as far as there is any."""
    said = []
    for stream, handle in handles.items():
        with contextlib.suppress(OSError):
            size = os.fstat(handle).st_size
            data = os.pread(handle, LONGEST, max(0, size - LONGEST))
            if data.strip():
                said.append((STREAMS[stream], data.decode(errors="replace")))
    return said


def close(handles: dict[int, int]) -> None:
    for handle in handles.values():
        os.close(handle)
    handles.clear()
