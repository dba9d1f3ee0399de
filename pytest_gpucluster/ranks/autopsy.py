"""A hang or a death: which rank, where, why.

Before anything is killed every rank's Python stack is dumped (faulthandler on a signal, which
works while the process is blocked in C++) and torch's flight recorder is asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpucluster.ranks import channel
from pytest_gpucluster.ranks.agent import RunningRank
from pytest_gpucluster.ranks.results import RankResult

ASK_AGAIN_S = 0.5
DUMP_DEADLINE_S = 3.0  # a loaded node is slow to write even a few frames
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)$', re.M)
# The start of the main thread, which faulthandler writes last.
OUTERMOST = re.compile(r'ranks/rank\.py", line \d+ in main\n')
HARNESS = re.compile(
    r"/(?:_pytest|pluggy|pytest_gpucluster/(?:ranks|plugin|fixtures|distributed))"
    r"|/site-packages/(?:xdist|pytest_timeout)|/threading\.py$|/contextlib\.py$|multiprocessing/"
)
STDLIB = str(Path(os.__file__).parent)
TORCH = re.compile(r"/torch/")
PEER_LOST = re.compile(
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|"
    r"Timed out waiting \d+ms for (?:recv|send) operation|failed to pass monitoredBarrier|"
    r"ncclRemoteError|remote process exited or there was a network error|"
    r"Socket closed|store->get|connectFullMesh failed"
)


@dataclass(frozen=True)
class Place:
    """Where a rank stands: inside a collective, or in code of its own."""

    collective: str | None
    function: str
    file: str
    line: int

    def describe(self) -> str:
        where = f"{Path(self.file).name}:{self.line}"
        if self.collective:
            return f"wait in {self.collective} at {where}"
        return f"in {self.function} at {where}"


def examine(members: Sequence[RunningRank], results: dict[int, RankResult]) -> None:
    """Fill ``stack`` and ``flight_recorder`` of ranks that did not answer."""
    for member in members:
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(member.pid, signal.SIGUSR1)
        with contextlib.suppress(OSError):
            channel.send(member.control, "flight_recorder")
    deadline = time.monotonic() + DUMP_DEADLINE_S
    for member in members:
        result = results[member.rank]
        if process_state(member.pid) == "stopped":  # it cannot answer, and would use up the time
            result.ended = "stopped (SIGSTOP)"
            continue
        result.stack = _await_stack(member, deadline) or None
        with contextlib.suppress(OSError, EOFError, channel.ChannelError):
            if member.control.poll(max(0.0, deadline - time.monotonic())):
                channel.receive(member.control)
                flight = member.stacks.with_suffix(".flight.json")
                result.flight_recorder = flight.read_text(encoding="utf-8")


def _await_stack(member: RunningRank, deadline: float) -> str:
    """The stack text once it is complete, or what there is at the deadline.

    A rank that has written nothing is asked again: on a loaded node the first signal can come
    while it is not yet able to answer.
    """
    ask_again = time.monotonic() + ASK_AGAIN_S
    while True:
        text = member.stacks.read_text(encoding="utf-8", errors="replace")
        if OUTERMOST.search(text) or time.monotonic() >= deadline:
            return text
        if not text and time.monotonic() >= ask_again:
            ask_again += ASK_AGAIN_S
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(member.pid, signal.SIGUSR1)
        time.sleep(0.02)


def process_state(pid: int) -> str:
    """``running``, ``sleeping``, ``uninterruptible``, ``stopped``, ``zombie`` or ``gone``."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "gone"
    names = {"R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped"}
    return names.get(letter, "zombie" if letter == "Z" else "stopped" if letter == "t" else letter)


def find_place(stack: str | None) -> Place | None:
    """The innermost frame of the user's code, and the collective it called, if any.

    ``stack`` is faulthandler's text, innermost frame first, several threads.
    """
    inner: list[str] = []
    for frame in FRAME.finditer(_main_thread(stack)):
        file = frame["file"]
        if HARNESS.search(file):
            continue
        if TORCH.search(file):
            if "/torch/distributed/" in file and frame["function"] != "wrapper":
                inner.append(frame["function"])
            continue
        if not inner and file.startswith(STDLIB) and "/site-packages/" not in file:
            continue
        return Place(inner[-1] if inner else None, frame["function"], file, int(frame["line"]))
    return None


def own_frames(stack: str | None) -> str:
    """The main thread's frames without pytest's and this package's."""
    shown = [
        frame[0]
        for frame in FRAME.finditer(_main_thread(stack))
        if not HARNESS.search(frame["file"])
    ]
    return "\n".join(shown) or "  (no stack)"


def _main_thread(stack: str | None) -> str:
    """Its part of faulthandler's text. Of a deep stack only the 100 innermost frames are told."""
    threads = re.split(r"\n(?=(?:Current t|T)hread 0x)", stack or "")
    own = [thread for thread in threads if "_obey" not in thread]
    for sign in ("ranks/rank.py", "Current thread"):
        for thread in own:
            if sign in thread:
                return re.sub(r'\n  File "<string>", line 1 in <module>\s*$', "", thread)
    return ""


def narrate(results: Iterable[RankResult]) -> str:
    """One sentence: who waits where, who is elsewhere, who died, who had finished."""
    said: dict[str, list[int]] = {}
    for result in results:
        if result.state == "died":
            what = f"died ({result.ended})"
        elif result.state == "done":
            what = "finished"
        elif result.ended:
            what = result.ended
        else:
            place = find_place(result.stack)
            what = place.describe() if place else "gave no stack"
        said.setdefault(what, []).append(result.rank)
    return "; ".join(f"{rank_list(ranks)} {what}" for what, ranks in said.items())


def suspects(results: Sequence[RankResult]) -> list[int]:
    """The ranks that kept the others waiting: elsewhere, or finished without arriving."""
    hung = [result for result in results if result.state == "hung"]
    outside = [
        result.rank
        for result in hung
        if result.ended or not (place := find_place(result.stack)) or not place.collective
    ]
    if not outside:
        outside = [result.rank for result in results if result.state == "done"]
    return outside if 0 < len(outside) < len(results) else []


def rank_list(ranks: Sequence[int]) -> str:
    """``rank 2``, ``ranks 0,1,3`` or ``ranks 1-7``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]}-{ordered[-1]}"
    return "ranks " + ",".join(map(str, ordered))


def peer_was_lost(text: str) -> bool:
    """Whether an error only says that another rank went away."""
    return PEER_LOST.search(text) is not None
