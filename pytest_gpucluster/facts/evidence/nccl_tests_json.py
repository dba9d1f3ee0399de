"""The JSON report of nccl-tests (``-J``), version 2 of its format.

https://github.com/NVIDIA/nccl-tests: src/util.cu@0fdb00a3. Its ``env`` is never looked at.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.nccl_tests import Device, NcclTests, Table, summary
from pytest_gpucluster.facts.evidence.nccl_tests_rows import Half, Row
from pytest_gpucluster.facts.sysfs import printable

__all__ = ["KIND", "TITLE", "read", "recognises", "summary"]

KIND = "nccl_tests"
TITLE = "nccl-tests -J"
_MAX_ROWS = 100_000


def recognises(document: Document) -> bool:
    """Whether it opens like such a report."""
    head = "\n".join(document.lines[:50])[:200_000]
    return head.lstrip().startswith("{") and '"start_time"' in head and '"nccl_version"' in head


def read(document: Document) -> NcclTests:
    """The run; never raises."""
    try:
        data, _ = json.JSONDecoder().raw_decode(document.text.lstrip())
    except (ValueError, RecursionError) as error:
        unread = Unread(1, f"broken JSON: {str(error)[:120]}")
        return NcclTests((Table(1),), (unread,))
    top = data if isinstance(data, dict) else {}
    config = _dict(top.get("config"))
    unread_rows: list[Unread] = []
    rows = []
    for place, entry in enumerate(_list(top.get("results"))[:_MAX_ROWS]):
        row = _row(_dict(entry))
        if row is None:
            unread_rows.append(Unread(1, f"result {place} cannot be read"))
        else:
            rows.append(row)
    bounds = _dict(top.get("out_of_bounds"))
    average = _number(_dict(top.get("average_bus_bandwidth")).get("bandwidth"))
    count = _number(bounds.get("count"))
    arguments = _list(top.get("args"))
    program = re.search(r"(\w{2,30}_perf)\b", str(arguments[0])) if arguments else None
    return NcclTests(
        (
            Table(
                1,
                tuple(rows),
                tuple(_devices(config)),
                program[1] if program else None,
                bool(config["validation"]) if "validation" in config else None,
                header=True,
                footer=1 if count is not None and "end_time" in top else None,
                out_of_bounds=(int(count), count == 0) if count is not None else None,
                average=average,
                nccl_version=_version(top.get("nccl_version")),
            ),
        ),
        tuple(unread_rows[:100]),
    )


def _devices(config: dict[str, Any]) -> list[Device]:
    found = []
    for entry in map(_dict, _list(config.get("devices"))[:_MAX_ROWS]):
        rank, pid, device = (_number(entry.get(key)) for key in ("rank", "pid", "device"))
        if rank is not None:
            product = printable(str(entry.get("device_info", "")).strip(), 80)
            host = printable(str(entry.get("hostname", "")), 255)
            found.append(Device(1, int(rank), int(pid or 0), host, int(device or 0), product))
    return found


def _row(entry: dict[str, Any]) -> Row | None:
    size, count = _number(entry.get("size")), _number(entry.get("count"))
    halves = [
        _half(_dict(entry.get(key))) for key in ("out_of_place", "in_place") if entry.get(key)
    ]
    if size is None or count is None or not halves or None in halves:
        return None
    known = tuple(half for half in halves if half is not None)
    operation = entry.get("redop")
    return Row(
        1,
        int(size),
        int(count),
        printable(str(entry.get("type", "")), 20),
        printable(operation, 20) if isinstance(operation, str) else None,
        known,
        complete=len(known) == 2,
    )


def _half(entry: dict[str, Any]) -> Half | None:
    time_us = _number(entry.get("time", entry.get("cpu_time")))
    algbw, busbw = _number(entry.get("alg_bw")), _number(entry.get("bus_bw"))
    if time_us is None or algbw is None or busbw is None:
        return None
    return Half(time_us, algbw, busbw, _number(entry.get("nwrong")))


def _version(value: object) -> str | None:
    """NCCL's code: 22105 is 2.21.5, 2708 was 2.7.8."""
    code = _number(value)
    if code is None or code < 1000:
        return None
    major, rest = divmod(int(code), 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _number(value: object) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if good and abs(float(value)) < 1e18 else None  # type: ignore[arg-type]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
