"""Dumps of PyTorch's flight recorder, one file per rank, as JSON or pickled plain data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.sysfs import printable

KIND = "flight_recorder"
TITLE = "PyTorch flight recorder dump"
_MAX_ENTRIES = 200_000
_FRAMEWORK = re.compile(r"/torch/|<frozen|/importlib/")


@dataclass(frozen=True)
class Entry:
    """One collective of one group. ``ended``: it is known to be over; ``where``: the user's
    line."""

    group: str
    seq: int
    op: str
    ended: bool
    sizes: str
    where: str | None


@dataclass(frozen=True)
class FlightRecord:
    """What one rank recorded. ``rank``: from the file's name, ``None`` if it names none.

    ``last``: the highest number of each group that the rank began.
    """

    rank: int | None = None
    entries: tuple[Entry, ...] = ()
    version: str | None = None
    unread: tuple[Unread, ...] = ()
    cut: str | None = None

    @property
    def last(self) -> dict[str, Entry]:
        """The last collective of each group."""
        latest: dict[str, Entry] = {}
        for entry in self.entries:
            if entry.group not in latest or entry.seq >= latest[entry.group].seq:
                latest[entry.group] = entry
        return latest


def recognises(document: Document) -> bool:
    """Whether it opens like such a dump."""
    head = document.lines[0][:4000] if document.lines else ""
    text = "\n".join(document.lines[:400])[:100_000] if len(document.lines) > 1 else head
    return text.lstrip().startswith("{") and (
        '"pg_config"' in text or '"pg_status"' in text or '"collective_seq_id"' in text
    )


def read(document: Document) -> FlightRecord:
    """All collectives; never raises."""
    rank = re.search(r"([0-9]{1,7})(?:\.\w{1,8}){0,2}$", document.name)
    at = int(rank[1]) if rank else None
    try:
        data = json.loads(document.text)
    except (ValueError, RecursionError) as error:
        return FlightRecord(at, cut=f"broken JSON: {str(error)[:120]}")
    top = data if isinstance(data, dict) else {}
    if isinstance(top.get("rank"), int):
        at = top["rank"]
    unread: list[Unread] = []
    entries = []
    for place, raw in enumerate(_list(top.get("entries"))[:_MAX_ENTRIES]):
        entry = _entry(raw)
        if entry is not None:
            entries.append(entry)
        elif len(unread) < 100:
            unread.append(Unread(1, f"entry {place} cannot be read"))
    version = printable(str(top.get("version", "")), 20) or None
    empty = None if entries else "no collective was recorded"
    return FlightRecord(at, tuple(entries), version, tuple(unread), empty)


def _entry(raw: object) -> Entry | None:
    if not isinstance(raw, dict):
        return None
    seq = raw.get("collective_seq_id", raw.get("seq_id"))
    if not isinstance(seq, int) or isinstance(seq, bool) or raw.get("is_p2p"):
        return None if not raw.get("is_p2p") else Entry("p2p", 0, "p2p", True, "", None)
    group = raw.get("process_group") or raw.get("pg_name") or raw.get("pg_id")
    name = " ".join(map(str, group)) if isinstance(group, list) else str(group)
    ended = bool(raw.get("retired")) or raw.get("state") == "completed"
    sizes = raw.get("input_sizes")
    return Entry(
        printable(name, 120),
        seq,
        printable(str(raw.get("profiling_name", "")), 60),
        ended,
        printable(json.dumps(sizes), 120) if sizes else "",
        _user_line(raw.get("frames")),
    )


def _user_line(frames: object) -> str | None:
    for frame in _list(frames):
        if isinstance(frame, dict):
            file = str(frame.get("filename", ""))
            if file and not _FRAMEWORK.search(file):
                return printable(f"{file}:{frame.get('line')} ({frame.get('name')})", 200)
    return None


def summary(record: FlightRecord) -> dict[str, object]:
    """The last number by group."""
    return {
        "rank": record.rank,
        "entries": len(record.entries),
        "last": {group: entry.seq for group, entry in record.last.items()},
    }


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
