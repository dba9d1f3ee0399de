"""What every process of the fork server does first."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing.forkserver
import os
import signal
from typing import Any

PR_SET_PDEATHSIG = 1


def stand_alone() -> None:
    """Lead a process group of its own, end with the server, and keep nothing of it."""
    gc.freeze()  # what the server imported is shared and stays: spare the collector
    os.setsid()  # Ctrl-C reaches the leader, which stops its ranks in order
    die_with_parent()
    _let_the_server_go()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def die_with_parent() -> None:
    """Let the kernel end this process when its parent dies, whatever state it is in."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _let_the_server_go() -> None:
    """Close this process's share of the fork server's life line.

    With it the server would outlive the leader for as long as one rank is stopped, and the
    server's death is what ends a rank that cannot act by itself.
    """
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
