"""State of the NVSwitch fabric: the fabric manager's log, ``Fabric`` blocks, CUDA error 802."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.fabric_blocks import (
    FabricBlock,
    is_header,
    read_blocks,
    read_csv,
)
from pytest_gpucluster.facts.kernel_log import split_line
from pytest_gpucluster.facts.sysfs import bus_id, printable

KIND = "fabric"
TITLE = "fabric manager log or nvidia-smi -q Fabric block"

T = TypeVar("T")
EventKind = Literal[
    "switch_error",  # an SXid as the fabric manager reports it
    "aborted",
    "topology_mismatch",  # fewer switches than any supported system has; it aborts as well
    "version_mismatch",  # of driver and fabric manager
    "nothing_to_do",  # no NVSwitch: normal on a node without
    "multicast",  # a GPU that a multicast team needs is not there
    "link_training",
    "service_failed",  # systemd's word
    "inactive",
    "configured",  # good news
    "running",  # good news
    "error",  # any other line of level ERROR
    "cuda_not_ready",  # CUDA error 802
]

_MAX_LINE = 4096
_MAX_ALIKE = 100
_MAX_EVENTS = 10_000
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_HINTS = ("abric", "[tid ", "NVSwitch", "NVLink", "NOTHING_TO_DO", "GPU handle", "   Active: ")
_CUDA_HINTS = ("802", "not yet init", "ystemNotReady", "SYSTEM_NOT_READY")
_LEVEL = re.compile(r"\[(INFO|WARNING|ERROR|CRITICAL|FATAL|DEBUG)\]")
_STAMP = re.compile(r"\[([A-Z][a-z]{2} [ 0-3][0-9] [0-9]{4} [0-9:]{8})\]", re.ASCII)
_ERROR = re.compile(
    r"detected (?:(\w{1,20}) )?(non-fatal|fatal) error:? ?([0-9]{1,6})(?![0-9])", re.IGNORECASE
)
_PCI = re.compile(rf"pci bus id:? ?({_ADDRESS})", re.ASCII)
_PHYSICAL = re.compile(r"physical id:? ?([0-9]{1,4})(?![0-9])", re.ASCII)
_PORT = re.compile(r"\bport:? ?([0-9]{1,4})(?![0-9])", re.ASCII)
_VERSIONS = re.compile(r"interface version ([0-9.]{3,16}) .{0,40}driver version ([0-9.]{3,16}\d)")
_CUDA = re.compile(
    r"system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY"
    r"|cuda.{0,60}\b(?:error|failure):? 802\b",
    re.IGNORECASE,
)
_KINDS: tuple[tuple[EventKind, re.Pattern[str]], ...] = (
    ("cuda_not_ready", _CUDA),
    ("switch_error", _ERROR),
    ("topology_mismatch", re.compile(r"match with any supported system topology")),
    ("nothing_to_do", re.compile(r"NV_WARN_NOTHING_TO_DO|No NVSwitch(?:es)? detected")),
    ("version_mismatch", re.compile(r"(?:don't|doesn't|does not) match with (?:the )?driver ver")),
    ("aborted", re.compile(r"aborting (?:fabric manager|the fabric)|aborting\.?\s*$|mAbort")),
    ("multicast", re.compile(r"failed to find the GPU handle")),
    ("configured", re.compile(r"Successfully configured all the available")),
    (
        "service_failed",
        re.compile(
            r"fabricmanager\S* ?.{0,60}(?:status=[1-9]|Failed with result|Exit code: [1-9])"
            r"|Failed to start .{0,40}abric .{0,20}|Active: failed",
            re.IGNORECASE,
        ),
    ),
    ("inactive", re.compile(r"Active: inactive")),
    ("running", re.compile(r"Active: active \(running\)")),
    (
        "link_training",
        re.compile(
            r"NVLink.{0,120}(?:not trained|training fail|failed to train|connection.{0,40}fail"
            r"|is not (?:up|active)|down)|failed to train",
            re.IGNORECASE,
        ),
    ),
)
_QUIET = frozenset({"INFO", "DEBUG"})
# Strong enough to say what a text is.
_OF_MANAGER = re.compile(
    r"nv-fabricmanager|nvidia-fabricmanager|\[tid [0-9]{1,8}\]|detected NVSwitch (?:non-)?fatal"
    r"|aborting fabric manager|NVIDIA [Ff]abric [Mm]anager",
    re.ASCII,
)
_BEGINNING = re.compile(
    r"(?:detected [nNG].{0,80}|aborting? ?[a-z ]{0,13}"
    r"|system not ?[a-z ]{0,16}|failed to find the ?[GPU]{0,3})$"
)


@dataclass(frozen=True)
class FabricEvent:
    """One line of the fabric manager, its service, or of CUDA about the fabric."""

    line: int
    kind: EventKind
    text: str
    level: str | None = None  # "ERROR"
    code: int | None = None  # SXid of a switch error
    severity: Literal["fatal", "nonfatal"] | None = None
    pci: str | None = None
    bus_id: str | None = None
    physical_id: int | None = None
    port: int | None = None
    versions: tuple[str, ...] = ()  # fabric manager, driver
    timestamp: str | None = None


@dataclass(frozen=True)
class FabricRecord:
    """Registration of the GPUs and what the fabric manager had to say (100 alike at most)."""

    blocks: tuple[FabricBlock, ...] = ()
    events: tuple[FabricEvent, ...] = ()
    not_kept: int = 0
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def recognises(document: Document) -> bool:
    """A fabric manager's log, a ``Fabric`` block outside a whole ``nvidia-smi -q``, CUDA 802."""
    text = document.text
    if ("Fabric" in text or "fabric.stat" in text) and _has_blocks(document.lines):
        return True
    patterns = [
        pattern
        for pattern, hints in ((_OF_MANAGER, _HINTS), (_CUDA, _CUDA_HINTS))
        if any(hint in text for hint in hints)
    ]
    return bool(patterns) and any(
        pattern.search(line[:_MAX_LINE])
        for line in document.lines
        if _may_matter(line)
        for pattern in patterns
    )


