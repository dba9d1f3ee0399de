"""The process group a distributed test sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucluster.ranks.naming import rank_list

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup as TorchGroup
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_gpucluster.ranks.membership import Membership

Isolation = Literal["shared", "group", "process"]
ISOLATIONS: tuple[Isolation, ...] = ("shared", "group", "process")
BACKENDS = ("auto", "nccl", "gloo")
Recorder = Callable[[str, float, str, dict[str, Any]], None]  # name, value, unit, conditions


@dataclass(frozen=True)
class GroupSpec:
    """What a test asks for: how many ranks, on which backend, how well isolated.

    ``deadline_s`` is the time the whole test may take on its ranks, in seconds.
    ``environment`` is set in its ranks; ``observe`` has their collectives noted and compared.
    """

    world_size: int
    backend: Literal["nccl", "gloo"]
    isolation: Isolation = "shared"
    deadline_s: float = 120.0
    environment: dict[str, str] = field(default_factory=dict)
    observe: bool = True

    def compatible(self, other: GroupSpec | None) -> bool:
        """Whether a group made for ``other`` serves this test too."""
        return other is not None and self.key == other.key

    @property
    def key(self) -> tuple[object, ...]:
        """What a group cannot change while it exists."""
        return (self.world_size, self.backend, self.environment)


@dataclass(frozen=True)
class ProcessGroup:
    """What the ``process_group`` fixture gives a test on each of its ranks.

    The default group of `torch.distributed` is initialised: ``dist.all_reduce(tensor)``
    works as it does in a training script.
    """

    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    node: str
    backend: Literal["nccl", "gloo"]
    membership: Membership = field(repr=False, compare=False)
    recorder: Recorder | None = field(default=None, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """The device of this rank: ``cuda:local_rank`` with NCCL, ``cpu`` with Gloo."""
        import torch

        return (
            torch.device("cuda", self.local_rank) if self.backend == "nccl" else torch.device("cpu")
        )

    @property
    def torch_group(self) -> TorchGroup:
        """The default `torch.distributed` group."""
        import torch.distributed as dist

        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("The process group was torn down before the test used it.")
        return group

    def barrier(self, timeout: float | None = None) -> None:
        """Wait for every rank of the group.

        With a ``timeout`` in seconds, raises TimeoutError that names the ranks which did not
        come. Without one the test's deadline is the limit.
        """
        import torch.distributed as dist

        if timeout is not None:
            missing = self.membership.arrive(self.membership.next_name("barrier"), timeout)
            if missing:
                raise TimeoutError(
                    f"{rank_list(missing)} did not reach the barrier within {timeout:g} s"
                )

        if self.backend == "nccl":
            dist.barrier(device_ids=[self.local_rank])
        else:
            dist.barrier()

    def record(self, name: str, value: float, unit: str) -> None:
        """Keep a measurement of this rank for the report and ``measurements.jsonl``."""
        if self.recorder is not None:
            self.recorder(name, float(value), unit, {"rank": self.rank, "ranks": self.world_size})

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's JSON ``value`` in the order of the ranks, the same list on all.

        It travels through the rendezvous store, not through the collectives under test.
        """
        return self.membership.exchange(value)

    def mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        """A device mesh over all ranks, for example ``mesh((2, 2), ("data", "tensor"))``."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device.type, shape, mesh_dim_names=names)
