"""The pytest session's view of its ranks: run this test on these ranks."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.ranks import agent, autopsy, channel
from pytest_gpucluster.ranks.agent import RunningRank
from pytest_gpucluster.ranks.group import GroupSpec
from pytest_gpucluster.ranks.rank import RankStart
from pytest_gpucluster.ranks.results import GroupResult, RankResult

if TYPE_CHECKING:
    from torch.distributed import TCPStore

GRACE_S = 2.0  # how long peers of a failed rank may take to finish by themselves


@dataclass(frozen=True)
class LeaderConfig:
    """What every rank is started with. ``payload`` is handed to the ranks unread."""

    arguments: tuple[str, ...]
    folder: Path
    logs: Path
    payload: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class Leader:
    """Owns the rendezvous store and the ranks of this machine."""

    def __init__(self, config: LeaderConfig) -> None:
        agent.start_server()
        self._config = config
        self._members: list[RunningRank] = []
        self._spec: GroupSpec | None = None
        self._generation = 0
        self._store: TCPStore | None = None
        self._started = 0
        self._busy = False

    def run(self, nodeid: str, spec: GroupSpec, following: str | None) -> GroupResult:
        """Run one test on ``spec.world_size`` ranks and wait for every one of them.

        ``following`` is the next test these ranks will run, so that wider fixtures are kept.
        Raises `agent.RanksDidNotStart`. Ends by itself at the deadline: ranks that have not
        answered are examined, killed, and reported as hung.
        """
        if spec.isolation == "process":
            self._end()  # these ran other tests
        members = self._members_for(spec)
        if spec.isolation != "shared" or not spec.compatible(self._spec):
            self._generation += 1
        self._spec = spec
        self._busy = True
        for member in members:
            with contextlib.suppress(OSError):  # a rank that just died is noticed below
                channel.send(
                    member.connection,
                    "run",
                    nodeid=nodeid,
                    following=None if spec.isolation == "process" else following,
                    group=asdict(spec),
                    generation=self._generation,
                )
        outcome = self._gather(members, spec.deadline_s)
        self._busy = False
        if not outcome.clean or spec.isolation != "shared":
            self._spec = None
        if outcome.complete and not outcome.clean:
            self._end()  # they can still finalise the fixtures they kept
        elif not outcome.complete or spec.isolation == "process":
            self._discard()
        return outcome

    def stop(self) -> None:
        """End all ranks and remove what they left in the scratch folder."""
        if self._busy:  # interrupted in the middle of a test: they would not listen
            self._discard()
        else:
            self._end()
        self._store = None
        agent.clean()

    def _members_for(self, spec: GroupSpec) -> list[RunningRank]:
        if self._spec is not None and self._spec.backend != spec.backend:
            self._discard()  # a CUDA context or a thread pool of the other kind would linger
        dead = [member for member in self._members if member.process.exitcode is not None]
        if dead:
            self._discard()
        missing = range(len(self._members), spec.world_size)
        if missing:
            self._members += agent.start_ranks([self._start(number) for number in missing])
        return self._members[: spec.world_size]

    def _end(self) -> None:
        agent.stop(self._members)
        self._members, self._spec = [], None

    def _discard(self) -> None:
        agent.kill(self._members)
        self._members, self._spec = [], None

    def _start(self, number: int) -> RankStart:
        scratch = agent.scratch_folder()
        scratch.mkdir(mode=0o700, exist_ok=True)
        self._config.logs.mkdir(parents=True, exist_ok=True)
        self._started += 1
        return RankStart(
            rank=number,
            arguments=self._config.arguments,
            folder=str(self._config.folder),
            log=str(self._config.logs / f"rank{number}.log"),
            stacks=str(scratch / f"rank{number}-{self._started}.stack"),
            scratch=str(scratch / f"tmp-rank{number}-{self._started}"),
            store_port=self._store_port(),
            payload=self._config.payload,
            environment=dict(self._config.environment),
        )

    def _store_port(self) -> int:
        """The port of the store, on loopback only: the socket is bound here, not by torch."""
        if self._store is None:
            import torch.distributed as dist

            listener = socket.create_server(("127.0.0.1", 0))
            self._store = dist.TCPStore(
                "127.0.0.1",
                listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        return int(self._store.port)

    def _gather(self, members: Sequence[RunningRank], deadline_s: float) -> GroupResult:
        results = {member.rank: RankResult(member.rank) for member in members}
        started = time.monotonic()
        limit = started + deadline_s
        failed = False
        pending = {member.rank: member for member in members}
        while pending:
            remaining = limit - time.monotonic()
            if remaining <= 0:
                elapsed = time.monotonic() - started
                autopsy.examine(list(pending.values()), results)
                return GroupResult(tuple(results.values()), elapsed, waited_for_peers=failed)
            for member in _speaking(pending, remaining):
                if _hear(member, results[member.rank]):
                    del pending[member.rank]
            if not failed and any(result.failed_at for result in results.values()):
                failed = True
                limit = min(limit, time.monotonic() + GRACE_S)
        return GroupResult(tuple(results.values()))


def _speaking(pending: Mapping[int, RunningRank], timeout: float) -> list[RunningRank]:
    """Ranks that sent something or ended, in the order of their numbers."""
    handles = [member.connection for member in pending.values()]
    sentinels = [member.process.sentinel for member in pending.values()]
    ready = wait([*handles, *sentinels], timeout)
    return [
        member
        for member in pending.values()
        if member.connection in ready or member.process.sentinel in ready
    ]


def _hear(member: RunningRank, result: RankResult) -> bool:
    """Take one message; True when this rank has nothing more to say."""
    try:
        if member.connection.poll():
            message = channel.receive(member.connection)
        else:
            raise EOFError
    except (EOFError, OSError, channel.ChannelError):
        member.process.join(agent.KILL_DEADLINE_S)
        result.state, result.ended = "died", agent.how_it_ended(member)
        result.failed_at = result.failed_at or time.monotonic()
        return True
    reports = message.get("reports", [])
    result.reports += reports
    if message["kind"] == "unknown_test":
        result.state = "unknown_test"
    elif message["kind"] == "done":
        result.state = "done"
    elif message["kind"] != "reports":
        result.state, result.ended = "died", f"unexpected message {message['kind']!r}"
    failed = any(report.get("outcome") == "failed" for report in reports)
    if failed or result.state in ("unknown_test", "died"):
        result.failed_at = result.failed_at or time.monotonic()
    return result.state != "hung"
