"""A kernel log as text: dmesg, journalctl, syslog, container logs, kmsg records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pytest_gpucluster.facts.evidence import kernel_log_lines as messages
from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.kernel_log_cut import stops_inside
from pytest_gpucluster.facts.evidence.kernel_log_events import (
    AdapterEvent,
    Aer,
    DriverFault,
    OffBus,
    OomKill,
    SXid,
    Xid,
)
from pytest_gpucluster.facts.evidence.kernel_log_places import full_address, host_of
from pytest_gpucluster.facts.kernel_log import split_line
from pytest_gpucluster.facts.sysfs import printable

KIND = "kernel_log"
TITLE = "kernel log (dmesg, journalctl -k, syslog)"

_MAX_MESSAGE = 4096
_MAX_ALIKE = 100  # events of one kind, number and device that are kept, the first ones
_MAX_EVENTS = 10_000
_MAX_UNREAD = 100
_MAX_APART = 8  # messages between "The NVIDIA GPU ..." and "fallen off the bus"
_LOOKED_AT = 20_000  # lines that recognition reads at most, from both ends

_STRONG = re.compile(
    r"NVRM: |(?<![A-Za-z])S?Xid \((?:PCI:|[0-9a-fA-F]{4}:)|nvidia-nvswitch[0-9]|fallen off the bus"
    r"|AER: .{0,80}error (?:message )?received|PCIe Bus Error: severity=|mlx5_core [0-9a-fA-F]{4}:"
    r"|mlx5_\w{1,40}:[0-9]{1,6}:\(pid|out of memory: Kill|Out of memory: Kill|invoked oom-killer",
    re.ASCII,
)
# What any kernel log looks like, whether or not it mentions a device.
_KERNEL_LINE = re.compile(
    r"(?:<[0-9]{1,3}>)?\[ {0,8}[0-9]{1,9}\.[0-9]{6}\] "
    r"|[0-9]{1,4},[0-9]{1,20},[0-9]{1,20},[^;]{1,40};"
    r"|.{0,160}? kernel: ",
    re.ASCII,
)
_LITERAL_BREAK = re.compile(r"\\n|\\x0a")
_DRIVER = re.compile(r"NVIDIA UNIX .{0,60}?Kernel Module.{0,40}? ([0-9]{3}\.[0-9.]{1,12})\b")
_UUID = re.compile(r"GPU at PCI:([0-9a-fA-F:.]{7,16}): (GPU-[0-9a-f-]{36})", re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True)
class KernelLog:
    """What a kernel log says, in the order of its lines; at most 100 events alike are kept.

    ``xid_lines`` and ``sxid_lines`` count all of them. ``uuids`` maps bus ids to GPU UUIDs.
    A log without events is not a proof of health: it may begin after the fault.
    """

    xids: tuple[Xid, ...] = ()
    sxids: tuple[SXid, ...] = ()
    off_bus: tuple[OffBus, ...] = ()
    aer: tuple[Aer, ...] = ()
    adapters: tuple[AdapterEvent, ...] = ()
    oom: tuple[OomKill, ...] = ()
    faults: tuple[DriverFault, ...] = ()
    xid_lines: int = 0
    sxid_lines: int = 0
    not_kept: int = 0  # events beyond the first 100 alike
    driver_version: str | None = None
    hosts: tuple[str, ...] = ()
    uuids: dict[str, str] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def recognises(document: Document) -> bool:
    """Whether a line could only come from a kernel log, or most lines look like one."""
    lines = document.lines
    if len(lines) > _LOOKED_AT:
        lines = lines[: _LOOKED_AT // 2] + lines[-_LOOKED_AT // 2 :]
    seen = kernel = 0
    for raw in lines:
        line = raw[:_MAX_MESSAGE]
        if _may_matter(line) and _STRONG.search(line):
            return True
        if line.strip():
            seen += 1
            kernel += _KERNEL_LINE.match(line) is not None
    return seen > 0 and 2 * kernel > seen


def read(document: Document) -> KernelLog:
    """Every event of the log; never raises, linear in the text."""
    reading = _Reading()
    for number, line in enumerate(document.lines, 1):
        if _may_matter(line):
            reading.take(line, number)
    last = next((n for n in range(len(document.lines), 0, -1) if document.lines[n - 1].strip()), 0)
    return reading.record(last, document.lines[last - 1] if last else "")


def _may_matter(line: str) -> bool:
    # Written out: nearly all lines of a log end here, and any() costs several times as much.
    return (
        "NVRM" in line
        or "Xid (" in line
        or "nvidia-nvswitch" in line
        or "mlx5_" in line
        or "AER:" in line
        or "PCIe Bus Error" in line
        or "ut of memory: Kill" in line
        or "fallen off the bus" in line
        or "invoked oom-killer" in line
    )


class _Reading:
    """The state between lines."""

    def __init__(self) -> None:
        self.events: list[Xid | SXid | OffBus | Aer | AdapterEvent | OomKill | DriverFault] = []
        self.alike: Counter[tuple[object, ...]] = Counter()
        self.counts: Counter[str] = Counter()
        self.opening: OffBus | None = None
        self.since_opening = 0
        self.driver: str | None = None
        self.hosts: dict[str, None] = {}
        self.uuids: dict[str, str] = {}
        self.unread: list[Unread] = []

    def take(self, line: str, number: int) -> None:
        host = host_of(line)
        for part in _LITERAL_BREAK.split(line) if "\\" in line else (line,):
            if len(part) > _MAX_MESSAGE:
                self.miss(number, f"only the first {_MAX_MESSAGE} characters were read")
            message, stamp = split_line(part[:_MAX_MESSAGE])
            self.message(message, number, stamp, host)

    def message(self, text: str, number: int, stamp: str | None, host: str | None) -> None:
        self.since_opening += 1
        if self.opening and self.since_opening > _MAX_APART:
            self.opening = None
        if "Xid (" in text:
            self.xid(text, number, stamp, host)
        elif "fallen off the bus" in text and ("NVRM" in text or self.opening is not None):
            self.lost(messages.off_bus(text, number, stamp, host))
        elif event := messages.aer(text, number, stamp, host):
            self.add(event, "aer", event.bus_id, event.severity)
        elif "mlx5" in text and (adapter := messages.adapter(text, number, stamp, host)):
            self.add(adapter, "mlx5", adapter.kind, adapter.bus_id, adapter.module)
        elif killed := messages.oom(text, number, stamp, host):
            self.add(killed, "oom", killed.kind)
        elif "NVRM" in text or "nvidia-nvswitch" in text:
            self.driver_message(text, number, stamp, host)

    def xid(self, text: str, number: int, stamp: str | None, host: str | None) -> None:
        found = messages.xids(text, number, stamp, host)
        switches = messages.sxids(text, number, stamp, host) if "SXid" in text else []
        for xid in found:
            self.add(xid, "xid", xid.code, xid.bus_id, xid.severity, xid.link, xid.cause)
        for sxid in switches:
            self.add(sxid, "sxid", sxid.code, sxid.bus_id, sxid.severity, sxid.link)
        self.counts["xid"] += bool(found)
        self.counts["sxid"] += bool(switches)
        if not found and not switches:
            self.miss(number, "an Xid message without readable PCI address and number")

    def lost(self, event: OffBus) -> None:
        of_this_host = self.opening is not None and event.host in (None, self.opening.host)
        if event.pci is None and self.opening is not None and of_this_host:
            event = replace(
                self.opening,
                text=printable(f"{self.opening.text} {event.text}", 400),
                pci_id=self.opening.pci_id or event.pci_id,
            )
        self.opening = None
        self.add(event, "off_bus", event.bus_id)

    def driver_message(self, text: str, number: int, stamp: str | None, host: str | None) -> None:
        if match := _DRIVER.search(text):
            self.driver = match[1].rstrip(".")
        if match := _UUID.search(text):
            if (bus := full_address(match[1])) and len(self.uuids) < _MAX_EVENTS:
                self.uuids[bus] = match[2]
        elif event := messages.fault(text, number, stamp, host):
            self.add(event, event.kind, event.bus_id)
        elif "NVRM: The NVIDIA GPU" in text:
            first = messages.off_bus(text, number, stamp, host)
            if first.pci is not None:
                self.opening, self.since_opening = first, 0
        elif self.opening and self.opening.pci_id is None:
            self.opening = replace(
                self.opening, pci_id=messages.off_bus(text, number, stamp, host).pci_id
            )

    def add(
        self,
        event: Xid | SXid | OffBus | Aer | AdapterEvent | OomKill | DriverFault,
        *key: object,
    ) -> None:
        key = (*key, event.host)
        self.alike[key] += 1
        if event.host:
            self.hosts.setdefault(event.host)
        if self.alike[key] > _MAX_ALIKE or len(self.events) >= _MAX_EVENTS:
            self.counts["not_kept"] += 1
            if self.alike[key] == 1:
                self.miss(event.line, f"more than {_MAX_EVENTS} events: this one was left out")
                del self.alike[key]
            return
        self.events.append(event)

    def miss(self, line: int, reason: str) -> None:
        if len(self.unread) < _MAX_UNREAD:
            self.unread.append(Unread(line, reason))

    def record(self, last: int, last_line: str) -> KernelLog:
        at_end = [event for event in self.events[-8:] if event.line == last]
        cut = stops_inside(last_line, at_end)
        if cut is None and self.opening is not None and self.opening.line >= last - 2:
            cut = "the log stops inside a message about the GPU at " + (self.opening.pci or "")
        events = self.events
        return KernelLog(
            xids=tuple(e for e in events if isinstance(e, Xid)),
            sxids=tuple(e for e in events if isinstance(e, SXid)),
            off_bus=tuple(e for e in events if isinstance(e, OffBus)),
            aer=tuple(e for e in events if isinstance(e, Aer)),
            adapters=tuple(e for e in events if isinstance(e, AdapterEvent)),
            oom=tuple(e for e in events if isinstance(e, OomKill)),
            faults=tuple(e for e in events if isinstance(e, DriverFault)),
            xid_lines=self.counts["xid"],
            sxid_lines=self.counts["sxid"],
            not_kept=self.counts["not_kept"],
            driver_version=self.driver,
            hosts=tuple(self.hosts),
            uuids=self.uuids,
            unread=tuple(self.unread),
            cut=cut,
        )


def summary(record: KernelLog) -> dict[str, object]:
    """Different numbers in order of appearance; a value of its own where there is only one."""
    gpu_events: list[Xid | OffBus] = [*record.xids, *record.off_bus]
    gpu_events.sort(key=lambda event: event.line)
    printed: dict[str | None, str] = {}
    for event in gpu_events:
        if event.pci is not None:
            printed.setdefault(event.bus_id, event.pci)
    switches = _once(sxid.pci for sxid in record.sxids)
    nvlinks: list[Xid | SXid] = [*record.xids, *record.sxids]
    links = _once(event.link for event in nvlinks if event.link is not None)
    registers = _once(xid.registers for xid in record.xids if xid.registers)
    modules = _once(e.module for e in record.adapters if e.module is not None)
    facts: dict[str, object] = {
        "xids": _once(xid.code for xid in record.xids),
        "xid_lines": record.xid_lines,
        "sxids": _once(sxid.code for sxid in record.sxids),
        "sxid_lines": record.sxid_lines,
        "cause_xids": _once(xid.cause for xid in record.xids if xid.cause is not None),
        "pcis": list(printed.values()),
        "fatal_pcis": _once(x.pci for x in record.xids if x.severity == "fatal"),
        "switch_pcis": switches,
        "fatal_sxids": _once(s.code for s in record.sxids if s.severity == "fatal"),
        "links": links,
        "nic_pcis": _once(e.pci for e in record.adapters if e.pci is not None),
        "pids": _once(x.pid for x in record.xids if x.pid is not None),
        "processes": _once(x.process for x in record.xids if x.process is not None),
        "hosts": list(record.hosts),
        "oom_kills": sum(1 for kill in record.oom if kill.kind == "killed"),
    }
    single: dict[str, list[object]] = {
        "pci": [*printed.values()] or [*switches],
        "sxid": [*_once(sxid.code for sxid in record.sxids)],
        "link": [*links],
        "registers": [list(values) for values in registers],
        "module": [*modules],
        "pci_id": [*_once(e.pci_id for e in record.off_bus if e.pci_id is not None)],
        "slot_power_W": [*_once(e.watts for e in record.adapters if e.watts is not None)],
        "recovery_action": [*_once(x.recovery_action for x in record.xids if x.recovery_action)],
        "timeout_s": [*_once(x.timeout_s for x in record.xids if x.timeout_s is not None)],
        "function": [*_once(x.function for x in record.xids if x.function)],
        "driver_version": [record.driver_version] if record.driver_version else [],
    }
    return facts | {key: values[0] for key, values in single.items() if len(values) == 1}


def _once(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
