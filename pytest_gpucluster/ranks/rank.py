"""One process per rank: a pytest session of its own inside a process group.

The process is forked from a server that has imported torch and never touched CUDA. It
collects the same arguments as the leader, then waits for node ids and sends back pytest's
own serialised reports.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from pytest_gpucluster.ranks import channel
from pytest_gpucluster.ranks.process_setup import stand_alone
from pytest_gpucluster.ranks.rank_session import RankSession

# A terminal to debug on: what to read and what to write. Connections, because those travel to
# a process of the fork server; nothing but their file handles is used.
Terminal = tuple[Connection, Connection]


@dataclass(frozen=True)
class RankStart:
    """Everything a new rank is told. ``payload`` is opaque here: the plugin's own JSON."""

    rank: int
    arguments: tuple[str, ...]
    folder: str  # the leader's working directory
    log: str
    stacks: str
    page: str
    scratch: str
    shared: str  # one folder for all ranks of the node
    store_port: int
    payload: str
    environment: dict[str, str]
    stream: str | None = None  # with -s: where what tests print goes, for the leader to show
    debug: bool = False  # pytest's debugger may open here


def main(
    connection: Connection, control: Connection, start: RankStart, terminal: Terminal | None
) -> None:
    """Entry point of a rank's process."""
    stand_alone()
    os.chdir(start.folder)
    os.environ.update(start.environment)
    _redirect_output(Path(start.log))
    # To append: the leader empties it.
    stacks = Path(start.stacks).open("a", encoding="utf-8")  # noqa: SIM115 - open for life
    faulthandler.enable(file=stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True, chain=False)
    if terminal is not None and start.debug:
        from pytest_gpucluster.ranks import debugger

        debugger.attach(*terminal)
    session = RankSession(connection, control, start)
    code = pytest.main(list(start.arguments), plugins=[session])
    if not session.ready:
        channel.send(connection, "not_started", exit_code=int(code))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    # The leader has all it needs, and interpreter shutdown could hang in a library.
    os._exit(0 if session.told_to_exit else int(code))


def stream_output(path: Path) -> None:
    """From now on: what tests and their children print goes to ``path``, line by line."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115


def _redirect_output(log: Path) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    for extra in (handle, null):
        if extra > 2:
            os.close(extra)
    # pytest's own words go here, whatever becomes of standard output later.
    sys.stdout = log.open("a", encoding="utf-8", buffering=1)
