"""DCGM's tables on a terminal: ``dcgmi nvlink -s``, ``dcgmi health -c``, ``dcgmi diag``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.sysfs import printable

KIND = "dcgm"
TITLE = "dcgmi nvlink -s, dcgmi health -c, dcgmi diag"

_MAX_LINE = 2048
_MAX_TEXT = 100_000
_TABLE = re.compile(r"\|(.{1,400}?)\|(.{1,400}?)\|\s*")
_LINKS = re.compile(r"\s*((?:[UDX_] )*[UDX_])\s*")
_OWNER = re.compile(r"\s*(gpuId|physicalId|switchId) ([0-9]{1,6}):\s*")
_DOWN = re.compile(r"GPU ([0-9]{1,4})'s ?NvLink ?link ?([0-9]{1,3}) ?is ?currently ?down")
_STATUS = re.compile(r"(Pass|Failure|Fail|Warning|Warn|Skip|Healthy)(?: - (.{1,40}))?")


@dataclass(frozen=True)
class LinkLetters:
    """Links of a GPU or switch: ``letters`` U up, D down, X disabled, _ not supported."""

    line: int
    owner: str  # "GPU0", "switch 3"
    letters: str


@dataclass(frozen=True)
class TableRow:
    """A named result and everything that stands under it, wrapped words joined."""

    line: int
    name: str
    status: str
    detail: str
    text: str


@dataclass(frozen=True)
class DcgmTextRecord:
    """``down``: links that a message calls down, by GPU; ``no_switches``: it says there are
    none."""

    links: tuple[LinkLetters, ...] = ()
    rows: tuple[TableRow, ...] = ()
    down: tuple[tuple[int, int, int], ...] = ()  # line, GPU, link
    no_switches: bool = False
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def recognises(document: Document) -> bool:
    """Whether one of the three tables stands there."""
    text = document.text
    if "NvLink Link Status" in text and "gpuId" in text:
        return True
    if "Overall Health" in text or "Health Monitor Report" in text:
        return True
    return "+-----  " in text and bool(
        re.search(r"\| *[A-Z][\w /]{2,24} *\| (?:Pass|Fail|Skip|Warn)\b", text)
    )


def read(document: Document) -> DcgmTextRecord:
    """All tables; never raises, linear in the text."""
    links: list[LinkLetters] = []
    rows: list[TableRow] = []
    unread: list[Unread] = []
    owner: tuple[int, str] | None = None
    key = no_switches = False
    for number, raw in enumerate(document.lines, 1):
        line = raw[:_MAX_LINE]
        if opening := _OWNER.fullmatch(line):
            if owner is not None:
                unread.append(Unread(owner[0], f"{owner[1]} has no links"))
            name = f"GPU{opening[2]}" if opening[1] == "gpuId" else f"switch {opening[2]}"
            owner = (number, name)
        elif owner is not None and (letters := _LINKS.fullmatch(line)):
            links.append(LinkLetters(number, owner[1], letters[1].replace(" ", "")))
            owner = None
        elif table := _TABLE.fullmatch(line):
            _take_row(rows, number, table[1], table[2])
        key = key or line.startswith("Key: Up=")
        no_switches = no_switches or "No NvSwitches found" in line
    down = []
    for row in rows:
        for match in _DOWN.finditer(_joined(row.text)):
            down.append((row.line, int(match[1]), int(match[2])))
    return DcgmTextRecord(
        tuple(links),
        tuple(rows),
        tuple(dict.fromkeys(down)),
        no_switches,
        tuple(unread),
        _cut(links, owner, rows, document, key=key),
    )


def _take_row(rows: list[TableRow], number: int, left: str, right: str) -> None:
    name = left.strip().removeprefix("->").strip()
    status = _STATUS.match(right.strip())
    if name and name not in ("Warning", "Error") and status:
        row = TableRow(number, printable(name, 60), status[1], status[2] or "", "")
        rows.append(row)
    elif rows:
        last = rows[-1]
        rows[-1] = TableRow(
            last.line,
            last.name,
            last.status,
            last.detail,
            (last.text + right[1:].rstrip())[:_MAX_TEXT],
        )


def _joined(text: str) -> str:
    """Wrapped inside words: every line is as wide as the column, so none has a blank to lose
    but at its end."""
    return re.sub(r"GPU ?([0-9])", r"GPU \1", re.sub(r" {2,}", " ", text))


def _cut(
    links: list[LinkLetters],
    owner: tuple[int, str] | None,
    rows: list[TableRow],
    document: Document,
    *,
    key: bool,
) -> str | None:
    if owner is not None:
        return f"{owner[1]} has no links listed"
    if links and not key:
        return "the key below the table is missing"
    last = next((line for line in reversed(document.lines) if line.strip()), "")
    if rows and not last.startswith("+"):
        return "the table has no end"
    return None


def summary(record: DcgmTextRecord) -> dict[str, object]:
    """``links_down``: how many of a GPU's letters say down, or which links a message names."""
    facts: dict[str, object] = {}
    if record.links:
        gpus = [entry for entry in record.links if entry.owner.startswith("GPU")]
        facts |= {
            "gpus": len(gpus),
            "links_total": {g.owner: len(g.letters) for g in gpus},
            "links_up": {g.owner: g.letters.count("U") for g in gpus},
            "links_down": {g.owner: g.letters.count("D") for g in gpus},
            "nvswitches": len(record.links) - len(gpus),
        }
    for row in record.rows:
        if row.name == "Overall Health":
            facts["overall_health"] = row.status
        elif match := re.fullmatch(r"(\w+) system", row.name):
            facts["system"] = match[1]
    if record.down:
        named: dict[str, list[int]] = {}
        for _, gpu, link in record.down:
            named.setdefault(f"GPU{gpu}", []).append(link)
        facts["links_down"] = named
    facts["failed"] = [row.name for row in record.rows if row.status in ("Fail", "Failure")]
    return facts
