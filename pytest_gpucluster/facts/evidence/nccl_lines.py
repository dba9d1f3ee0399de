"""Lines of NCCL's log, in whatever a launcher or a log service wrapped them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# host:pid:tid [device] file.cc:line (function) NCCL LEVEL message; all before NCCL may be missing
_MESSAGE = re.compile(
    r"(?:(?P<host>[A-Za-z0-9_][\w.-]{0,254}):(?P<pid>[0-9]{1,10}):(?P<tid>[0-9]{1,10}) )?"
    r"(?:\[(?P<device>-?[0-9]{1,4})\] )?"
    r"(?:(?P<place>[\w./-]{3,80}:[0-9]{1,6})(?: \(\w{1,60}\))? )?"
    r"NCCL (?P<level>INFO|WARN|TRACE|ERROR|VERSION|ABORT) ?",
    re.ASCII,
)
_STAMP = re.compile(r"\[([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8})[.0-9]*\] ?$")


@dataclass(frozen=True)
class NcclLine:
    """One message. ``device``: the CUDA device in brackets; ``place``: source file and line."""

    line: int
    level: str
    text: str
    host: str | None = None
    pid: int | None = None
    device: int | None = None
    place: str | None = None
    timestamp: str | None = None


def messages(line: str, number: int) -> Iterator[NcclLine]:
    """The messages of a line; a log service may print one twice, joined by a bar."""
    found = list(_MESSAGE.finditer(line))
    seen = set()
    for place, match in enumerate(found):
        end = found[place + 1].start() if place + 1 < len(found) else len(line)
        text = line[match.end() : end].strip()
        if place + 1 < len(found):
            text = text.removesuffix("|").strip()
        stamp = _STAMP.search(line, 0, match.start())
        key = (match["host"], match["pid"], match["level"], text)
        if key in seen:
            continue
        seen.add(key)
        yield NcclLine(
            number,
            match["level"],
            text,
            match["host"],
            int(match["pid"]) if match["pid"] else None,
            int(match["device"]) if match["device"] else None,
            match["place"],
            stamp[1] if stamp else None,
        )
