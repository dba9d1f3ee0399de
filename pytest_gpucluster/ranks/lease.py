"""One user of a GPU or CPU core at a time, across xdist workers and separate pytest runs.

A lease is an OS file lock: it vanishes with its holder, however that ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pytest_gpucluster.ranks.lock_files import (
    TELL_AFTER_S,
    holder,
    make_private,
    opened,
    pause,
    take,
    taken,
)

QUEUE = "cores"  # held while cores are collected: one waiter at a time, in turn
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
    names the holder. Raises `OSError` if the folder is somebody else's or cannot be used.
    """
    place = folder or lease_folder()
    make_private(place)
    with contextlib.ExitStack() as held:
        for resource in sorted(set(resources)):
            lock = held.enter_context(opened(place, resource))
            take(lock, functools.partial(_tell, on_wait, resource))
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
    make_private(place)
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
        with opened(place, QUEUE) as queue:
            take(queue, lambda first: tell(f" after {first}", usable))
            _collect(place, usable, wanted, held, lambda others: tell("", others))
        yield


def _tell(on_wait: Callable[[str], None], resource: str, holder: str) -> None:
    on_wait(f"waiting for {resource}, held by {holder}")


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
    while wanted:
        for core in list(others):
            with contextlib.ExitStack() as attempt:
                if taken(attempt.enter_context(opened(place, f"core{core}"))):
                    held.push(attempt.pop_all())
                    others.remove(core)
                    wanted -= 1
            if not wanted:
                return
        waited = time.monotonic() - started
        if waited >= TELL_AFTER_S:
            on_wait(others)
        pause(waited)


def _held_by(place: Path, cores: Iterable[int]) -> str:
    """``, held by process 7 (pytest tests), process 8``, or nothing."""
    holders: dict[str, None] = {}
    for core in cores:
        with opened(place, f"core{core}") as lock:
            if not taken(lock):
                holders[holder(lock)] = None
    names = list(holders)[:MOST_HOLDERS]
    more = f" and {len(holders) - len(names)} more" if len(holders) > len(names) else ""
    return f", held by {', '.join(names)}{more}" if names else ""
