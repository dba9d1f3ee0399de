"""Faults injected into ranks, to prove that a check can fail.

A pytest plugin: ``GPUCLUSTER_FAULT=corrupt_all_reduce:1 pytest -p pytest_gpucluster.testing.faults
...`` makes rank 1 receive a wrong value from every all-reduce. Ranks run the same command line
as the session, so they load it too; the session itself is ``leader``.
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

VARIABLE = "GPUCLUSTER_FAULT"
EVERY_RANK = "all"
LEADER = "leader"
SLOW_DOWN_S = 0.15


def corrupt_all_reduce() -> Iterator[None]:
    """One element of what an all-reduce delivers is off by one."""
    import torch.distributed as dist

    return _after_all_reduce(dist, lambda tensor: tensor.view(-1)[0].add_(1))


def drop_last_element() -> Iterator[None]:
    """All-reduces of one size, 262147 elements, lose their last element."""
    import torch.distributed as dist

    def lose(tensor: Any) -> None:
        if tensor.numel() == 262_147:
            tensor.view(-1)[-1] = 0

    return _after_all_reduce(dist, lose)


def slow_all_reduce() -> Iterator[None]:
    """Every all-reduce takes 0.15 s longer."""
    import torch.distributed as dist

    return _after_all_reduce(dist, lambda tensor: time.sleep(SLOW_DOWN_S))


def die_in_all_reduce() -> Iterator[None]:
    """The process is killed in its first all-reduce."""
    import torch.distributed as dist

    return _after_all_reduce(dist, lambda tensor: os.kill(os.getpid(), signal.SIGKILL))


def flip_gradient() -> Iterator[None]:
    """After DDP's reduction one gradient has one bit flipped."""

    def flip(bucket: Any) -> Any:
        import torch

        bucket.view(torch.int64)[3] ^= 1
        return bucket

    return _after_ddp_reduction(flip)


def scale_gradients() -> Iterator[None]:
    """DDP's reduction multiplies the gradients by 1.001."""
    return _after_ddp_reduction(lambda bucket: bucket.mul_(1.001))


def nan_gradient() -> Iterator[None]:
    """DDP's reduction leaves a NaN."""

    def spoil(bucket: Any) -> Any:
        bucket[0] = float("nan")
        return bucket

    return _after_ddp_reduction(spoil)


def wrong_product() -> Iterator[None]:
    """Matrix products have one wrong element."""
    return _after_product(lambda product: product.view(-1)[5].add_(1))


def slow_product() -> Iterator[None]:
    """Matrix products take 0.15 s longer."""
    return _after_product(lambda product: time.sleep(SLOW_DOWN_S))


def slow_send() -> Iterator[None]:
    """Point-to-point sends and receives take 0.15 s longer."""
    import torch.distributed as dist

    with contextlib.ExitStack() as stack:
        for name in ("send", "recv"):
            stack.enter_context(_patched(dist, name, _then(lambda *given: time.sleep(SLOW_DOWN_S))))
        yield


def corrupt_send() -> Iterator[None]:
    """Point-to-point sends deliver one wrong element."""
    import torch.distributed as dist

    original = dist.send

    def send(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        wrong = tensor.clone()
        wrong.view(-1)[7] += 1
        return original(wrong, *args, **kwargs)

    with _patched(dist, "send", lambda _: send):
        yield


def corrupt_file() -> Iterator[None]:
    """What is flushed to a disk has one byte changed."""

    def change(handle: int) -> None:
        os.pwrite(handle, b"\x00" if os.pread(handle, 1, 1000) != b"\x00" else b"\x01", 1000)

    with _patched(os, "fsync", _then(change)):
        yield


FAULTS: dict[str, Callable[[], Iterator[None]]] = {
    fault.__name__: fault
    for fault in (
        corrupt_all_reduce,
        corrupt_file,
        corrupt_send,
        die_in_all_reduce,
        drop_last_element,
        flip_gradient,
        nan_gradient,
        scale_gradients,
        slow_all_reduce,
        slow_product,
        slow_send,
        wrong_product,
    )
}


def pytest_configure(config: pytest.Config) -> None:
    fault, rank = _wanted()
    if fault not in FAULTS or not (rank in (EVERY_RANK, LEADER) or rank.isdecimal()):
        raise pytest.UsageError(
            f"{VARIABLE}={os.environ.get(VARIABLE)!r}: expected FAULT:RANK with a rank number, "
            f"'all' (ranks) or 'leader', and one of {', '.join(FAULTS)}."
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Inject the fault on the chosen rank while a test runs."""
    fault, rank = _wanted()
    mine = item.config.stash.get(RANK, None)
    here = {LEADER} if mine is None else {EVERY_RANK, str(mine.start.rank)}
    if rank not in here:
        return (yield)
    with contextlib.contextmanager(FAULTS[fault])():
        return (yield)


def _wanted() -> tuple[str, str]:
    fault, _, rank = os.environ.get(VARIABLE, "").partition(":")
    return fault, rank


@contextlib.contextmanager
def _patched(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _then(effect: Callable[..., object]) -> Callable[[Any], Any]:
    """Wrap a function so that ``effect`` gets its first argument afterwards."""

    def wrap(original: Any) -> Any:
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            effect(tensor)
            return result

        return call

    return wrap


def _after_all_reduce(dist: Any, effect: Callable[[Any], object]) -> Iterator[None]:
    with _patched(dist, "all_reduce", _then(effect)):
        yield


def _after_product(effect: Callable[[Any], object]) -> Iterator[None]:
    import torch

    def wrap(original: Any) -> Any:
        def multiply(a: Any, b: Any) -> Any:
            product = original(a, b)
            if a.dtype.is_floating_point:  # the reference is in whole numbers
                effect(product)
            return product

        return multiply

    with _patched(torch.Tensor, "__matmul__", wrap):
        yield


def _after_ddp_reduction(change: Callable[[Any], Any]) -> Iterator[None]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    def wrap(original: Any) -> Any:
        def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            # A lambda: DDP accepts a hook without annotations, or with exactly its own.
            self.register_comm_hook(
                None,
                lambda state, bucket: allreduce_hook(state, bucket).then(
                    lambda future: change(future.value())
                ),
            )

        return initialise

    with _patched(DistributedDataParallel, "__init__", wrap):
        yield
