"""Single messages that ranks and launchers print: found by pattern, kept with their line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.sysfs import printable

_MAX_LINE = 4096
_MAX_ALIKE = 100
_RANK = re.compile(r"\[(?:rank|default)([0-9]{1,7})\]:|\b[Rr]ank:? ?([0-9]{1,7})\b")
Kinds = Sequence[tuple[str, re.Pattern[str]]]


@dataclass(frozen=True)
class Message:
    """One message: ``fields`` as printed; ``rank`` where the line names one."""

    line: int
    kind: str
    text: str
    rank: int | None
    fields: tuple[tuple[str, str], ...] = ()

    def field(self, name: str) -> str | None:
        """What the pattern named so, ``None`` if it was not there."""
        return dict(self.fields).get(name)


@dataclass(frozen=True)
class Messages:
    """Messages in order; at most 100 alike."""

    messages: tuple[Message, ...] = ()
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def scan(document: Document, hints: Sequence[str], kinds: Kinds) -> Messages:
    """All messages of these kinds, the first that fits each line; never raises, linear.

    Only lines with a hint are looked at; two lines that a terminal wrapped are read as one.
    """
    found: list[Message] = []
    alike: Counter[tuple[object, ...]] = Counter()
    lines = document.lines
    for number, raw in enumerate(lines, 1):
        if not any(hint in raw for hint in hints):
            continue
        line = raw[:_MAX_LINE]
        below = lines[number][:200].strip() if number < len(lines) else ""
        for kind, pattern in kinds:
            match = pattern.search(line) or pattern.search(f"{line.rstrip()} {below}")
            if match is None or match.start() >= len(line):
                continue
            fields = tuple((k, v) for k, v in match.groupdict().items() if v)
            rank = _RANK.search(line)
            at = int(rank[1] or rank[2]) if rank else None
            alike[kind, at] += 1
            if alike[kind, at] <= _MAX_ALIKE:
                start = max(0, match.start() - 80)
                text = printable(match.string[start : match.end() + 120].strip(), 400)
                found.append(Message(number, kind, text, at, fields))
            break
    return Messages(tuple(found))
