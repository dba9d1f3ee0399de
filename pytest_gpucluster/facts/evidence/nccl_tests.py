"""nccl-tests output: tables of ``all_reduce_perf`` and its kin, tagged, interleaved or cut."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.launch_tags import split_tag, untagged
from pytest_gpucluster.facts.evidence.nccl_tests_rows import Row, parse_row
from pytest_gpucluster.facts.sysfs import printable

KIND = "nccl_tests"
TITLE = "nccl-tests (all_reduce_perf and its kin)"

_MAX_LINE = 2048
_MAX_ROWS = 100_000
_MAX_WRITERS = 100_000
_DEVICE = re.compile(
    r"#\s+Rank\s+([0-9]{1,6}) (?:Group\s+[0-9]{1,6} )?Pid\s+([0-9]{1,10}) on\s+(\S{1,255}) "
    r"device\s+([0-9]{1,3}) \[([0-9a-fA-Fx:.]{1,16})\] (.{1,120})"
)
_VALIDATION = re.compile(r"# nThread .{0,300}\bvalidation: ([0-9])")
_TEST = re.compile(r"\b(\w{2,30}_perf)\b")
_COLLECTIVE = re.compile(r"# Collective test (?:starting|concluded):? ?(\w{2,30})")
_BOUNDS = re.compile(r"# Out of bounds values : ([0-9]{1,12}) (OK|FAILED)")
_AVERAGE = re.compile(r"# Avg bus bandwidth +: ([0-9]{1,6}(?:\.[0-9]{1,9})?)")
_VERSION = re.compile(r"NCCL version ([0-9.]{3,16})")
_VIA = re.compile(r"NCCL INFO Channel .{0,80} via (\S{1,40})")
_HEADER = re.compile(r"#\s+size\s+count(?:\s+\(elements\))?\s+type\b")


@dataclass(frozen=True)
class Device:
    """One line of the device list."""

    line: int
    rank: int
    pid: int
    host: str
    device: int
    product: str


@dataclass(frozen=True)
class Table:
    """One run. ``wrong`` and bandwidths stand in ``rows``; sizes are bytes, bandwidths GB/s.

    ``validated``: the heading's word, ``None`` without a heading. ``out_of_bounds``: the
    footer's count and whether it says OK. ``average`` depends on the sizes and judges nothing.
    """

    line: int
    rows: tuple[Row, ...] = ()
    devices: tuple[Device, ...] = ()
    test: str | None = None
    validated: bool | None = None
    header: bool = False
    footer: int | None = None
    out_of_bounds: tuple[int, bool] | None = None
    average: float | None = None
    nccl_version: str | None = None
    transports: tuple[str, ...] = ()

    @property
    def complete_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.complete)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(device.host for device in self.devices))

    @property
    def product(self) -> str | None:
        """The product all ranks have, ``None`` if they differ or are not listed."""
        names = {device.product for device in self.devices}
        return names.pop() if len(names) == 1 else None


@dataclass(frozen=True)
class NcclTests:
    """The runs of a text; one run with several tables of one rank each is one table."""

    tables: tuple[Table, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def cut(self) -> str | None:
        return next((f"line {t.line}: no footer" for t in self.tables if not t.footer), None)


def recognises(document: Document) -> bool:
    """Whether a header, a row, a footer or the program's name stands there."""
    rows = 0
    for raw in document.lines:
        line = raw[:_MAX_LINE]
        if "#" in line and (_HEADER.search(line) or _BOUNDS.search(line) or _AVERAGE.search(line)):
            return True
        if "_perf" in line and re.search(
            r"\b(?:all_reduce|all_gather|reduce_scatter|broadcast"
            r"|reduce|alltoall|sendrecv|scatter|gather)_perf\b",
            line,
        ):
            return True
        rows += parse_row(0, untagged(line)) is not None
        if rows >= 2:
            return True
    return False