def _has_blocks(lines: tuple[str, ...]) -> bool:
    found = False
    for raw in lines:
        line = raw[:_MAX_LINE]
        if "NVSMI LOG" in line or line.lstrip().startswith("Attached GPUs"):
            return False
        found = found or "fabric.stat" in line or is_header(line)
    return found


def _may_matter(line: str) -> bool:
    return (
        "abric" in line
        or "[tid " in line
        or "NVSwitch" in line
        or "NVLink" in line
        or "802" in line
        or "not yet init" in line
        or "ystemNotReady" in line
        or "SYSTEM_NOT_READY" in line
        or "NOTHING_TO_DO" in line
        or "GPU handle" in line
        or "   Active: " in line
    )


def read(document: Document) -> FabricRecord:
    """Blocks and events; never raises, linear in the text."""
    lines = document.lines
    blocks, unread, cut = read_blocks(lines)
    if any("fabric.stat" in line for line in lines):
        rows, rows_cut = read_csv(lines)
        blocks, cut = [*blocks, *rows], cut or rows_cut
    events: list[FabricEvent] = []
    alike: Counter[tuple[object, ...]] = Counter()
    not_kept = 0
    for number, raw in enumerate(lines, 1):
        if not _may_matter(raw):
            continue
        event = _event(raw[:_MAX_LINE], number)
        if event is None:
            continue
        said = event.text[-80:] if event.kind == "error" else ""
        key = (event.kind, event.code, event.severity, event.bus_id, event.port, said)
        if len(events) >= _MAX_EVENTS or alike[key] >= _MAX_ALIKE:
            not_kept += 1
            continue
        alike[key] += 1
        events.append(event)
    if not_kept and len(events) >= _MAX_EVENTS:
        unread.append(Unread(events[-1].line, f"more than {_MAX_EVENTS} events, the rest left out"))
    return FabricRecord(
        tuple(blocks), tuple(events), not_kept, tuple(unread), cut or _stops(lines, events)
    )


