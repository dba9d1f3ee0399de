"""One per node: starts, watches, kills and restarts its ranks.

Ranks are forked from multiprocessing's fork server, which has imported torch and pytest and
never touches CUDA, so a new rank costs tens of milliseconds. The server must be started
before any user code runs.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from pytest_gpucluster.ranks import channel, last_output, rank

PRELOAD = (
    "torch",
    "torch.distributed",
    "pytest",
    "pytest_gpucluster.ranks.rank",
    "pytest_gpucluster.ranks.server",
)
START_DEADLINE_S = 120.0
EXIT_DEADLINE_S = 3.0
KILL_DEADLINE_S = 2.0
SCRATCH_VARIABLE = "GPUCLUSTER_RANKS_SCRATCH"  # told to the fork server, see ranks/server.py
SERVER_DEATH_S = 0.5
LOST_EXIT_CODE = 255  # what multiprocessing says when nobody is left to tell the exit code


class RanksDidNotStart(RuntimeError):
    """Ranks ended or stayed silent before they were ready; the message says which and why."""


@dataclass(frozen=True)
class RunningRank:
    """A rank's process and the two pipes to it: tests on one, questions on the other.

    ``forkable``: it has run no test, and may fork one process per test.
    """

    rank: int
    process: ForkServerProcess
    connection: Connection
    control: Connection
    log: Path
    stacks: Path
    page: Path
    forkable: bool = False
    output: dict[int, int] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


@functools.cache
def scratch_folder() -> Path:
    """This process's folder for its ranks' files; made by who needs it.

    The fork server removes it if this process ends without having done so.
    """
    return Path(tempfile.gettempdir()) / f"gpucluster-ranks-{uuid.uuid4().hex}"


def start_server() -> None:
    """Start the fork server in the background; returns at once. Does nothing if it runs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    os.environ[SCRATCH_VARIABLE] = str(scratch_folder())
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        del os.environ[SCRATCH_VARIABLE]


def start_ranks(
    starts: Sequence[rank.RankStart], terminal: rank.Terminal | None = None
) -> list[RunningRank]:
    """Fork one process per start and wait until each has collected its tests.

    ``terminal`` is what the debugger of a rank reads and writes. Raises `RanksDidNotStart`;
    then none of them is left running.
    """
    running: list[RunningRank] = []
    deadline = time.monotonic() + START_DEADLINE_S
    try:
        for start in starts:
            running.append(_start(start, terminal))
        for number, member in enumerate(running):
            running[number] = _await_ready(member, deadline)
    except OSError as error:
        kill(running)
        raise RanksDidNotStart(f"rank {len(running)} could not be started: {error}") from error
    except BaseException:
        kill(running)
        raise
    return running


def _start(start: rank.RankStart, terminal: rank.Terminal | None) -> RunningRank:
    context = multiprocessing.get_context("forkserver")
    connection, theirs = context.Pipe()
    control, their_control = context.Pipe()
    process = context.Process(
        target=rank.main,
        args=(theirs, their_control, start, terminal),
        name=f"gpucluster-rank{start.rank}",
    )
    process.start()
    theirs.close()
    their_control.close()
    return RunningRank(
        start.rank,
        process,
        connection,
        control,
        Path(start.log),
        Path(start.stacks),
        Path(start.page),
    )


def _await_ready(member: RunningRank, deadline: float) -> RunningRank:
    try:
        if not member.connection.poll(max(0.0, deadline - time.monotonic())):
            raise RanksDidNotStart(
                f"rank {member.rank} did not collect its tests within {START_DEADLINE_S:.0f} s. "
                f"See {member.log}."
            )
        message = channel.receive(member.connection)
    except (EOFError, ConnectionError):
        member.process.join(KILL_DEADLINE_S)
        raise RanksDidNotStart(
            f"rank {member.rank} ended while starting ({how_it_ended(member)}). See {member.log}."
        ) from None
    if message["kind"] != "ready":
        raise RanksDidNotStart(
            f"rank {member.rank}'s pytest session ended before it could run a test "
            f"(exit code {message.get('exit_code')}). See {member.log}."
        )
    output = last_output.tap(member.pid, message.get("output", ()))
    return replace(member, forkable=bool(message.get("forkable")), output=output)


def how_it_ended(member: RunningRank) -> str:
    """``signal SIGKILL``, ``exit code 3`` or ``still running``."""
    code = member.process.exitcode
    if code is None:
        return "still running"
    if code == LOST_EXIT_CODE and _server_is_gone():
        return "together with the fork server that all ranks come from"
    return name_of_end(code)


def name_of_end(code: int) -> str:
    """``signal SIGKILL`` or ``exit code 3``, from multiprocessing's exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _server_is_gone() -> bool:
    """Whether it has died; its pipes close a moment before the kernel says so."""
    server: Any = multiprocessing.forkserver._forkserver
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    deadline = time.monotonic() + SERVER_DEATH_S
    while time.monotonic() < deadline:
        try:
            if os.waitid(os.P_PID, server._forkserver_pid, flags) is not None:
                return True
        except (ChildProcessError, TypeError):
            return True
        time.sleep(0.01)
    return False


def stop(members: Iterable[RunningRank]) -> None:
    """Ask the ranks to end; kill those that do not within the deadline."""
    members = list(members)
    for member in members:
        with contextlib.suppress(OSError):
            channel.send(member.connection, "exit")
    deadline = time.monotonic() + EXIT_DEADLINE_S
    for member in members:
        member.process.join(max(0.0, deadline - time.monotonic()))
    kill(members)


def kill(members: Iterable[RunningRank]) -> None:
    """End the ranks and everything they started, at once.

    A rank that cannot die (a driver call that never returns) is left to the kernel: waiting
    for it would hang the session too.
    """
    members = list(members)
    for member in members:
        kill_group(member.pid)
    deadline = time.monotonic() + KILL_DEADLINE_S
    for member in members:
        member.process.join(max(0.0, deadline - time.monotonic()))
        member.connection.close()
        member.control.close()
        last_output.close(member.output)
        if member.process.exitcode is not None:
            member.process.close()


def kill_group(pid: int) -> None:
    """End a process that leads a group, and the group; also one that does not lead it yet."""
    for target in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            target(pid, signal.SIGKILL)


def clean() -> None:
    """Remove the ranks' scratch folder."""
    shutil.rmtree(scratch_folder(), ignore_errors=True)
