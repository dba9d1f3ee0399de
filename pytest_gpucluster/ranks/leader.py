"""The pytest session's view of its ranks: run this test on these ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_gpucluster.ranks import agent, autopsy, channel, process_state, store
from pytest_gpucluster.ranks.agent import RunningRank
from pytest_gpucluster.ranks.freeing import free
from pytest_gpucluster.ranks.gather import Pump, gather
from pytest_gpucluster.ranks.group import GroupSpec
from pytest_gpucluster.ranks.rank import RankStart, Terminal
from pytest_gpucluster.ranks.results import GroupResult, RankResult

SETTLE_S = 1.0  # how long a rank may take to notice that the one it waited for was killed


@dataclass(frozen=True)
class LeaderConfig:
    """What every rank is started with. ``payload`` is handed to the ranks unread.

    ``debug_rank`` is the rank whose debugger gets ``terminal``. ``pump`` shows what the ranks
    print, where that is wanted while they run.
    """

    arguments: tuple[str, ...]
    folder: Path
    logs: Path
    payload: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    debug_rank: int | None = None
    terminal: Terminal | None = None
    pump: Pump | None = None


class Leader:
    """Owns the rendezvous store and the ranks of this machine.

    ``_members`` run tests themselves and are kept. ``_stems`` run none: they fork a copy of
    themselves for each test that asks for processes of its own.
    """

    def __init__(self, config: LeaderConfig) -> None:
        agent.start_server()
        self._config = config
        self._members: dict[int, RunningRank] = {}
        self._stems: dict[int, RunningRank] = {}
        self._members_for_key: tuple[object, ...] | None = None
        self._stems_for_key: tuple[object, ...] | None = None
        self._spec: GroupSpec | None = None
        self._generation = 0
        self._store: store.Store | None = None
        self._started = 0
        self._busy = False
        self._oom_kills = process_state.cgroup_oom_kills()

    def run(self, nodeid: str, spec: GroupSpec, following: str | None) -> GroupResult:
        """Run one test on ``spec.world_size`` ranks and wait for every one of them.

        ``following`` is the next test these ranks will run, so that wider fixtures are kept.
        Raises `agent.RanksDidNotStart`. Ends by itself at the deadline: ranks that have not
        answered are examined, killed, and reported as hung.
        """
        self._busy = True
        if self._store is not None and self._store.process.exitcode is not None:
            self._start_over()
        try:
            if spec.isolation == "process":
                outcome = self._run_in_processes(nodeid, spec)
            else:
                outcome = self._run_on_members(nodeid, spec, following)
        except agent.RanksDidNotStart:
            self._busy = False
            raise
        self._busy = False
        self._explain_kills(outcome)
        return outcome

    def _explain_kills(self, outcome: GroupResult) -> None:
        for result in outcome.ranks:
            if result.ended == "signal SIGKILL" and result.pid is not None:
                result.activity = process_state.why_killed(result.pid, self._oom_kills)
                self._oom_kills = process_state.cgroup_oom_kills()

    def stop(self) -> None:
        """End all ranks and remove what they left in the scratch folder."""
        ranks = [*self._members.values(), *self._stems.values()]
        if self._busy:  # interrupted in the middle of a test: they would not listen
            agent.kill(ranks)
        else:
            agent.stop(ranks)
        self._members, self._stems, self._spec = {}, {}, None
        if self._store is not None:
            store.stop(self._store)
            self._store = None
        agent.clean()

    def _run_on_members(self, nodeid: str, spec: GroupSpec, following: str | None) -> GroupResult:
        died_before = self._forget_the_dead()
        if (spec.backend, spec.environment) != self._members_for_key:
            # A CUDA context or a thread pool of the other kind would linger.
            self._end(list(self._members))
            self._spec = None
            self._members_for_key = (spec.backend, spec.environment)
        members = self._started_up_to(self._members, spec)
        if spec.isolation != "shared" or not spec.compatible(self._spec):
            self._generation += 1
        self._spec = spec
        self._tell("run", members, nodeid, spec, following)
        outcome = gather(members, self._generation, spec.deadline_s, self._config.pump)
        if spec.isolation != "shared" or not outcome.clean:
            self._spec = None  # the next test gets a new group
        if not outcome.clean:
            self._replace_the_guilty(members, outcome, spec)
        return replace(outcome, died_before=died_before)

    def _replace_the_guilty(
        self, members: Sequence[RunningRank], outcome: GroupResult, spec: GroupSpec
    ) -> None:
        """Keep the ranks that can go on: those that passed or only lost a peer.

        With NCCL all are replaced: whether a context survived a failed collective is not known.
        """
        if spec.backend == "nccl":
            end = self._end if outcome.complete else self._kill
            end({member.rank for member in members})
            return
        ranks = {result.rank: result for result in outcome.ranks}
        hung = {rank for rank, result in ranks.items() if result.state == "hung"}
        suspects = set(autopsy.suspects(outcome.ranks))
        guilty = suspects & hung if suspects else hung
        self._kill(guilty | {rank for rank, result in ranks.items() if result.state == "died"})
        self._end(
            {rank for rank in self._members.keys() & ranks.keys() if _failed_itself(ranks[rank])}
        )
        left = (self._members.keys() & ranks.keys()) - hung
        self._kill(free(self._of(left), self._of(hung - guilty), SETTLE_S))

    def _of(self, ranks: Iterable[int]) -> dict[int, RunningRank]:
        return {rank: self._members[rank] for rank in ranks}

    def _run_in_processes(self, nodeid: str, spec: GroupSpec) -> GroupResult:
        """New processes for one test: copies of ranks that have collected and run nothing."""
        key = (spec.backend, spec.environment)
        if key != self._stems_for_key or any(
            stem.process.exitcode is not None for stem in self._stems.values()
        ):
            agent.stop(self._stems.values())
            self._stems, self._stems_for_key = {}, key
        stems = self._started_up_to(self._stems, spec)
        self._generation += 1
        copies = all(stem.forkable for stem in stems)
        self._tell("fork" if copies else "run", stems, nodeid, spec, None)
        outcome = gather(stems, self._generation, spec.deadline_s, self._config.pump)
        if copies and all(result.state != "hung" for result in outcome.ranks):
            for stem, result in zip(stems, outcome.ranks, strict=True):
                if result.state != "died":
                    with contextlib.suppress(OSError):
                        channel.send(stem.connection, "release")
        else:
            for result in outcome.ranks:
                if copies and result.state == "hung" and result.pid is not None:
                    agent.kill_group(result.pid)
            end = agent.stop if outcome.complete else agent.kill
            end(self._stems.values())
            self._stems = {}
        return outcome

    def _tell(
        self,
        kind: str,
        members: Sequence[RunningRank],
        nodeid: str,
        spec: GroupSpec,
        following: str | None,
    ) -> None:
        for member in members:
            with contextlib.suppress(OSError):  # a rank that just died is noticed later
                channel.send(
                    member.connection,
                    kind,
                    nodeid=nodeid,
                    following=following,
                    group=asdict(spec),
                    generation=self._generation,
                )

    def _started_up_to(self, ranks: dict[int, RunningRank], spec: GroupSpec) -> list[RunningRank]:
        missing = [number for number in range(spec.world_size) if number not in ranks]
        if missing:
            starts = [self._start(number, spec) for number in missing]
            for member in agent.start_ranks(starts, self._config.terminal):
                ranks[member.rank] = member
            self._spec = None
        return [ranks[number] for number in range(spec.world_size)]

    def _forget_the_dead(self) -> tuple[str, ...]:
        dead = [m for m in self._members.values() if m.process.exitcode is not None]
        said = tuple(f"rank {member.rank} ({agent.how_it_ended(member)})" for member in dead)
        self._kill({member.rank for member in dead})
        if dead:
            self._spec = None
        return said

    def _start_over(self) -> None:
        """The store is gone, and the ranks know no other."""
        agent.kill([*self._members.values(), *self._stems.values()])
        self._members, self._stems, self._spec, self._store = {}, {}, None, None

    def _kill(self, ranks: Iterable[int]) -> None:
        agent.kill([self._members.pop(rank) for rank in sorted(ranks)])

    def _end(self, ranks: Iterable[int]) -> None:
        """Like `_kill`, but they may finalise the fixtures they kept."""
        agent.stop([self._members.pop(rank) for rank in sorted(ranks)])

    def _start(self, number: int, spec: GroupSpec) -> RankStart:
        scratch = agent.scratch_folder()
        scratch.mkdir(mode=0o700, exist_ok=True)
        self._config.logs.mkdir(parents=True, exist_ok=True)
        self._started += 1
        own = f"rank{number}-{self._started}"
        return RankStart(
            rank=number,
            arguments=self._config.arguments,
            folder=str(self._config.folder),
            log=str(self._config.logs / f"rank{number}.log"),
            stacks=str(scratch / f"{own}.stack"),
            page=str(scratch / f"{own}.page"),
            scratch=str(scratch / f"tmp-{own}"),
            shared=str(scratch / "shared"),
            store_port=self._store_port(),
            payload=self._config.payload,
            environment={**self._config.environment, **spec.environment},
            stream=str(self._config.logs / f"rank{number}.out") if self._config.pump else None,
            debug=number == self._config.debug_rank,
        )

    def _store_port(self) -> int:
        if self._store is None:
            try:
                self._store = store.start()
            except store.StoreDidNotStart as error:
                raise agent.RanksDidNotStart(str(error)) from error
        return self._store.port


def _failed_itself(result: RankResult) -> bool:
    """Whether a rank that finished has a failure of its own: its state is not to be trusted."""
    failed = [report for report in result.reports if report.get("outcome") == "failed"]
    return result.broken or any(not autopsy.peer_was_lost(_message(report)) for report in failed)


def _message(report: Mapping[str, Any]) -> str:
    """The error's text in a serialised report, which may hold anything."""
    longrepr = report.get("longrepr")
    crash = longrepr.get("reprcrash") if isinstance(longrepr, dict) else longrepr
    return str(crash.get("message") if isinstance(crash, dict) else crash)
