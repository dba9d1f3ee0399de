"""Faults injected into ranks, to prove that a check can fail.

A pytest plugin: ``GPUCLUSTER_FAULT=corrupt:1 pytest -p pytest_gpucluster.testing.faults ...``
makes rank 1 receive a wrong value from every collective; ``kill:1:test_sum`` kills it in tests
whose id contains ``test_sum``. Ranks run the same command line as the session, so they load it
too; the session itself is ``leader``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from pytest_gpucluster.ranks.keys import RANK
from pytest_gpucluster.testing.patching import (
    after_all_reduce,
    after_collectives,
    after_ddp_reduction,
    after_product,
    patched,
    then,
)

VARIABLE = "GPUCLUSTER_FAULT"
EVERY_RANK = "all"
LEADER = "leader"
SLOW_DOWN_S = 0.15


def corrupt_all_reduce() -> Iterator[None]:
    """One element of what an all-reduce delivers is off by one."""
    import torch.distributed as dist

    return after_all_reduce(dist, lambda tensor: tensor.view(-1)[0].add_(1))


def drop_last_element() -> Iterator[None]:
    """All-reduces of one size, 262147 elements, lose their last element."""
    import torch.distributed as dist

    def lose(tensor: Any) -> None:
        if tensor.numel() == 262_147:
            tensor.view(-1)[-1] = 0

    return after_all_reduce(dist, lose)


def slow_all_reduce() -> Iterator[None]:
    """Every all-reduce takes 0.15 s longer."""
    import torch.distributed as dist

    return after_all_reduce(dist, lambda tensor: time.sleep(SLOW_DOWN_S))


def die_in_all_reduce() -> Iterator[None]:
    """The process is killed in its first all-reduce."""
    import torch.distributed as dist

    return after_all_reduce(dist, lambda tensor: os.kill(os.getpid(), signal.SIGKILL))


def flip_gradient() -> Iterator[None]:
    """After DDP's reduction one gradient has one bit flipped."""

    def flip(bucket: Any) -> Any:
        import torch

        bucket.view(torch.int64)[3] ^= 1
        return bucket

    return after_ddp_reduction(flip)


def scale_gradients() -> Iterator[None]:
    """DDP's reduction multiplies the gradients by 1.001."""
    return after_ddp_reduction(lambda bucket: bucket.mul_(1.001))


def nan_gradient() -> Iterator[None]:
    """DDP's reduction leaves a NaN."""

    def spoil(bucket: Any) -> Any:
        bucket[0] = float("nan")
        return bucket

    return after_ddp_reduction(spoil)


def wrong_product() -> Iterator[None]:
    """Matrix products have one wrong element."""
    return after_product(lambda product: product.view(-1)[5].add_(1))


def slow_product() -> Iterator[None]:
    """Matrix products take 0.15 s longer."""
    return after_product(lambda product: time.sleep(SLOW_DOWN_S))


def slow_send() -> Iterator[None]:
    """Point-to-point sends and receives take 0.15 s longer."""
    import torch.distributed as dist

    with contextlib.ExitStack() as stack:
        for name in ("send", "recv"):
            stack.enter_context(patched(dist, name, then(lambda *given: time.sleep(SLOW_DOWN_S))))
        yield


def corrupt_send() -> Iterator[None]:
    """Point-to-point sends deliver one wrong element."""
    import torch.distributed as dist

    original = dist.send

    def send(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        wrong = tensor.clone()
        wrong.view(-1)[7] += 1
        return original(wrong, *args, **kwargs)

    with patched(dist, "send", lambda _: send):
        yield


def corrupt_file() -> Iterator[None]:
    """What is flushed to a disk has one byte changed."""

    def change(handle: int) -> None:
        os.pwrite(handle, b"\x00" if os.pread(handle, 1, 1000) != b"\x00" else b"\x01", 1000)

    with patched(os, "fsync", then(change)):
        yield


def kill() -> Iterator[None]:
    """The process is killed as the test begins."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield


def stop() -> Iterator[None]:
    """The process is stopped as the test begins, and hangs."""
    os.kill(os.getpid(), signal.SIGSTOP)
    yield


def segfault() -> Iterator[None]:
    """The process crashes once the test has passed."""
    yield
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> Iterator[None]:
    """The process exits as the test begins, with code 0."""
    return _before(lambda: os._exit(0))


def raise_error() -> Iterator[None]:
    """An exception is raised as the test begins."""

    def fail() -> None:
        raise RuntimeError("an injected error")

    return _before(fail)


def _before(effect: Callable[[], object]) -> Iterator[None]:
    effect()
    yield


def delay() -> Iterator[None]:
    """Every collective takes 0.15 s longer."""
    return after_collectives(lambda tensor: time.sleep(SLOW_DOWN_S))


def corrupt() -> Iterator[None]:
    """One element of what any collective delivers is off by one."""
    return after_collectives(lambda tensor: tensor.view(-1)[0].add_(1))


FAULTS: dict[str, Callable[[], Iterator[None]]] = {
    fault.__name__: fault
    for fault in (
        corrupt,
        corrupt_all_reduce,
        corrupt_file,
        corrupt_send,
        delay,
        die_in_all_reduce,
        drop_last_element,
        flip_gradient,
        kill,
        leave,
        nan_gradient,
        raise_error,
        scale_gradients,
        segfault,
        slow_all_reduce,
        slow_product,
        slow_send,
        stop,
        wrong_product,
    )
}


def pytest_configure(config: pytest.Config) -> None:
    fault, rank, _ = _wanted()
    if fault not in FAULTS or not (rank in (EVERY_RANK, LEADER) or rank.isdecimal()):
        raise pytest.UsageError(
            f"{VARIABLE}={os.environ.get(VARIABLE)!r}: expected FAULT:RANK or FAULT:RANK:TEST with "
            "a rank number, 'all' (ranks) or 'leader', a part of a test's id, and one of "
            f"{', '.join(FAULTS)}."
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Inject the fault on the chosen rank while a test runs."""
    fault, rank, test = _wanted()
    mine = item.config.stash.get(RANK, None)
    here = {LEADER} if mine is None else {EVERY_RANK, str(mine.start.rank)}
    if rank not in here or test not in item.nodeid:
        return (yield)
    with contextlib.contextmanager(FAULTS[fault])():
        return (yield)


def _wanted() -> tuple[str, str, str]:
    """The fault, the rank, and what the id of the test must contain."""
    fault, _, rest = os.environ.get(VARIABLE, "").partition(":")
    rank, _, test = rest.partition(":")
    return fault, rank, test
