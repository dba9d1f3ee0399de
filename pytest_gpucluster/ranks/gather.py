"""Waiting for the ranks of one test: their messages, their deaths, the deadline."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_gpucluster.ranks import agent, autopsy, channel, last_output
from pytest_gpucluster.ranks.agent import RunningRank
from pytest_gpucluster.ranks.differences import digests_agree
from pytest_gpucluster.ranks.freeing import leave
from pytest_gpucluster.ranks.progress import standing
from pytest_gpucluster.ranks.results import GroupResult, RankResult
from pytest_gpucluster.ranks.stacks import fatal_stack

GRACE_S = 2.0  # how long peers of a failed rank may take to finish by themselves
FREE_AFTER_S = 0.3  # then those that are done leave the group, which frees who waits for them
STREAM_EVERY_S = 0.1

Pump = Callable[[], None]  # shows what the ranks have printed since it was last called


def gather(
    members: Sequence[RunningRank], generation: int, deadline_s: float, pump: Pump | None
) -> GroupResult:
    """Wait until every rank has answered, died, or run out of time; then look at the rest."""
    results = {member.rank: RankResult(member.rank, pid=member.pid) for member in members}
    started = time.monotonic()
    cut_off = _wait(members, results, generation, started + deadline_s, pump)
    ranks = tuple(results.values())
    if cut_off is not None:
        autopsy.examine([m for m in members if results[m.rank].state == "hung"], results)
    _look_at_the_dead(members, results)
    if cut_off is None and _all_passed(ranks):
        digests = {result.rank: result.digest for result in ranks}
        if digests_agree(digests):
            return GroupResult(ranks)
        autopsy.ask(members, results)
        return GroupResult(ranks, difference=autopsy.find_difference(ranks))
    complete = all(result.state == "done" for result in ranks)
    difference = None if complete else autopsy.find_difference(ranks)
    return GroupResult(
        ranks,
        cut_off_s=time.monotonic() - started if cut_off is not None else None,
        waited_for_peers=cut_off == "peers",
        difference=difference if difference is not None and difference.is_clash else None,
    )


def _all_passed(ranks: Sequence[RankResult]) -> bool:
    return all(
        result.state == "done"
        and all(report.get("outcome") == "passed" for report in result.reports)
        for result in ranks
    )


def _wait(
    members: Sequence[RunningRank],
    results: Mapping[int, RankResult],
    generation: int,
    limit: float,
    pump: Pump | None,
) -> str | None:
    """``None`` when every rank is done or dead, ``deadline`` or ``peers`` when cut off."""
    free_at: float | None = None
    told_to_leave: set[int] = set()
    failed = False
    with _Listening(members) as listening:
        while listening.pending:
            now = time.monotonic()
            if now >= limit:
                return "peers" if failed else "deadline"
            if free_at is not None and now >= free_at:
                for member in members:
                    if results[member.rank].state == "done" and member.rank not in told_to_leave:
                        told_to_leave.add(member.rank)
                        leave(member)
            wake = min(limit, now + STREAM_EVERY_S if pump else limit)
            if free_at is not None and now < free_at:
                wake = min(wake, free_at)
            for member, readable in listening.speaking(wake - now):
                if hear(member, results[member.rank], generation, readable):
                    listening.done(member)
            if pump is not None:
                pump()
            if not failed and any(result.failed_at for result in results.values()):
                failed = True
                limit = min(limit, time.monotonic() + GRACE_S)
                free_at = time.monotonic() + FREE_AFTER_S
    return None


class _Listening:
    """The pipes and deaths of ranks that have not answered; made anew for each test."""

    def __init__(self, members: Sequence[RunningRank]) -> None:
        self.pending = {member.rank: member for member in members}
        self._selector = selectors.PollSelector()
        for member in members:
            self._selector.register(member.connection, selectors.EVENT_READ, (member, True))
            self._selector.register(member.process.sentinel, selectors.EVENT_READ, (member, False))

    def __enter__(self) -> _Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    def speaking(self, timeout: float) -> Iterator[tuple[RunningRank, bool]]:
        """Ranks that sent something (``True``) or ended without having sent anything."""
        ready: dict[int, tuple[RunningRank, bool]] = {}
        for key, _ in self._selector.select(max(0.0, timeout)):
            member, sent = key.data
            if sent or member.rank not in ready:
                ready[member.rank] = (member, sent)
        for rank in sorted(ready):
            yield ready[rank]

    def done(self, member: RunningRank) -> None:
        del self.pending[member.rank]
        self._selector.unregister(member.connection)
        self._selector.unregister(member.process.sentinel)


def hear(member: RunningRank, result: RankResult, generation: int, readable: bool) -> bool:
    """Take one message; True when this rank has nothing more to say."""
    try:
        if not readable:
            raise EOFError
        message = channel.receive(member.connection)
    except (EOFError, OSError, channel.ChannelError):
        member.process.join(agent.KILL_DEADLINE_S)
        return _died(result, agent.how_it_ended(member))
    kind = message["kind"]
    if kind == "copy":
        result.pid = int(message["pid"])
        return False
    if kind == "copy_ended":
        if message["generation"] != generation:
            return False  # of an earlier test
        return _died(result, agent.name_of_end(int(message["code"])))
    return _take(result, message)


def _died(result: RankResult, how: str) -> bool:
    result.state, result.ended = "died", how
    result.failed_at = result.failed_at or time.monotonic()
    return True


def _take(result: RankResult, message: Mapping[str, Any]) -> bool:
    reports = message.get("reports", [])
    result.reports += reports
    if message["kind"] == "unknown_test":
        result.state = "unknown_test"
    elif message["kind"] == "done":
        result.state = "done"
        result.digest = message.get("digest") or {}
        result.broken = bool(message.get("broken"))
    elif message["kind"] != "reports":
        result.state, result.ended = "died", f"unexpected message {message['kind']!r}"
    failed = any(report.get("outcome") == "failed" for report in reports)
    if failed or result.state in ("unknown_test", "died"):
        result.failed_at = result.failed_at or time.monotonic()
    return result.state != "hung"


def _look_at_the_dead(members: Sequence[RunningRank], results: Mapping[int, RankResult]) -> None:
    """Last output, last collective, last stack; and where all ranks stood when one died."""
    dead = [member for member in members if results[member.rank].state == "died"]
    if not dead:
        return
    for member in members:
        results[member.rank].standing = standing(member.page)
    for member in dead:
        result = results[member.rank]
        result.last_output = last_output.read(member.output)
        result.stack = fatal_stack(member.stacks)
