"""The pytest plugin that turns a session into a rank."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.ranks import channel, last_output
from pytest_gpucluster.ranks.control import obey
from pytest_gpucluster.ranks.group import GroupSpec, ProcessGroup, Recorder
from pytest_gpucluster.ranks.keys import RANK
from pytest_gpucluster.ranks.membership import Membership
from pytest_gpucluster.ranks.observe import Observer
from pytest_gpucluster.ranks.process_setup import die_with_parent
from pytest_gpucluster.ranks.progress import Progress
from pytest_gpucluster.ranks.serial import serialisable
from pytest_gpucluster.ranks.strays import STRAY, Strays
from pytest_gpucluster.ranks.subordinate import make_subordinate, spare_the_log_capture

if TYPE_CHECKING:
    from pytest_gpucluster.ranks.rank import RankStart


class RankSession:
    """Runs the tests it is told to. ``start`` and ``payload`` are what the leader said."""

    def __init__(self, connection: Connection, control: Connection, start: RankStart) -> None:
        self.start = start
        self.payload = start.payload
        self.ready = False
        self.told_to_exit = False
        self._connection = connection
        self._control = control
        self._membership = Membership(start.rank, start.store_port)
        self._progress = Progress(Path(start.page))
        self._observer = Observer(self._progress)
        self._items: dict[str, pytest.Item] = {}
        self._spec: GroupSpec | None = None
        self._generation = 0
        self._promised: str | None = None
        self._last: pytest.Item | None = None
        self._held: list[dict[str, Any]] = []
        self._strays = Strays()
        self._obeys = False
        self._config: pytest.Config

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        make_subordinate(config, self.start)
        config.stash[RANK] = self
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._items = {item.nodeid: item for item in items}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.ready = True
        session.config.option.no_summary = True  # nobody reads it, and plugins take long over it
        spare_the_log_capture()
        if self.start.stream is not None:
            from pytest_gpucluster.ranks.rank import stream_output

            stream_output(Path(self.start.stream))
        output = last_output.show(session.config)
        channel.send(self._connection, "ready", forkable=self._may_fork(), output=output)
        while True:
            try:
                message = channel.receive(self._connection)
            except EOFError:
                break
            if message["kind"] == "exit":
                self.told_to_exit = True
                break
            if message["kind"] == "leave":
                self._leave()
            elif message["kind"] == "fork":
                self._fork(message)
            elif message["kind"] == "run":
                self._begin_to_obey()
                self._run(message)
        self._membership.leave()
        return True

    def _may_fork(self) -> bool:
        """Whether a copy of this process can run a test as if it had been started for it.

        Not with other threads, whose locks would stay locked, nor with a CUDA context, which
        no child can use. Coverage is saved when a session ends, which a copy does not.
        """
        import torch

        alone = len(list(Path("/proc/self/task").iterdir())) == 1
        return alone and not torch.cuda.is_initialized() and not _measures_coverage(self._config)

    def _fork(self, message: dict[str, Any]) -> None:
        """Run one test in a copy of this process, and say how the copy ended."""
        pid = self._strays.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what the test has left running
            code = os.waitstatus_to_exitcode(status)
            channel.send(
                self._connection, "copy_ended", code=code, generation=message["generation"]
            )
            return
        os.setpgid(0, 0)
        die_with_parent()
        channel.send(self._connection, "copy", pid=os.getpid())
        self._begin_to_obey()
        self._run(message)
        # Peers may still need what this process has sent them.
        while channel.receive(self._connection)["kind"] != "release":
            self._leave()
        os._exit(0)

    def _leave(self) -> None:
        _forget_last_error()
        self._membership.leave()

    def _begin_to_obey(self) -> None:
        """Answer the leader's questions from now on; not before, so that this can be forked."""
        if not self._obeys:
            self._obeys = True
            obey(self._control, self._tell)

    def _tell(self) -> dict[str, Any]:
        """What the leader asks for after a hang or a disagreement."""
        from pytest_gpucluster.ranks import flight

        return {
            "digest": self._observer.digest(),
            "signatures": self._observer.signatures(),
            "flight": flight.dump(self._membership.joined_ns),
        }

    def _run(self, message: dict[str, Any]) -> None:
        nodeid = message["nodeid"]
        item = self._items.get(nodeid)
        if item is None:
            channel.send(self._connection, "unknown_test", nodeid=nodeid)
            return
        if self._last is not None and self._promised != nodeid:
            _tear_down_to(item)
        self._spec = spec = GroupSpec(**message["group"])
        self._generation = message["generation"]
        self._progress.begin()
        self._observer.begin(spec.observe)
        following = self._items.get(message["following"] or "")
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._last, self._promised = item, following.nodeid if following else None
        channel.send(
            self._connection,
            "done",
            reports=self._take_held(),
            digest=self._observer.digest(),
            broken=self._membership.broken,
        )
        if spec.isolation == "group":
            self._membership.leave()  # after the result: the leader need not wait for it

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        self._progress.phase("setup")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        self._progress.phase("call")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        self._progress.phase("teardown")
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._strays.came_back():
            report.outcome, report.longrepr = "failed", STRAY
        self._held.append(serialisable(self._config, report))
        # The leader must hear of a failure at once; the rest travels with "done", because
        # each message wakes the leader.
        if report.failed:
            channel.send(self._connection, "reports", reports=self._take_held())

    def _take_held(self) -> list[dict[str, Any]]:
        held, self._held = self._held, []
        return held

    def process_group(self, recorder: Recorder) -> ProcessGroup:
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
            recorder=recorder,
        )


def _forget_last_error() -> None:
    """Let go of what a failed test's traceback holds: the group, whose connections would stay."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    gc.collect()


def _measures_coverage(config: pytest.Config) -> bool:
    return config.pluginmanager.hasplugin("_cov")


def _tear_down_to(item: pytest.Item) -> None:
    """Finalise fixtures kept for a test that did not come.

    pytest has no public way to say "something else runs next".
    """
    item.session._setupstate.teardown_exact(item)
