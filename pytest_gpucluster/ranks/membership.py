"""Joining and leaving the default process group of torch.distributed."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
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
        self.broken = False  # a group was not completed: this process can make no other
        self.joined_ns = 0  # when, on the wall clock
        self._joined: int | None = None
        self._world_size = 0
        self._backend = ""
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
        self.joined_ns = time.time_ns()
        self._group_store = dist.PrefixStore(f"group{generation}", self._store)
        self.broken = True  # until it is known that torch's own count of groups is right
        dist.init_process_group(
            spec.backend,
            store=self._group_store,
            rank=self._rank,
            world_size=spec.world_size,
            timeout=timedelta(seconds=spec.deadline_s + PATIENCE_AFTER_DEADLINE_S),
        )
        self.broken = False
        self._joined = generation
        self._world_size = spec.world_size
        self._backend = spec.backend
        self._exchanges = 0

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's JSON value, in the order of the ranks."""
        store = self._store_of_group()
        prefix = self.next_name("exchange")
        store.set(f"{prefix}/{self._rank}", json.dumps(value))
        keys = [f"{prefix}/{rank}" for rank in range(self._world_size)]
        return [json.loads(store.get(key)) for key in keys]

    def arrive(self, name: str, timeout_s: float) -> tuple[int, ...]:
        """Say that this rank is at ``name`` and wait for the others through the store.

        Returns the ranks that did not come within ``timeout_s`` seconds.
        """
        store = self._store_of_group()
        store.set(f"{name}/{self._rank}", "")
        keys = [f"{name}/{rank}" for rank in range(self._world_size)]
        try:
            store.wait(keys, timedelta(seconds=timeout_s))
        except RuntimeError:  # torch's DistStoreError is one
            return tuple(rank for rank, key in enumerate(keys) if not store.check([key]))
        return ()

    def next_name(self, kind: str) -> str:
        """A key that every rank makes at the same place of the test."""
        self._exchanges += 1
        return f"{kind}{self._exchanges}"

    def _store_of_group(self) -> PrefixStore:
        if self._group_store is None:
            raise RuntimeError("The process group was torn down before the test used it.")
        return self._group_store

    def leave(self) -> None:
        """Leave the group, if there is one.

        Gloo takes 10 ms per rank to close its connections; a thread waits for that.
        """
        if self._joined is None:
            return
        import torch.distributed as dist

        self._joined = None
        if not dist.is_initialized():
            return
        last = [dist.group.WORLD]
        dist.destroy_process_group()
        if self._backend == "gloo":
            threading.Thread(target=last.clear, daemon=True).start()
