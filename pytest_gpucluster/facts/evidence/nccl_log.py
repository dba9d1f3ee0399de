"""``NCCL_DEBUG=INFO`` or ``WARN`` logs of one or many ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.nccl_info import COMM, NOTES, Comm, Note, comm_of, note_of
from pytest_gpucluster.facts.evidence.nccl_lines import NcclLine, messages
from pytest_gpucluster.facts.evidence.nccl_warnings import NcclWarning, classify
from pytest_gpucluster.facts.sysfs import bus_id, printable

KIND = "nccl_log"
TITLE = "NCCL log (NCCL_DEBUG=INFO or WARN)"

_MAX_LINE = 4096
_MAX_KEPT = 20_000
_MAX_ALIKE = 100
_VERSION = re.compile(r"NCCL version ([0-9]{1,2}\.[0-9.]{1,10}[0-9])(?:\+cuda([0-9.]{2,8}))?")
_RESULT = re.compile(r"([\w./-]{3,80}:[0-9]{1,6}) -> ([0-9]{1,2})\b")
_SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]{2,40})=(\S{1,200})")
_LAST_ERROR = re.compile(r"Last NCCL warning\(error\):? '?([^'\n]{3,300})'?")
_FABRIC = re.compile(r"fi_getinfo: provider (\w{1,30}) output empty list")

T = TypeVar("T")


@dataclass(frozen=True)
class NcclLog:
    """What ranks said of themselves. ``version`` by line, ``notes`` in order (at most 100 alike),
    ``results``: places in the source that passed an error code on. ``settings``: NCCL_* variables.

    ``connected``: lines that say that rings or trees are connected.
    """

    versions: tuple[tuple[int, str, str | None], ...] = ()  # line, NCCL, CUDA
    comms: tuple[Comm, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[NcclWarning, ...] = ()
    results: tuple[tuple[int, str, int], ...] = ()  # line, place, code
    settings: dict[str, str] = field(default_factory=dict)
    empty_provider: tuple[int, str] | None = None  # line, libfabric provider
    transports: dict[str, int] = field(default_factory=dict)  # channels by "P2P", "SHM", "NET/IB"
    connected: int = 0
    hosts: tuple[str, ...] = ()
    lines: int = 0
    unread: tuple[Unread, ...] = ()
    cut: str | None = None

    def all(self, kind: str) -> list[Note]:
        """The notes of one kind."""
        return [note for note in self.notes if note.kind == kind]


def recognises(document: Document) -> bool:
    """Whether NCCL, or libfabric for it, speaks in a line."""
    return any(
        ("NCCL" in line and _is_ours(line[:_MAX_LINE])) or "fi_getinfo: provider" in line
        for line in document.lines
    )


def _is_ours(line: str) -> bool:
    return (
        "NCCL INFO" in line
        or "NCCL WARN" in line
        or _LAST_ERROR.search(line) is not None
        or re.match(r"\s*NCCL_[A-Z_]{3,40}=", line) is not None
    )


class _Reading:
    """The state between lines."""

    def __init__(self) -> None:
        self.versions: list[tuple[int, str, str | None]] = []
        self.comms: dict[tuple[object, ...], Comm] = {}
        self.notes: list[Note] = []
        self.warnings: list[NcclWarning] = []
        self.results: list[tuple[int, str, int]] = []
        self.settings: dict[str, str] = {}
        self.empty_provider: tuple[int, str] | None = None
        self.transports: Counter[str] = Counter()
        self.alike: Counter[tuple[object, ...]] = Counter()
        self.connected = self.lines = 0
        self.hosts: dict[str, None] = {}

    def take(self, line: str, number: int) -> None:
        if (version := _VERSION.search(line)) and self.may_keep("version", version[1], version[2]):
            self.versions.append((number, version[1], version[2]))
        for message in messages(line, number):
            self.lines += 1
            if message.host and len(self.hosts) < _MAX_KEPT:
                self.hosts.setdefault(message.host)
            if message.level in ("WARN", "ERROR", "ABORT"):
                warning = classify(message)
                if self.may_keep(warning.kind, warning.host, warning.device, warning.peer):
                    self.warnings.append(warning)
            else:
                self.info(message)
        if error := _LAST_ERROR.search(line):
            self.warnings.append(classify(NcclLine(number, "WARN", error[1].strip())))
        if "NCCL_" in line:
            for setting in _SETTING.finditer(line):
                if len(self.settings) < _MAX_KEPT:
                    self.settings.setdefault(setting[1], printable(setting[2], 200))
        if self.empty_provider is None and (provider := _FABRIC.search(line)):
            self.empty_provider = (number, provider[1])

    def info(self, message: NcclLine) -> None:
        text = message.text
        if result := _RESULT.search(text):
            if self.may_keep("result", result[1], result[2]):
                self.results.append((message.line, result[1], int(result[2])))
        elif " via " in text and text.startswith("Channel"):
            self.transports[_transport(text.rpartition(" via ")[2])] += 1
        elif "Connected all" in text:
            self.connected += 1
        elif COMM.search(text):
            self.comm(comm_of(message))
        elif (note := note_of(message)) is not None:
            if note.kind == "setting":
                self.settings.setdefault(note.values[0], note.values[1])
            elif self.may_keep(note.kind, note.values, note.host):
                self.notes.append(note)

    def comm(self, comm: Comm) -> None:
        key = (comm.host, comm.pid, comm.address, comm.rank)
        known = self.comms.get(key)
        if known is None and len(self.comms) < _MAX_KEPT:
            self.comms[key] = comm
        elif known is not None:
            self.comms[key] = known.joined(comm)

    def may_keep(self, *key: object) -> bool:
        self.alike[key] += 1
        return self.alike[key] <= _MAX_ALIKE and len(self.alike) <= _MAX_KEPT


def _transport(via: str) -> str:
    """``P2P/CUMEM`` is P2P, ``NET/IB/0/GDRDMA`` is NET/IB."""
    if via.startswith("direct shared memory"):
        return "SHM"
    parts = via.split("/")
    return "/".join(parts[:2]) if parts[0] == "NET" else parts[0].split()[0] if parts[0] else via


def read(document: Document) -> NcclLog:
    """Everything known of the ranks; never raises, linear in the text."""
    reading = _Reading()
    for number, line in enumerate(document.lines, 1):
        if "NCCL" in line or "libfabric" in line:
            reading.take(line[:_MAX_LINE], number)
    return NcclLog(
        tuple(reading.versions),
        tuple(reading.comms.values()),
        tuple(reading.notes),
        tuple(reading.warnings),
        tuple(reading.results),
        reading.settings,
        reading.empty_provider,
        dict(reading.transports),
        reading.connected,
        tuple(reading.hosts),
        reading.lines,
        (),
        _cut(reading),
    )


def _cut(reading: _Reading) -> str | None:
    """Why the log does not show that initialisation ended, or ``None``."""
    started = list(reading.comms.values())
    if not reading.connected and not any(comm.complete for comm in started):
        return "the log ends before initialisation is complete"
    open_ends = [c for c in started if c.started and not c.complete]
    if open_ends and any(comm.complete for comm in started):
        ranks = ", ".join(str(comm.rank) for comm in open_ends[:8])
        return f"ranks that began to initialise and did not finish: {ranks}"
    return None


def summary(record: NcclLog) -> dict[str, object]:
    """Single values where all lines agree."""
    interfaces = [name for note in record.all("interface") for name in note.values]
    bootstrap = _once(note.values[0] for note in record.all("bootstrap"))
    codes = _once(code for _, _, code in record.results)
    facts: dict[str, object] = {
        "hcas": _once(name for note in record.all("hca") for name in note.values),
        "interfaces": _once(interfaces),
        "result_codes": codes,
        "ranks_seen": sorted({comm.rank for comm in record.comms}),
        "init_complete": any(comm.complete for comm in record.comms),
        "warnings": len(record.warnings),
        "hosts": list(record.hosts),
    }
    single: dict[str, list[object]] = {
        "nccl_version": [*_once(version for _, version, _ in record.versions)],
        "cuda_version": [*_once(cuda for _, _, cuda in record.versions if cuda)],
        "cuda_driver_version": [*_once(int(n.values[0]) for n in record.all("cuda_driver"))],
        "bootstrap_interface": [*bootstrap],
        "nranks": [*_once(comm.nranks for comm in record.comms)],
        "channels": [*_once(int(note.values[0]) for note in record.all("channels"))],
        "result_code": [*codes],
        "transport": [*_network(record)],
    }
    facts |= {key: values[0] for key, values in single.items() if len(values) == 1}
    if "NCCL_SOCKET_IFNAME" in record.settings:
        facts["socket_ifname"] = record.settings["NCCL_SOCKET_IFNAME"]
    if record.empty_provider:
        facts["libfabric_provider"] = record.empty_provider[1]
    return facts | _of_warnings(record)


def _of_warnings(record: NcclLog) -> dict[str, object]:
    facts: dict[str, object] = {}
    real = [w for w in record.warnings if w.kind != "harmless"]
    devices: dict[str, list[int]] = {}
    for warning in real:
        if warning.device is not None:
            known = devices.setdefault(warning.host or "node", [])
            if warning.device not in known:
                known.append(warning.device)
    if devices:
        facts["warn_devices"] = devices if len(devices) > 1 else next(iter(devices.values()))
    names = {
        "cuda_error": "cuda_error",
        "local": "local_size_B",
        "remote": "remote_size_B",
        "errno": "errno",
        "segment": "shm_segment_B",
        "size": "multicast_size_B",
    }
    for warning in real:
        for key, name in names.items():
            if key in warning.fields:
                facts.setdefault(name, int(warning.fields[key]))
        if warning.peer:
            facts.setdefault("peer", warning.peer)
    ranks = {int(w.fields[k]) for w in real for k in ("rank", "other") if k in w.fields}
    if ranks:
        facts["ranks"] = sorted(ranks)
    device = next((w.fields["cuda_device"] for w in real if "cuda_device" in w.fields), None)
    if device is not None:
        facts |= {"cuda_device": device, "pci": nccl_bus_id(device)}
    if real:
        first = real[0]
        facts["error"] = "No space left on device" if first.kind == "shm_full" else first.text
    return facts


def nccl_bus_id(digits: str) -> str | None:
    """NCCL's hexadecimal bus id without separators: ``1000`` is 0000:01:00.0."""
    padded = digits.zfill(8)
    return bus_id(f"{padded[:-5].zfill(4)}:{padded[-5:-3]}:{padded[-3:-1]}.{padded[-1]}")


def _network(record: NcclLog) -> list[str]:
    channels = [name for name in record.transports if not name.startswith("NET")]
    nets = [name.removeprefix("NET/") for name in record.transports if name.startswith("NET")]
    if nets or channels:
        return nets or channels
    used = _once(note.values[0] for note in record.all("network"))
    if used:
        return used
    spoken = _once(note.values[0] for note in record.all("net_speaks"))
    ib = any("NET/IB" in warning.text for warning in record.warnings)
    return spoken or (["IB"] if ib else [])


def _once(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


__all__ = ["KIND", "NOTES", "TITLE", "NcclLog", "read", "recognises", "summary"]
