"""PyTorch's own words about a hang: watchdog, rendezvous store, mismatched collectives."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.fingerprints import Mismatch, mismatch_in
from pytest_gpucluster.facts.sysfs import printable

KIND = "watchdog"
TITLE = "PyTorch watchdog, rendezvous and collective mismatch messages"

_MAX_LINE = 16384
_MAX_KEPT = 20_000
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=([0-9]{1,15}), "
    r"OpType=(\w{1,40})(?:, NumelIn=([0-9]{1,18}), NumelOut=([0-9]{1,18}))?"
    r"(?:, TensorShape=\[[0-9, ]{0,80}\])?(?:, Timeout\(ms\)=([0-9]{1,12}))?"
)
_TIMEOUT_OPENS = re.compile(r"Watchdog caught collective operation timeout")
_RAN = re.compile(r"ran for ([0-9]{1,15}) milliseconds")
_RANK = re.compile(r"\b[Rr]ank ([0-9]{1,7})\]")
_TAG = re.compile(r"\[rank([0-9]{1,7})\]:")
_GROUP = re.compile(r"\[PG (?:ID ([0-9]{1,6}) PG GUID )?([\w:()-]{1,80}) Rank")
_STAMP = re.compile(r"\[[EWIF]([0-9]{3,4}) ([0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{1,9})")
_STUCK = re.compile(r"watchdog got stuck for ([0-9]{1,6}) seconds")
_STATUS = re.compile(
    r"work sequence id: ([0-9]{1,15}) PG status: last enqueued work: (-?[0-9]{1,15}), "
    r"last completed work: (-?[0-9]{1,15})"
)
_STORE = re.compile(
    r"Timed out after ([0-9]{1,8}) seconds waiting for (?:clients|workers)\. "
    r"([0-9]{1,7})/([0-9]{1,7}) (?:clients|workers) joined"
)
_UNREACHED = re.compile(
    r"client socket has timed out after ([0-9]{1,9})ms while trying to connect to "
    r"\(([\w.:-]{1,255}), ([0-9]{1,5})\)"
)


@dataclass(frozen=True)
class Timeout:
    """One rank's report that a collective did not end. ``group`` is ``None`` where the message
    names none: then its numbers compare with nobody's."""

    line: int
    rank: int | None
    seq: int
    op: str
    text: str
    group: str | None = None
    timeout_ms: int | None = None
    ran_ms: int | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    time: str | None = None

    @property
    def world_size(self) -> int | None:
        """Of an all-gather, whose output is as many times its input; else ``None``."""
        if "ALLGATHER" not in self.op or not self.numel_in or not self.numel_out:
            return None
        return self.numel_out // self.numel_in if self.numel_out % self.numel_in == 0 else None


@dataclass(frozen=True)
class Stuck:
    """A watchdog that made no progress itself: what follows from a hang, never its cause."""

    line: int
    rank: int | None
    seconds: int
    time: str | None = None


@dataclass(frozen=True)
class GroupStatus:
    """Where one rank's process group stood when it gave up."""

    line: int
    rank: int | None
    group: str | None
    failed_seq: int
    enqueued: int
    completed: int


@dataclass(frozen=True)
class StoreTimeout:
    """A rendezvous that not all ranks reached."""

    line: int
    joined: int
    expected: int
    waited_s: int
    text: str


@dataclass(frozen=True)
class Unreached:
    """A rendezvous server that did not answer."""

    line: int
    host: str
    port: int
    waited_ms: int
    text: str


