"""Joining and leaving the default process group of torch.distributed."""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.ranks.group import GroupSpec

if TYPE_CHECKING:
    from torch.distributed import PrefixStore, TCPStore

# The leader's deadline must speak first: it can say who is missing, the group cannot.
PATIENCE_AFTER_DEADLINE_S = 60.0


class Membership:
    """Which group this process is in. One group at a time, one store for all of them."""

    def __init__(self, rank: int, store_port: int) -> None:
        self._rank = rank
        self._port = store_port
        self._store: TCPStore | None = None
        self._group_store: PrefixStore | None = None
        self._joined: int | None = None
        self._world_size = 0
        self._exchanges = 0

    def join(self, spec: GroupSpec, generation: int) -> None:
        """Be a member of group ``generation``; leaves an older one first.

        Every generation has its own key prefix in the store: re-used keys make ranks connect
        to addresses of a group that no longer exists.
        """
        if self._joined == generation:
            return
        self.leave()
        import torch
        import torch.distributed as dist

        if self._store is None:
            self._store = dist.TCPStore(
                "127.0.0.1", self._port, is_master=False, wait_for_workers=False
            )
        if spec.backend == "nccl":
            torch.cuda.set_device(self._rank)
        else:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // spec.world_size))
            if any(name == "lo" for _, name in socket.if_nameindex()):
                # Else Gloo listens on whatever address the host's name stands for.
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._group_store = dist.PrefixStore(f"group{generation}", self._store)
        dist.init_process_group(
            spec.backend,
            store=self._group_store,
            rank=self._rank,
            world_size=spec.world_size,
            timeout=timedelta(seconds=spec.deadline_s + PATIENCE_AFTER_DEADLINE_S),
        )
        self._joined = generation
        self._world_size = spec.world_size
        self._exchanges = 0

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's JSON value, in the order of the ranks."""
        if self._group_store is None:
            raise RuntimeError("The process group was torn down before the test used it.")
        self._exchanges += 1
        prefix = f"exchange{self._exchanges}/"
        self._group_store.set(f"{prefix}{self._rank}", json.dumps(value))
        keys = [f"{prefix}{rank}" for rank in range(self._world_size)]
        return [json.loads(self._group_store.get(key)) for key in keys]

    def leave(self) -> None:
        """Destroy the group, if there is one."""
        if self._joined is None:
            return
        import torch.distributed as dist

        self._joined = None
        if dist.is_initialized():
            dist.destroy_process_group()