class _Run:
    """The run being read."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.rows: list[Row] = []
        self.devices: list[Device] = []
        self.test: str | None = None
        self.validated: bool | None = None
        self.header = False
        self.footer: int | None = None
        self.bounds: tuple[int, bool] | None = None
        self.average: float | None = None
        self.version: str | None = None
        self.transports: Counter[str] = Counter()

    def table(self) -> Table:
        return Table(
            self.line, tuple(self.rows), tuple(self.devices), self.test, self.validated,
            self.header, self.footer, self.bounds, self.average, self.version,
            tuple(self.transports),
        )  # fmt: skip

    @property
    def started(self) -> bool:
        return bool(self.rows or self.footer or self.header)


def read(document: Document) -> NcclTests:
    """All runs; never raises, linear in the text.

    Processes that each print a table of their own are told apart by their launcher's tag.
    """
    runs: dict[str, list[_Run]] = {}
    unread: list[Unread] = []
    total = 0
    for number, raw in enumerate(document.lines, 1):
        writer, line = split_tag(raw[:_MAX_LINE])
        of_writer = runs.setdefault(writer if len(runs) < _MAX_WRITERS else "", [])
        if not of_writer:
            of_writer.append(_Run(number))
        run = of_writer[-1]
        heading = _VALIDATION.search(line)
        if heading or (run.footer and _HEADER.search(line)):
            if run.started:
                of_writer.append(_Run(number))
                of_writer[-1].test = run.test
                run = of_writer[-1]
            if heading:
                run.validated = heading[1] != "0"
        elif (row := parse_row(number, line)) is not None:
            total += 1
            if total <= _MAX_ROWS:
                run.rows.append(row)
            elif total == _MAX_ROWS + 1:
                unread.append(Unread(number, f"more than {_MAX_ROWS} rows"))
        elif _looks_like_row(line) and run.started and not run.footer:
            unread.append(
                Unread(number, f"a row that cannot be read: {printable(line.strip(), 80)}")
            )
        else:
            _notice(run, line, number)
    found = [run for of_writer in runs.values() for run in of_writer]
    started = [run for run in found if run.started or run.devices]
    tables = started or [run for run in found if run.test]
    return NcclTests(tuple(run.table() for run in tables), tuple(unread[:100]))


def _looks_like_row(line: str) -> bool:
    words = line.split(None, 2)
    return len(words) == 3 and words[0].isdecimal() and words[1].isdecimal()


def _notice(run: _Run, line: str, number: int) -> None:
    if _HEADER.search(line):
        run.header = True
    elif device := _DEVICE.search(line):
        run.devices.append(
            Device(number, int(device[1]), int(device[2]), device[3], int(device[4]),
                   printable(device[6].strip(), 80))
        )  # fmt: skip
    elif bounds := _BOUNDS.search(line):
        run.bounds, run.footer = (int(bounds[1]), bounds[2] == "OK"), number
    elif average := _AVERAGE.search(line):
        run.average = float(average[1])
        run.footer = run.footer or number
    elif version := _VERSION.search(line):
        run.version = version[1].rstrip(".")
    elif via := _VIA.search(line):
        run.transports[via[1].split("/")[0]] += 1
    elif run.test is None and (test := _COLLECTIVE.search(line) or _TEST.search(line)):
        run.test = test[1]


def summary(record: NcclTests) -> dict[str, object]:
    """The first table; ``wrong``: the most wrong values of any half row, ``"N/A"`` if never
    checked."""
    if not record.tables:
        return {}
    table = record.tables[0]
    complete = table.complete_rows
    facts: dict[str, object] = {
        "rows": len(table.rows),
        "rows_complete": len(complete),
        "ranks": len({device.rank for device in table.devices}) or None,
        "hosts": len(table.hosts) or None,
        "product": table.product,
        "nccl_version": table.nccl_version,
        "avg_busbw_GBps": table.average,
        "out_of_bounds": table.out_of_bounds[0] if table.out_of_bounds else None,
        "transport": table.transports[0] if len(table.transports) == 1 else None,
    }
    if complete:
        largest = max(complete, key=lambda row: row.size)
        counts = [half.wrong for row in table.rows for half in row.halves if half.wrong is not None]
        worst = max(counts, default=None)
        facts |= {
            "size_max_B": largest.size,
            "busbw_max_GBps": largest.halves[0].busbw,
            "busbw_peak_GBps": max(row.halves[0].busbw for row in complete),
            "wrong": "N/A" if worst is None else worst,
        }
    return facts
