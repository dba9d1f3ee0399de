"""A hang or a death: which rank, where, why.

Before anything is killed every rank's Python stack is dumped (faulthandler on a signal, which
works while the process is blocked in C++), and its control thread is asked for torch's flight
recorder and the collectives of the test.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_gpucluster.ranks import channel, flight, process_state
from pytest_gpucluster.ranks.agent import RunningRank
from pytest_gpucluster.ranks.differences import Difference, clash_of_standings, first_difference
from pytest_gpucluster.ranks.naming import rank_list
from pytest_gpucluster.ranks.progress import standing
from pytest_gpucluster.ranks.results import RankResult
from pytest_gpucluster.ranks.stacks import OUTERMOST, find_place

ASK_AGAIN_S = 0.5
DUMP_DEADLINE_S = 2.0  # a loaded node is slow to write even a few frames
ANSWER_DEADLINE_S = 1.0
PEER_LOST = re.compile(
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|"
    r"Timed out waiting \d+ms for (?:recv|send) operation|failed to pass monitoredBarrier|"
    r"ncclRemoteError|remote process exited or there was a network error|"
    r"Socket closed|store->get|connectFullMesh failed"
)


def examine(members: Sequence[RunningRank], results: Mapping[int, RankResult]) -> None:
    """Fill in what ranks that did not answer are doing: stack, state, collectives."""
    pids = {member.rank: results[member.rank].pid or member.pid for member in members}
    before = {rank: process_state.cpu_seconds(pid) for rank, pid in pids.items()}
    for member in members:
        os.truncate(member.stacks, 0)  # an earlier hang may have left something
        _dump(pids[member.rank])
    deadline = time.monotonic() + DUMP_DEADLINE_S
    for member in members:
        result, pid = results[member.rank], pids[member.rank]
        result.standing = standing(member.page)
        if process_state.process_state(pid) == "stopped":
            result.ended = "stopped (SIGSTOP)"  # it cannot answer, and would use up the time
        else:
            result.stack = _await_stack(member.stacks, pid, deadline) or None
    # Only now: faulthandler may crash a process whose control thread runs while it looks.
    answering = [member for member in members if results[member.rank].ended is None]
    ask(answering, results)
    for rank, pid in pids.items():
        used, now = before[rank], process_state.cpu_seconds(pid)
        if results[rank].ended is None and used is not None and now is not None:
            state = process_state.process_state(pid)
            busy = now > used and state != "sleeping"
            results[rank].activity = "uses the CPU" if busy else state


def _dump(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)


def ask(members: Sequence[RunningRank], results: Mapping[int, RankResult]) -> None:
    """Ask ranks for the collectives they called, and for torch's record of them."""
    serial = _question(members)
    deadline = time.monotonic() + ANSWER_DEADLINE_S
    for member in members:
        results[member.rank].told = _await_told(member, serial, deadline)


def _question(members: Iterable[RunningRank]) -> int:
    """Ask all, then wait for each: a number tells this question's answers from late ones."""
    serial = time.monotonic_ns()
    for member in members:
        with contextlib.suppress(OSError):
            channel.send(member.control, "tell", serial=serial)
    return serial


def _await_told(member: RunningRank, serial: int, deadline: float) -> dict[str, object]:
    with contextlib.suppress(OSError, EOFError, channel.ChannelError):
        while member.control.poll(max(0.0, deadline - time.monotonic())):
            answer = channel.receive(member.control)
            if answer.get("serial") == serial:
                return answer
    return {}


def _await_stack(stacks: Path, pid: int, deadline: float) -> str:
    """The stack text once it is complete, or what there is at the deadline.

    A rank that has written nothing is asked again: on a loaded node the first signal can come
    while it is not yet able to answer.
    """
    ask_again = time.monotonic() + ASK_AGAIN_S
    while True:
        text = stacks.read_text(encoding="utf-8", errors="replace")
        if OUTERMOST.search(text) or time.monotonic() >= deadline:
            return text
        if not text and time.monotonic() >= ask_again:
            ask_again += ASK_AGAIN_S
            _dump(pid)
        time.sleep(0.02)


def find_difference(results: Sequence[RankResult]) -> Difference | None:
    """Where the ranks' collectives part, from all that is known after a test."""
    told = {result.rank: result.told for result in results if result.told}
    signatures = {rank: answer.get("signatures") or {} for rank, answer in told.items()}
    members = {
        group: entry[0] for answer in told.values() for group, entry in _digest(answer).items()
    }
    found = first_difference(signatures, _known(members, told))
    if found is not None:
        return found
    recorded = flight.clash({rank: answer.get("flight") or {} for rank, answer in told.items()})
    if recorded is not None:
        return recorded
    return clash_of_standings(
        {result.rank: result.standing for result in results if result.standing is not None}
    )


def _digest(answer: Mapping[str, object]) -> Mapping[str, Sequence[Sequence[int]]]:
    digest = answer.get("digest")
    return digest if isinstance(digest, dict) else {}


def _known(
    members: Mapping[str, Sequence[int]], told: Mapping[int, object]
) -> dict[str, list[int]]:
    """Only ranks that answered can be compared."""
    return {group: [rank for rank in ranks if rank in told] for group, ranks in members.items()}


def narrate(results: Iterable[RankResult]) -> str:
    """One sentence: who waits where, who is elsewhere, who died, who had finished."""
    said: dict[str, list[int]] = {}
    for result in results:
        said.setdefault(_doing(result), []).append(result.rank)
    return "; ".join(
        f"{rank_list(ranks)} {_plural(what) if len(ranks) > 1 else what}"
        for what, ranks in said.items()
    )


def _doing(result: RankResult) -> str:
    if result.state == "died":
        return f"died ({result.ended})"
    if result.state == "done":
        return "finished"
    if result.ended:
        return result.ended
    place = find_place(result.stack)
    if place is None:
        return f"gave no stack ({result.activity})" if result.activity else "gave no stack"
    if place.collective:
        return f"waits in {place.collective} at {place.where}{_which(result)}"
    activity = f", {result.activity}" if result.activity else ""
    return f"is in {place.function} at {place.where}{activity}"


def _which(result: RankResult) -> str:
    """The collective's number in this test, or else in its group, and what it moves."""
    if result.standing is not None and result.standing.collective:
        return f" (number {result.standing.number}: {result.standing.collective})"
    waits_for = flight.pending(result.told.get("flight") or {})
    return f" ({waits_for.describe()})" if waits_for else ""


def _plural(what: str) -> str:
    for one, several in (("waits in ", "wait in "), ("is in ", "are in ")):
        if what.startswith(one):
            return several + what.removeprefix(one)
    return what


def suspects(results: Sequence[RankResult]) -> list[int]:
    """The ranks that kept the others waiting.

    Those that are elsewhere; where all others finished, the fewer: one rank waiting for many
    that are done called a collective too many, many waiting for one that is done were left.
    Between as many on both sides nobody can tell.
    """
    hung = [result for result in results if result.state == "hung"]
    outside = [result.rank for result in hung if not _waits(result)]
    if outside:
        return outside if len(outside) < len(results) else []
    done = [result.rank for result in results if result.state == "done"]
    waiting = [result.rank for result in hung]
    if not done:
        return []
    if len(done) == len(waiting):
        return sorted(done + waiting)
    return min(done, waiting, key=len)


def _waits(result: RankResult) -> bool:
    if result.ended:
        return False
    place = find_place(result.stack)
    return place is not None and place.collective is not None


def peer_was_lost(text: str) -> bool:
    """Whether an error only says that another rank went away."""
    return PEER_LOST.search(text) is not None
