"""One process per rank: a pytest session of its own inside a process group.

The process is forked from a server that has imported torch and never touched CUDA. It
collects the same arguments as the leader, then waits for node ids and sends back pytest's
own serialised reports.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import multiprocessing.forkserver
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.ranks import channel
from pytest_gpucluster.ranks.group import GroupSpec, ProcessGroup
from pytest_gpucluster.ranks.keys import RANK
from pytest_gpucluster.ranks.membership import Membership
from pytest_gpucluster.ranks.serial import serialisable
from pytest_gpucluster.ranks.strays import STRAY, Strays

PR_SET_PDEATHSIG = 1

# What the leader's command line may ask for and a rank must not do a second time.
NEUTRAL_OPTIONS: dict[str, Any] = {
    "cacheclear": False,
    "collectonly": False,
    "deselect": None,
    "dist": "no",
    "durations": None,
    "failedfirst": False,
    "htmlpath": None,
    "keyword": "",
    "lf": False,
    "markexpr": "",
    "maxfail": 0,
    "newfirst": False,
    "numprocesses": 0,
    "report_log": None,
    "stepwise": False,
    "stepwise_skip": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}


@dataclass(frozen=True)
class RankStart:
    """Everything a new rank is told. ``payload`` is opaque here: the plugin's own JSON."""

    rank: int
    arguments: tuple[str, ...]
    folder: str  # the leader's working directory
    log: str
    stacks: str
    scratch: str
    store_port: int
    payload: str
    environment: dict[str, str]


def main(connection: Connection, control: Connection, start: RankStart) -> None:
    """Entry point of a rank's process."""
    gc.freeze()  # what the server imported is shared and stays: spare the collector
    os.setsid()  # Ctrl-C reaches the leader, which stops its ranks in order
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _let_the_server_go()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(start.folder)
    os.environ.update(start.environment)
    _redirect_output(Path(start.log))
    stacks = Path(start.stacks).open("w", encoding="utf-8")  # noqa: SIM115 - open for life
    faulthandler.enable(file=stacks)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True, chain=False)
    threading.Thread(target=_obey, args=(control, start), daemon=True).start()
    session = RankSession(connection, start)
    code = pytest.main(list(start.arguments), plugins=[session])
    if not session.ready:
        channel.send(connection, "not_started", exit_code=int(code))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    # The leader has all it needs, and interpreter shutdown could hang in a library.
    os._exit(0 if session.told_to_exit else int(code))


def _let_the_server_go() -> None:
    """Close this rank's share of the fork server's life line.

    With it the server would outlive the leader for as long as one rank is stopped, and the
    server's death is what ends a rank that cannot act by itself.
    """
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def _redirect_output(log: Path) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    for extra in (handle, null):
        if extra > 2:
            os.close(extra)


def _obey(control: Connection, start: RankStart) -> None:
    """Answer the leader while the main thread is busy or blocked in a collective."""
    while True:
        try:
            message = channel.receive(control)
        except (EOFError, OSError):  # the leader is gone
            os.killpg(0, signal.SIGKILL)
            return
        if message["kind"] == "flight_recorder":
            flight = Path(start.stacks).with_suffix(".flight.json")
            flight.write_text(_flight_recorder(), encoding="utf-8")
            channel.send(control, "written")


def _flight_recorder() -> str:
    """torch's record of recent collectives as JSON text, ``{}`` where there is none."""
    try:
        c10d: Any = importlib.import_module("torch._C._distributed_c10d")
        text = c10d._dump_fr_trace_json(True, False)
    except Exception as error:
        return json.dumps({"unavailable": str(error)})
    return text.decode() if isinstance(text, bytes) else str(text)


class RankSession:
    """The pytest plugin that turns a session into a rank."""

    def __init__(self, connection: Connection, start: RankStart) -> None:
        self.start = start
        self.payload = start.payload
        self.ready = False
        self.told_to_exit = False
        self._connection = connection
        self._membership = Membership(start.rank, start.store_port)
        self._items: dict[str, pytest.Item] = {}
        self._spec: GroupSpec | None = None
        self._generation = 0
        self._promised: str | None = None
        self._last: pytest.Item | None = None
        self._held: list[dict[str, Any]] = []
        self._strays = Strays()
        self._config: pytest.Config

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        for name, value in NEUTRAL_OPTIONS.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        config.option.basetemp = self.start.scratch
        # The convention by which plugins know that a session is not the one that reports.
        config.workerinput = {  # type: ignore[attr-defined]
            "workerid": f"rank{self.start.rank}",
            "testrunuid": os.environ.get("PYTEST_XDIST_TESTRUNUID", "gpucluster"),
            "mainargv": list(self.start.arguments),
        }
        config.workeroutput = {}  # type: ignore[attr-defined]
        config.stash[RANK] = self
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._items = {item.nodeid: item for item in items}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.ready = True
        session.config.option.no_summary = True  # nobody reads it, and plugins take long over it
        channel.send(self._connection, "ready")
        while True:
            try:
                message = channel.receive(self._connection)
            except EOFError:
                break
            if message["kind"] == "exit":
                self.told_to_exit = True
                break
            self._run(session, message)
        self._membership.leave()
        return True

    def _run(self, session: pytest.Session, message: dict[str, Any]) -> None:
        nodeid = message["nodeid"]
        item = self._items.get(nodeid)
        if item is None:
            channel.send(self._connection, "unknown_test", nodeid=nodeid)
            return
        if self._last is not None and self._promised != nodeid:
            _tear_down_to(session, item)
        self._spec = GroupSpec(**message["group"])
        self._generation = message["generation"]
        following = self._items.get(message["following"] or "")
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._last, self._promised = item, following.nodeid if following else None
        channel.send(self._connection, "done", reports=self._take_held())
        if self._spec.isolation != "shared":
            self._membership.leave()  # after the result: the leader need not wait for it

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._strays.came_back():
            report.outcome, report.longrepr = "failed", STRAY
        self._held.append(serialisable(self._config, report))
        # The leader must hear of a failure at once, and of a setup to know where a hang is;
        # the rest travels with "done", because each message wakes the leader.
        if report.failed or report.when == "setup":
            channel.send(self._connection, "reports", reports=self._take_held())

    def _take_held(self) -> list[dict[str, Any]]:
        held, self._held = self._held, []
        return held

    def process_group(self) -> ProcessGroup:
        """Join the group of the running test; called by the fixture."""
        assert self._spec is not None
        self._membership.join(self._spec, self._generation)
        spec = self._spec
        return ProcessGroup(
            rank=self.start.rank,
            world_size=spec.world_size,
            local_rank=self.start.rank,
            node_rank=0,
            node=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
            backend=spec.backend,
            membership=self._membership,
        )


def _tear_down_to(session: pytest.Session, item: pytest.Item) -> None:
    """Finalise fixtures kept for a test that did not come.

    pytest has no public way to say "something else runs next".
    """
    session._setupstate.teardown_exact(item)
