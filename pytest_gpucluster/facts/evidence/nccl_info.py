"""NCCL's informational messages: communicators, networks, adapters, settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from pytest_gpucluster.facts.evidence.nccl_lines import NcclLine
from pytest_gpucluster.facts.sysfs import printable

NoteKind = Literal[
    "bootstrap",  # interface
    "network",  # "IB", "Socket", a plugin's name
    "hca",  # adapters in use
    "interface",  # sockets in use
    "gdr_enabled",  # network, adapter
    "gdr_disabled",
    "no_ib",
    "cuda_driver",
    "channels",
    "nvls",
    "sysfs_missing",  # path
    "setting",  # name, value
    "net_speaks",  # "Socket", "IB"
    "plugin",  # an external network plugin is in use
]
COMM = re.compile(
    r"comm (0x[0-9a-fA-F]{1,16})? ?rank ([0-9]{1,7}) n[rR]anks ([0-9]{1,7})"
    r"(?:.{0,40}?cudaDev ([0-9]{1,4}))?(?:.{0,20}?nvmlDev [0-9]{1,4})?"
    r"(?:.{0,20}?busId ([0-9a-fA-F]{1,12}))?(?:.{0,20}?commId (0x[0-9a-fA-F]{1,16}))?"
    r"(?:.{0,40}?(Init START|Init COMPLETE|Destroy|Abort))?"
)
_ADDRESS = re.compile(r"(?:\[[0-9]{1,3}\])?([\w.@-]{1,40}):[^\s]{2,80}<[0-9]{1,5}>")
_HCA = re.compile(r"\[[0-9]{1,3}\]([\w.-]{1,40}:[0-9]{1,3}/(?:IB|RoCE|SHARP|uverbs)[\w/]{0,10})")
NOTES: tuple[tuple[NoteKind, re.Pattern[str]], ...] = (
    ("setting", re.compile(r"(NCCL_[A-Z0-9_]{2,40}) set (?:by environment )?to (\S{1,200}?)\.?$")),
    ("bootstrap", re.compile(r"Bootstrap ?: Using (?:\[[0-9]\])?([\w.@-]{1,40}):")),
    ("network", re.compile(r"Using network (.{1,40})")),
    ("cuda_driver", re.compile(r"cudaDriverVersion ([0-9]{4,6})")),
    ("no_ib", re.compile(r"NET/IB ?: (No device found)")),
    ("gdr_enabled", re.compile(r"NET/(\w{1,20}) ?: GPU Direct RDMA Enabled for HCA (.{1,60})")),
    ("gdr_disabled", re.compile(r"NET/(\w{1,20}) ?: GPU Direct RDMA Disabled for HCA (.{1,60})")),
    ("channels", re.compile(r"([0-9]{1,3}) coll channels")),
    ("nvls", re.compile(r"NVLS (?:multicast support|comm).{0,80}")),
    ("sysfs_missing", re.compile(r"Could not find real path of (\S{3,160})")),
    (
        "plugin",
        re.compile(
            r"(?:NET/Plugin: (?:Loaded|Using)|NET/OFI (?:Selected|Using)|Plugin Path).{0,80}"
        ),
    ),
    ("net_speaks", re.compile(r"NET/(Socket|IB) ?: ")),
)


@dataclass(frozen=True)
class Comm:
    """One rank of a communicator. ``started``: it said that it begins, ``complete``: that
    initialisation is over."""

    line: int
    rank: int
    nranks: int
    address: str | None = None
    host: str | None = None
    pid: int | None = None
    cuda_device: int | None = None
    bus: str | None = None
    comm_id: str | None = None
    started: bool = False
    complete: bool = False

    def joined(self, later: Comm) -> Comm:
        """This rank with what a later line adds."""
        return replace(
            self,
            cuda_device=self.cuda_device if self.cuda_device is not None else later.cuda_device,
            bus=self.bus or later.bus,
            comm_id=self.comm_id or later.comm_id,
            started=self.started or later.started,
            complete=self.complete or later.complete,
        )


@dataclass(frozen=True)
class Note:
    """One informational message: ``values`` depend on its kind."""

    line: int
    kind: NoteKind
    values: tuple[str, ...]
    host: str | None = None


def comm_of(message: NcclLine) -> Comm:
    """The communicator a message is about; `COMM` must be found in it."""
    match = COMM.search(message.text)
    assert match is not None
    return Comm(
        message.line,
        int(match[2]),
        int(match[3]),
        match[1],
        message.host,
        message.pid,
        int(match[4]) if match[4] else None,
        match[5],
        match[6],
        started=match[7] == "Init START",
        complete=match[7] == "Init COMPLETE",
    )


def note_of(message: NcclLine) -> Note | None:
    """What an informational message notes, or ``None``."""
    text = message.text
    if ": Using " in text or "Using interface" in text:
        special = _in_use(message)
        if special is not None:
            return special
    for kind, pattern in NOTES:
        if match := pattern.search(text):
            values = tuple(printable(value.strip(), 200) for value in match.groups() if value)
            return Note(message.line, kind, values or (printable(match[0], 120),), message.host)
    return None


def _in_use(message: NcclLine) -> Note | None:
    text = message.text
    if text.startswith("NET/IB"):
        adapters = tuple(match[1] for match in _HCA.finditer(text))
        return Note(message.line, "hca", adapters, message.host) if adapters else None
    if text.startswith("NET"):
        names = tuple(match[1] for match in _ADDRESS.finditer(text))
        return Note(message.line, "interface", names, message.host) if names else None
    return None
