"""Changing what torch delivers, for as long as a test runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def patched(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def then(effect: Callable[..., object]) -> Callable[[Any], Any]:
    """Wrap a function so that ``effect`` gets its first argument afterwards."""

    def wrap(original: Any) -> Any:
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            effect(tensor)
            return result

        return call

    return wrap


def after_all_reduce(dist: Any, effect: Callable[[Any], object]) -> Iterator[None]:
    with patched(dist, "all_reduce", then(effect)):
        yield


# In torch.distributed; the first argument is what they deliver.
COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter",
    "reduce_scatter_tensor",
)


def after_collectives(effect: Callable[[Any], object]) -> Iterator[None]:
    import torch.distributed as dist

    def first(delivered: Any) -> None:
        effect(delivered[0] if isinstance(delivered, list) else delivered)

    with contextlib.ExitStack() as stack:
        for name in COLLECTIVES:
            stack.enter_context(patched(dist, name, then(first)))
        yield


def after_product(effect: Callable[[Any], object]) -> Iterator[None]:
    import torch

    def wrap(original: Any) -> Any:
        def multiply(a: Any, b: Any) -> Any:
            product = original(a, b)
            if a.dtype.is_floating_point:  # the reference is in whole numbers
                effect(product)
            return product

        return multiply

    with patched(torch.Tensor, "__matmul__", wrap):
        yield


def after_ddp_reduction(change: Callable[[Any], Any]) -> Iterator[None]:
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

    with patched(DistributedDataParallel, "__init__", wrap):
        yield