def summary(record: FabricRecord) -> dict[str, object]:
    """One value where all blocks agree, else a value for every GPU (or block number)."""
    errors = [event for event in record.events if event.kind == "switch_error"]
    facts: dict[str, object] = {
        "gpus": len(record.blocks),
        "sxids": _once(event.code for event in errors if event.code is not None),
        "sxid_lines": len(errors),
        "fatal_sxids": _once(event.code for event in errors if event.severity == "fatal"),
        "nonfatal_sxids": _once(event.code for event in errors if event.severity == "nonfatal"),
        "switch_pcis": _once(event.pci for event in errors if event.pci is not None),
        "ports": _once(event.port for event in errors if event.port is not None),
        "errors": sum(1 for event in record.events if event.level in ("ERROR", "CRITICAL")),
        "aborted": any(e.kind in ("aborted", "topology_mismatch") for e in record.events),
        "configured": any(event.kind == "configured" for event in record.events),
    }
    single: dict[str, list[Any]] = {
        "sxid": _once(event.code for event in errors if event.code is not None),
        "pci": _once(event.pci for event in errors if event.pci is not None),
        "port": _once(event.port for event in errors if event.port is not None),
        "physical_id": _once(e.physical_id for e in errors if e.physical_id is not None),
    }
    for key, values in single.items():
        if len(values) == 1:
            facts[key] = values[0]
    if any(event.kind == "cuda_not_ready" for event in record.events):
        facts["cuda_error"] = 802
    for key, name in (
        ("fabric_state", "state"),
        ("fabric_status", "status"),
        ("clique_id", "clique_id"),
        ("cluster_uuid", "cluster_uuid"),
    ):
        said = {
            block.gpu or str(number): value
            for number, block in enumerate(record.blocks)
            if (value := getattr(block, name)) is not None
        }
        different = _once(said.values())
        if different:
            facts[key] = different[0] if len(different) == 1 else said
    return facts


def _event(line: str, number: int) -> FabricEvent | None:
    level = _LEVEL.search(line)
    kind = next((name for name, pattern in _KINDS if pattern.search(line)), None)
    if kind is None and level and level[1] not in (*_QUIET, "WARNING") and _OF_MANAGER.search(line):
        kind = "error"
    if kind is None or (kind == "link_training" and level and level[1] in _QUIET):
        return None
    error = _ERROR.search(line) if kind == "switch_error" else None
    pci = _PCI.search(line) if error else None
    physical = _PHYSICAL.search(line) if error else None
    port = _PORT.search(line) if error else None
    versions = _VERSIONS.search(line) if kind == "version_mismatch" else None
    stamp = _STAMP.search(line, 0, 200)
    severity: Literal["fatal", "nonfatal"] | None = None
    if error:
        severity = "nonfatal" if error[2].lower().startswith("non") else "fatal"
    return FabricEvent(
        line=number,
        kind=kind,
        text=printable(line.strip(), 400),
        level=level[1] if level else None,
        code=int(error[3]) if error else None,
        severity=severity,
        pci=pci[1] if pci else None,
        bus_id=bus_id(pci[1]) if pci else None,
        physical_id=int(physical[1]) if physical else None,
        port=int(port[1]) if port else None,
        versions=versions.groups() if versions else (),
        timestamp=stamp[1] if stamp else split_line(line)[1],
    )


def _stops(lines: tuple[str, ...], events: list[FabricEvent]) -> str | None:
    last = next((n for n in range(len(lines), 0, -1) if lines[n - 1].strip()), 0)
    at_end = [event for event in events[-2:] if event.line == last]
    if any(event.kind == "switch_error" and event.port is None for event in at_end):
        return "the last line stops inside a switch error"
    vague = all(event.kind == "error" for event in at_end)
    if last and vague and _BEGINNING.search(lines[last - 1][-200:].rstrip()):
        return "the last line stops inside a message of the fabric manager"
    return None


def _once(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
