"""One user of a GPU or CPU core at a time, across xdist workers and separate pytest runs.

A lease is an OS file lock: it vanishes with its holder, however that ends.
"""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

QUEUE = "cores"  # held while cores are collected: one waiter at a time, in turn
TELL_AFTER_S = 0.2  # shorter waits are not worth a line on the terminal
SHORTEST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05
LONGEST_NAME = 100  # of what a holder runs, in characters
RECORD = 1000  # bytes of a lock file; every record fills it, so none shines through another
MOST_HOLDERS = 5  # that a sentence names


def lease_folder() -> Path:
    """The folder of this host's leases: ``GPUCLUSTER_LEASES`` or one per user under /tmp.

    Sites where /tmp is private to a job set the variable to a local folder all jobs see.
    """
    named = os.environ.get("GPUCLUSTER_LEASES")
    return Path(named) if named else Path(f"/tmp/gpucluster-leases-{os.getuid()}")  # noqa: S108


@contextlib.contextmanager
def lease(
    resources: Iterable[str],
    on_wait: Callable[[str], None],
    folder: Path | None = None,
) -> Iterator[None]:
    """Hold ``resources`` (GPU UUIDs) exclusively.

    They are taken in sorted order, so two sessions never wait for each other in a ring.
    ``on_wait`` is called once for each resource that needs a longer wait, with a sentence that
    names the holder. Raises `PermissionError` if the folder belongs to somebody else.
    """
    place = folder or lease_folder()
    _make_private(place)
    with contextlib.ExitStack() as held:
        for resource in sorted(set(resources)):
            lock = held.enter_context(_opened(place, resource))
            sentence = f"waiting for {resource}, held by "
            _take(lock, lambda holder, begun=sentence: on_wait(begun + holder))
        yield


@contextlib.contextmanager
def lease_cores(
    count: int,
    on_wait: Callable[[str], None],
    folder: Path | None = None,
    cores: Sequence[int] | None = None,
) -> Iterator[None]:
    """Hold any ``count`` of ``cores`` (those this process may use), or all if there are fewer.

    Cores are collected one waiter at a time: nobody holds some while another needs them, and a
    large request is not starved by small ones. ``on_wait`` is called at most once, with a
    sentence that names who holds cores and who is first in the queue. Raises as `lease` does.
    """
    place = folder or lease_folder()
    _make_private(place)
    usable = sorted(os.sched_getaffinity(0) if cores is None else cores)
    wanted = min(count, len(usable))
    told = False

    def tell(turn: str, others: Sequence[int]) -> None:
        nonlocal told
        if not told:
            told = True
            what = f"waiting for {wanted} CPU core{'' if wanted == 1 else 's'}{turn}"
            on_wait(what + _held_by(place, others))

    with contextlib.ExitStack() as held:
        with _opened(place, QUEUE) as queue:
            _take(queue, lambda first: tell(f" after {first}", usable))
            _collect(place, usable, wanted, held, lambda others: tell("", others))
        yield


def _collect(
    place: Path,
    usable: Sequence[int],
    wanted: int,
    held: contextlib.ExitStack,
    on_wait: Callable[[Sequence[int]], None],
) -> None:
    """Put locks of ``wanted`` cores into ``held``; only who holds the queue may call this."""
    started = time.monotonic()
    others = list(usable)
    while True:
        for core in list(others):
            if len(usable) - len(others) == wanted:
                return
            with contextlib.ExitStack() as attempt:
                if _taken(attempt.enter_context(_opened(place, f"core{core}"))):
                    held.push(attempt.pop_all())
                    others.remove(core)
        if len(usable) - len(others) == wanted:
            return
        waited = time.monotonic() - started
        if waited >= TELL_AFTER_S:
            on_wait(others)
        _pause(waited)


def _held_by(place: Path, cores: Iterable[int]) -> str:
    """``, held by process 7 (pytest tests), process 8``, or nothing."""
    holders: dict[str, None] = {}
    for core in cores:
        with _opened(place, f"core{core}") as lock:
            if not _taken(lock):
                holders[_holder(lock)] = None
    names = list(holders)[:MOST_HOLDERS]
    more = f" and {len(holders) - len(names)} more" if len(holders) > len(names) else ""
    return f", held by {', '.join(names)}{more}" if names else ""


def _make_private(place: Path) -> None:
    with contextlib.suppress(FileExistsError):  # a file, or a link that leads nowhere
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = place.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.getuid(), 0):
        raise PermissionError(
            f"{place} is no folder of yours (its owner is uid {status.st_uid}). Remove it, or set "
            "GPUCLUSTER_LEASES to a folder of your own."
        )


@contextlib.contextmanager
def _opened(place: Path, resource: str) -> Iterator[int]:
    """The lock of a resource, not yet taken; let go of at the end."""
    path = place / f"{re.sub(r'[^A-Za-z0-9.-]', '_', resource)}.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except PermissionError as error:
        raise PermissionError(
            f"{path} cannot be opened ({error.strerror}). Set GPUCLUSTER_LEASES to a folder of "
            "your own."
        ) from error
    try:
        yield lock
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)  # now, even if a forked child has the file open
        os.close(lock)


def _take(lock: int, on_wait: Callable[[str], None]) -> None:
    """Wait for a lock. ``on_wait`` is told its holder if that takes long."""
    started = time.monotonic()
    while not _taken(lock):
        waited = time.monotonic() - started
        if waited >= TELL_AFTER_S:
            on_wait(_holder(lock))
            fcntl.flock(lock, fcntl.LOCK_EX)  # woken at once, about in the order of arrival
            return _sign(lock)
        _pause(waited)


def _pause(waited_s: float) -> None:
    """A tenth of the time waited so far: nobody waits much longer than needed."""
    time.sleep(min(max(waited_s / 10, SHORTEST_PAUSE_S), LONGEST_PAUSE_S))


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _sign(lock)
    return True


def _sign(lock: int) -> None:
    """Say in the lock file who holds it; what a free one says means nothing."""
    record = {"pid": os.getpid(), "runs": _what_runs()}
    with contextlib.suppress(OSError):  # a full disk is no reason not to test
        os.pwrite(lock, json.dumps(record, ensure_ascii=False).encode().ljust(RECORD), 0)


def _holder(lock: int) -> str:
    """``process 7 (pytest tests)``. The file may say anything."""
    try:
        record = json.loads(os.pread(lock, RECORD, 0))
        name = _printable(str(record.get("runs", "")))
        return f"process {int(record['pid'])}" + (f" ({name})" if name else "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "another process"


@functools.cache
def _what_runs() -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        return _printable(f"pytest-xdist worker {worker}")
    program, *arguments = sys.argv or [""]
    if program.startswith("-"):
        return ""  # python -c
    name = Path(program).name
    return _printable(
        " ".join([Path(program).parent.name if name == "__main__.py" else name, *arguments])
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_NAME]
