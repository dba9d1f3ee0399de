"""Lock files that say who holds them, and a folder for them that nobody else can touch."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TELL_AFTER_S = 0.2  # shorter waits are not worth a line on the terminal
SHORTEST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05
LONGEST_NAME = 100  # of what a holder runs, in characters
RECORD = 1000  # bytes of a lock file; every record fills it, so none shines through another


def make_private(place: Path) -> None:
    """Make the folder if there is none. Raises `PermissionError` if it is somebody else's."""
    with contextlib.suppress(FileExistsError):  # a file, or a link that leads nowhere
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = place.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.getuid(), 0):
        raise PermissionError(
            f"{place} is no folder of yours (its owner is uid {status.st_uid}). Remove it, or set "
            "GPUCLUSTER_LEASES to a folder of your own."
        )


@contextlib.contextmanager
def opened(place: Path, resource: str) -> Iterator[int]:
    """The lock of a resource, not yet taken; let go of at the end."""
    path = place / f"{re.sub(r'[^A-Za-z0-9.-]', '_', resource)}.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise OSError(
            error.errno,
            f"the lease {path} cannot be opened: {error.strerror}. Set GPUCLUSTER_LEASES to a "
            "folder of your own on a local disk.",
        ) from error
    try:
        yield lock
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)  # now, even if a forked child has the file open
        os.close(lock)


def take(lock: int, on_wait: Callable[[str], None]) -> None:
    """Wait for a lock. ``on_wait`` is told its holder if that takes long."""
    started = time.monotonic()
    while not taken(lock):
        waited = time.monotonic() - started
        if waited >= TELL_AFTER_S:
            on_wait(holder(lock))
            fcntl.flock(lock, fcntl.LOCK_EX)  # woken at once, about in the order of arrival
            _sign(lock)
            return
        pause(waited)


def pause(waited_s: float) -> None:
    """A tenth of the time waited so far: nobody waits much longer than needed."""
    time.sleep(min(max(waited_s / 10, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))


def taken(lock: int) -> bool:
    """Take a lock if it is free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _sign(lock)
    return True


def _sign(lock: int) -> None:
    """Say in the lock file who holds it; what a free one says means nothing."""
    with contextlib.suppress(OSError):  # a full disk is no reason not to test
        os.pwrite(lock, _record(os.getpid()), 0)


def holder(lock: int) -> str:
    """``process 7 (pytest tests)``. The file may say anything."""
    try:
        record = json.loads(os.pread(lock, RECORD, 0))
        name = _printable(str(record.get("runs", "")))
        return f"process {int(record['pid'])}" + (f" ({name})" if name else "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "another process"


@functools.cache
def _record(pid: int) -> bytes:
    record = {"pid": pid, "runs": _printable(_what_runs())}
    return json.dumps(record, ensure_ascii=False).encode().ljust(RECORD)


def _what_runs() -> str:
    program, *arguments = sys.argv or [""]
    if program.startswith("-"):  # python -c, as which pytest-xdist starts its workers
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        return f"pytest-xdist worker {worker}" if worker else ""
    path = Path(program)
    name = path.parent.name if path.name == "__main__.py" else path.name
    return " ".join([name, *arguments])


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_NAME]
