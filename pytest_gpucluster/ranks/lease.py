"""One user of a GPU at a time, across xdist workers and separate pytest runs.

A lease is an OS file lock: it vanishes with its holder, however that ends.
"""

from __future__ import annotations

import contextlib
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
    from filelock import FileLock, Timeout

    name = re.sub(r"[^A-Za-z0-9.-]", "_", resource)
    lock = FileLock(place / f"{name}.lock")
    holder = place / f"{name}.holder"
    told = False
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout:
            if not told:
                on_wait(f"waiting for {resource}, held by {_holder(holder)}")
                told = True
            time.sleep(RETRY_S)
    try:
        holder.write_text(json.dumps({"pid": os.getpid(), "since": time.time()}))
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _holder(path: Path) -> str:
    try:
        return f"process {int(json.loads(path.read_text())['pid'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
