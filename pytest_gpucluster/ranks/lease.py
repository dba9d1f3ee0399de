"""One user of a GPU at a time, across xdist workers and separate pytest runs.

A lease is an OS file lock: it vanishes with its holder, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

RETRY_S = 0.05
QUEUE = "cores"  # held while cores are collected: one waiter at a time, in turn


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
    ``on_wait`` is called once with a sentence that names the holder if waiting is needed.
    """
    place = folder or lease_folder()
    _make_private(place)
    with contextlib.ExitStack() as stack:
        for resource in sorted(set(resources)):
            stack.enter_context(_one(place, resource, on_wait))
        yield


@contextlib.contextmanager
def lease_cores(
    count: int,
    on_wait: Callable[[str], None],
    folder: Path | None = None,
    cores: Sequence[int] | None = None,
) -> Iterator[None]:
    """Hold any ``count`` of this process's CPU cores, or all if there are fewer.

    Cores are collected one waiter at a time: nobody holds some while another needs them, and a
    large request is not starved by small ones. ``on_wait`` is called as for `lease`.
    """
    place = folder or lease_folder()
    _make_private(place)
    usable = sorted(os.sched_getaffinity(0)) if cores is None else list(cores)
    wanted = min(count, len(usable))
    told: list[str] = []

    def tell_once(text: str) -> None:
        if not told:
            told.append(text)
            on_wait(text)

    with contextlib.ExitStack() as stack:
        with _one(place, QUEUE, lambda _: None):
            held = 0
            while held < wanted:
                holders = set()
                for core in list(usable):
                    lock = _open(place, f"core{core}")
                    if held < wanted and _taken(lock):
                        usable.remove(core)
                        held += 1
                        stack.enter_context(_holding(lock))
                        continue
                    holders.add(_holder(lock))
                    os.close(lock)
                if held < wanted:
                    names = ", ".join(sorted(holders))
                    tell_once(f"waiting for {wanted} CPU cores, held by {names}")
                    time.sleep(RETRY_S)
        yield


def _make_private(place: Path) -> None:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = place.lstat()
    if place.is_symlink() or status.st_uid not in (os.getuid(), 0):
        raise PermissionError(
            f"{place} belongs to somebody else (uid {status.st_uid}). Remove it, or set "
            "GPUCLUSTER_LEASES to a folder of your own."
        )


@contextlib.contextmanager
def _one(place: Path, resource: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    lock = _open(place, resource)
    try:
        told = False
        while not _taken(lock):
            if not told:
                on_wait(f"waiting for {resource}, held by {_holder(lock)}")
                told = True
            time.sleep(RETRY_S)
    except BaseException:
        os.close(lock)
        raise
    with _holding(lock):
        yield


def _open(place: Path, resource: str) -> int:
    name = re.sub(r"[^A-Za-z0-9.-]", "_", resource)
    return os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


@contextlib.contextmanager
def _holding(lock: int) -> Iterator[None]:
    """Say who holds a lock that has been taken; let go of it at the end."""
    try:
        # Said in the lock file itself: creating a file per test would cost more than the lock.
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "since": time.time()}).encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            fcntl.flock(lock, fcntl.LOCK_UN)  # now, even if a forked child has the file open
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> str:
    try:
        return f"process {int(json.loads(os.pread(lock, 1000, 0))['pid'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
