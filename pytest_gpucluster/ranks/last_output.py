"""What a rank had printed when it died.

pytest captures output in unlinked files, which would vanish with the rank. So the leader
keeps its own handles on them. pytest empties them after each phase: what is left is the output
of the phase the rank died in.
"""

from __future__ import annotations

import contextlib
import os

LONGEST = 64 * 2**10  # bytes, the end is kept
STREAMS = {1: "stdout", 2: "stderr"}


def tap(pid: int) -> dict[int, int]:
    """Handles on the unlinked files behind the rank's standard output and error.

    Empty where the system does not allow it, and for a rank that captures nothing.
    """
    handles: dict[int, int] = {}
    for stream in STREAMS:
        with contextlib.suppress(OSError):
            handle = os.open(f"/proc/{pid}/fd/{stream}", os.O_RDONLY | os.O_NONBLOCK)
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
