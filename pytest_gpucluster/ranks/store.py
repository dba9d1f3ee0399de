"""The rendezvous store of a session: one process that owns it and does nothing else.

Forked like the ranks, so that the session itself need not load torch, and apart from them, so
that it outlives each of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

START_DEADLINE_S = 120.0  # the fork server may still be loading torch
EXIT_DEADLINE_S = 2.0


class StoreDidNotStart(RuntimeError):
    """The store's process ended or stayed silent."""


@dataclass(frozen=True)
class Store:
    """A running store. It ends when ``life_line`` is closed, however that happens."""

    port: int  # on loopback
    process: ForkServerProcess
    life_line: Connection


def start() -> Store:
    """Start the store's process; raises `StoreDidNotStart`."""
    context = multiprocessing.get_context("forkserver")
    life_line, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="gpucluster-store")
    process.start()
    theirs.close()
    try:
        if not life_line.poll(START_DEADLINE_S):
            raise StoreDidNotStart(f"no rendezvous store within {START_DEADLINE_S:.0f} s")
        port = int.from_bytes(life_line.recv_bytes(8), "big")
    except (EOFError, OSError) as error:
        raise StoreDidNotStart("the rendezvous store's process ended while starting") from error
    return Store(port, process, life_line)


def stop(store: Store) -> None:
    """End the store."""
    store.life_line.close()
    store.process.join(EXIT_DEADLINE_S)
    if store.process.exitcode is None:
        store.process.kill()
        store.process.join(EXIT_DEADLINE_S)


def _serve(life_line: Connection) -> None:
    import torch.distributed as dist

    from pytest_gpucluster.ranks.process_setup import stand_alone

    stand_alone()
    # The socket is bound here, to loopback: torch would listen on every interface.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    life_line.send_bytes(int(store.port).to_bytes(8, "big"))
    with contextlib.suppress(EOFError, OSError):
        life_line.recv_bytes()
    os._exit(0)