@dataclass(frozen=True)
class WatchdogRecord:
    """Everything said about a hang, in order of lines; ``host``: as torchrun's summary names
    it."""

    timeouts: tuple[Timeout, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    status: tuple[GroupStatus, ...] = ()
    stores: tuple[StoreTimeout, ...] = ()
    unreached: tuple[Unreached, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    host: str | None = None
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def recognises(document: Document) -> bool:
    """Whether one of the messages stands there."""
    return any(_may_matter(line) for line in document.lines)


def _may_matter(line: str) -> bool:
    return (
        "Watchdog caught collective" in line
        or "watchdog got stuck" in line
        or "Detected mismatch between collectives" in line
        or "PG status: last enqueued" in line
        or (" joined" in line and "Timed out after" in line)
        or "client socket has timed out" in line
    )


def read(document: Document) -> WatchdogRecord:
    """All messages; never raises, linear in the text."""
    timeouts: list[Timeout] = []
    stuck: list[Stuck] = []
    status: list[GroupStatus] = []
    stores: list[StoreTimeout] = []
    unreached: list[Unreached] = []
    mismatches: list[Mismatch] = []
    unread: list[Unread] = []
    host = None
    alike: Counter[tuple[object, ...]] = Counter()
    for number, raw in enumerate(document.lines, 1):
        if host is None and (named := re.match(r"\s*host +: (\S{1,255})\s*$", raw[:400])):
            host = named[1]
        if not _may_matter(raw) or len(alike) > _MAX_KEPT:
            continue
        line = raw[:_MAX_LINE]
        # A progress bar may stand before a message, and one message directly behind another.
        for part in re.split(r"(?=\[[EWIF][0-9]{0,4} ?[0-9:.]* ?ProcessGroupNCCL)", line):
            if timeout := _timeout(part, line, number):
                key = (timeout.rank, timeout.group, timeout.seq, timeout.op)
                alike[key] += 1
                if alike[key] == 1:
                    timeouts.append(timeout)
            elif _TIMEOUT_OPENS.search(part):
                unread.append(Unread(number, "a watchdog timeout that ends early"))
            if match := _STUCK.search(part):
                stuck.append(Stuck(number, _rank(part, line), int(match[1]), _time(part, line)))
            if match := _STATUS.search(part):
                numbers = [int(value) for value in match.groups()]
                status.append(GroupStatus(number, _rank(part, line), _group(part), *numbers))
        if match := _STORE.search(line):
            waited, joined, expected = (int(value) for value in match.groups())
            text = printable(match[0], 300)
            stores.append(StoreTimeout(number, joined, expected, waited, text))
        if match := _UNREACHED.search(line):
            text = printable(match[0], 300)
            unreached.append(Unreached(number, match[2], int(match[3]), int(match[1]), text))
        if "Detected mismatch" in line:
            found = mismatch_in(line, number)
            if found is None:
                unread.append(Unread(number, "mismatched collectives that cannot be read"))
            else:
                mismatches.append(found)
    return WatchdogRecord(
        tuple(timeouts),
        tuple(stuck[:_MAX_KEPT]),
        tuple(status[:_MAX_KEPT]),
        tuple(stores),
        tuple(unreached),
        tuple(mismatches),
        host,
        tuple(unread[:100]),
    )


def _timeout(part: str, line: str, number: int) -> Timeout | None:
    match = _TIMEOUT.search(part)
    if match is None:
        return None
    seq, op, numel_in, numel_out, limit = match.groups()
    ran = _RAN.search(part)
    return Timeout(
        number,
        _rank(part, line),
        int(seq),
        op,
        printable(part[max(0, match.start() - 40) :].strip(), 300),
        _group(part),
        _int(limit),
        int(ran[1]) if ran else None,
        _int(numel_in),
        _int(numel_out),
        _time(part, line),
    )


def _rank(part: str, line: str) -> int | None:
    match = _RANK.search(part) or _TAG.search(line)
    return int(match[1]) if match else None


def _group(part: str) -> str | None:
    match = _GROUP.search(part)
    return match[2] if match else None


def _time(part: str, line: str) -> str | None:
    match = _STAMP.search(part) or _STAMP.search(line)
    return f"{match[1]} {match[2]}" if match else None


def _int(text: str | None) -> int | None:
    return int(text) if text else None


def summary(record: WatchdogRecord) -> dict[str, object]:
    """Numbers by rank where ranks differ."""
    facts: dict[str, object] = {}
    timeouts = record.timeouts
    ranks = {t.rank for t in timeouts} | {s.rank for s in record.stuck}
    named = sorted(rank for rank in ranks if rank is not None)
    if timeouts or record.stuck:
        facts["ranks"] = named
        facts["silent_ranks"] = silent(record)
        facts["watchdog_stuck_ranks"] = sorted({s.rank for s in record.stuck if s.rank is not None})
    by_rank: dict[str, list[int]] = {}
    for timeout in timeouts:
        by_rank.setdefault(str(timeout.rank), []).append(timeout.seq)
    if timeouts:
        facts["seqs"] = {rank: sorted(seqs) for rank, seqs in by_rank.items()}
        timed = [t for t in timeouts if t.time is not None]
        facts["first_reporter"] = min(timed, key=lambda t: t.time or "").rank if timed else None
    single: dict[str, set[object]] = {
        "seq": {t.seq for t in timeouts},
        "op": {t.op for t in timeouts} or {m.first.op for m in record.mismatches},
        "timeout_ms": {t.timeout_ms for t in timeouts},
        "world_size": {t.world_size for t in timeouts},
    }
    facts |= {k: v.pop() for k, v in single.items() if len(v) == 1}
    if record.stores:
        first = record.stores[0]
        facts |= {
            "joined": first.joined,
            "expected": first.expected,
            "waited_s": first.waited_s,
        }
    if record.mismatches:
        pair = record.mismatches[0]
        sides = (pair.first, pair.second)
        facts["ranks"] = sorted(side.rank for side in sides)
        numbers = {str(side.rank): side.seq for side in sides}
        same = len(set(numbers.values())) == 1
        facts["seq"] = pair.first.seq if same else numbers
        facts["shape"] = {str(side.rank): list(side.shape) for side in sides if side.shape}
        if pair.first.dtype:
            facts["dtype"] = pair.first.dtype
    if record.host:
        facts["host"] = record.host
    return facts


def silent(record: WatchdogRecord) -> list[int]:
    """Ranks below the highest one seen that report nothing: candidates, for a log may lack
    some."""
    seen = {t.rank for t in record.timeouts} | {s.rank for s in record.stuck}
    named = {rank for rank in seen if rank is not None}
    return [rank for rank in range(min(max(named, default=-1), 100_000)) if rank not in named]
