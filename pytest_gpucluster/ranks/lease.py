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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

CPU = "cpu"  # the resource that CPU rehearsals share
RETRY_S = 0.05


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
    """Hold ``resources`` (GPU UUIDs, or `CPU`) exclusively.

    They are taken in sorted order, so two sessions never wait for each other in a ring.
    ``on_wait`` is called once with a sentence that names the holder if waiting is needed.
    """
    place = folder or lease_folder()
    _make_private(place)
    with contextlib.ExitStack() as stack:
        for resource in sorted(set(resources)):
            stack.enter_context(_one(place, resource, on_wait))
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
    name = re.sub(r"[^A-Za-z0-9.-]", "_", resource)
    lock = os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        told = False
        while not _taken(lock):
            if not told:
                on_wait(f"waiting for {resource}, held by {_holder(lock)}")
                told = True
            time.sleep(RETRY_S)
        # Said in the lock file itself: creating a file per test would cost more than the lock.
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "since": time.time()}).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(lock, 0)
            fcntl.flock(lock, fcntl.LOCK_UN)  # now, even if a forked child has the file open
    finally:
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
