"""Which collectives a test called on this rank: noted as they are called.

A collective that differs between ranks (another size, type, operation, or one too many) may
pass in silence: Gloo adds the bytes of integers to those of floats. So the ranks' notes are
compared after each test. They also say what a dead rank was doing.

Collectives that torch calls in C++ (DDP's buckets, functional collectives) do not pass here;
torch's flight recorder knows those, see flight.py.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pytest_gpucluster.ranks.progress import Progress

KEPT = 1000  # signatures per group; of a longer test the last ones can be shown

# Method of torch's ProcessGroup → (name in torch.distributed, argument whose tensors are equally
# large on all ranks). Without an argument only the tensors' type must be equal.
SYMMETRIC: dict[str, tuple[str, int | None]] = {
    "_allgather_base": ("all_gather_into_tensor", 2),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 2),
    "all_gather_single": ("all_gather_single", 2),
    "all_gather_single_coalesced": ("all_gather_single_coalesced", 2),
    "all_to_all_single": ("all_to_all_single", None),
    "allgather": ("all_gather", 1),
    "allgather_coalesced": ("all_gather_coalesced", None),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 2),
    "allreduce": ("all_reduce", 1),
    "allreduce_coalesced": ("all_reduce_coalesced", 1),
    "alltoall": ("all_to_all", None),
    "alltoall_base": ("all_to_all_single", None),
    "barrier": ("barrier", None),
    "broadcast": ("broadcast", 1),
    "gather": ("gather", None),
    "monitored_barrier": ("monitored_barrier", None),
    "reduce": ("reduce", 1),
    "reduce_scatter": ("reduce_scatter", 2),
    "reduce_scatter_single": ("reduce_scatter_single", 2),
    "reduce_scatter_single_coalesced": ("reduce_scatter_single_coalesced", 2),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 2),
    "scatter": ("scatter", 1),
}
ONE_SIDED = {"send": "send", "recv": "recv", "recv_anysource": "recv"}


@dataclass
class Calls:
    """The collectives of one group: how many, a checksum over all, the last ones' text."""

    members: tuple[int, ...]
    count: int = 0
    checksum: int = 0
    last: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, key: str, text: str) -> None:
        self.count += 1
        self.checksum = zlib.crc32(key.encode(), self.checksum)
        self.last.append((key, text))


class Observer:
    """Notes collectives while it is on. Made once per process; torch is patched at `begin`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._on = False
        self._patched = False
        self._calls: dict[str, Calls] = {}

    def begin(self, on: bool) -> None:
        """A test begins. Measured checks are not observed: it would cost them microseconds."""
        self._calls, self._on = {}, on
        if on and not self._patched:
            self._patch()

    def digest(self) -> dict[str, list[Any]]:
        """Per group: its members, the number of calls and their checksum. JSON."""
        return {
            name: [list(calls.members), calls.count, calls.checksum]
            for name, calls in self._calls.items()
        }

    def signatures(self) -> dict[str, dict[str, Any]]:
        """Per group: ``first``, the number of the oldest call kept, and ``calls`` [key, text]."""
        return {
            name: {"first": calls.count - len(calls.last), "calls": list(calls.last)}
            for name, calls in self._calls.items()
        }

    def _patch(self) -> None:
        from torch.distributed import ProcessGroup

        self._patched = True
        for method, (label, argument) in SYMMETRIC.items():
            if hasattr(ProcessGroup, method):
                setattr(ProcessGroup, method, self._noting(ProcessGroup, method, label, argument))
        for method, label in ONE_SIDED.items():
            setattr(ProcessGroup, method, self._passing(ProcessGroup, method, label))

    def _noting(self, owner: Any, method: str, label: str, argument: int | None) -> Any:
        original: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return original(group, *args, **kwargs)
            name = str(group.group_name)
            calls = self._calls.get(name) or self._new(name, group)
            key, text = sign(label, argument, args)
            self._progress.enter(calls.count + 1, name, key, text)
            work = original(group, *args, **kwargs)
            calls.add(key, text)  # not before: a call that raised was no collective
            self._progress.leave()
            return work

        return call

    def _passing(self, owner: Any, method: str, label: str) -> Any:
        original: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(original)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return original(group, *args, **kwargs)
            self._progress.enter(0, str(group.group_name), "", sign(label, None, args)[1])
            work = original(group, *args, **kwargs)
            self._progress.leave()
            return work

        return call

    def _new(self, name: str, group: Any) -> Calls:
        import torch.distributed as dist

        calls = self._calls[name] = Calls(tuple(dist.get_process_group_ranks(group)))
        return calls


def sign(label: str, argument: int | None, args: tuple[Any, ...]) -> tuple[str, str]:
    """What must agree between ranks, and the text for people, of one call.

    ``args`` are those of torch's ProcessGroup method; ``argument`` counts from 1.
    """
    tensors = _tensors(args[(argument or 1) - 1]) if args else []
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
    shape = str(list(tensors[0].shape)) if tensors else ""
    if len(tensors) > 1:
        shape = f"{len(tensors)} x {shape}"
    options = _options(args[-1]) if args else ""
    size = sum(tensor.numel() for tensor in tensors) if argument else ""
    text = " ".join(part for part in (label, shape, dtype, options) if part)
    return f"{label} {size} {dtype} {options};", text


def _tensors(value: Any) -> list[Any]:
    if hasattr(value, "numel"):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _options(options: Any) -> str:
    """``sum`` or ``from 0``: the operation and the root, where the call has them."""
    said = []
    operation = getattr(options, "reduceOp", None)
    if operation is not None:
        said.append(str(operation.op).rpartition(".")[2].lower())
    root = getattr(options, "rootRank", None)
    if root is not None:
        said.append(f"root {root}")
    return " ".join(said)
