"""What a kernel log can tell: one frozen value per message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["fatal", "nonfatal"]
AdapterKind = Literal[
    "power",
    "temperature",
    "cable",
    "unplugged",
    "health",
    "timeout",
    "link_down",
    "link_up",
    "command",
]


@dataclass(frozen=True)
class Xid:
    """One Xid line. ``pci`` is the address as printed, ``bus_id`` the full one."""

    line: int
    code: int
    pci: str
    bus_id: str
    text: str  # what follows the number, process left out
    pid: int | None = None
    process: str | None = None
    severity: Severity | None = None  # as the line says it; None where it says neither
    unit: str | None = None  # 144-150: "RLW_RXPIPE"
    link: int | None = None  # -1: the driver did not know it
    registers: tuple[str, ...] = ()
    cause: int | None = None  # 45: "caused by previous Xid 149"
    recovery_action: str | None = None  # 154: the new one
    timeout_s: int | None = None  # 119
    function: str | None = None  # 119: "GSP_RM_CONTROL"
    function_number: int | None = None
    timestamp: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class SXid:
    """One line about an NVSwitch error; one error has up to three (event, severity, data)."""

    line: int
    code: int
    pci: str
    bus_id: str
    text: str
    switch: str | None = None  # "nvidia-nvswitch3"
    severity: Severity | None = None
    link: int | None = None
    port: int | None = None
    timestamp: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class OffBus:
    """The driver's own message about a GPU that is gone, which may come without an Xid."""

    line: int
    text: str
    pci: str | None = None
    bus_id: str | None = None
    pci_id: str | None = None  # "10de:26b5"
    timestamp: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class Aer:
    """A PCIe error report. ``bus_id`` is the device that erred, where the line names it."""

    line: int
    text: str
    severity: Literal["corrected", "nonfatal", "fatal"] | None = None
    pci: str | None = None
    bus_id: str | None = None
    driver: str | None = None
    timestamp: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class AdapterEvent:
    """A line of the mlx5 driver. ``kind`` "command" is noise, "link_up" is good news."""

    line: int
    kind: AdapterKind
    text: str
    pci: str | None = None
    bus_id: str | None = None
    module: int | None = None
    error: str | None = None  # module events: "High Temperature"
    watts: int | None = None
    netdev: str | None = None
    timestamp: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class OomKill:
    """The kernel's OOM killer: a process it killed, or the one that called it."""

    line: int
    kind: Literal["killed", "invoked"]
    text: str
    pid: int | None = None
    process: str | None = None
    timestamp: str | None = None
    host: str | None = None


@dataclass(frozen=True)
class DriverFault:
    """A failure that the NVIDIA driver reports without an Xid."""

    line: int
    kind: str  # "assertion", "init_failed", "probe_failed", "version_mismatch", ...
    text: str
    pci: str | None = None
    bus_id: str | None = None
    gpu: int | None = None  # "GPU0", the driver's instance, not nvidia-smi's index
    timestamp: str | None = None
    host: str | None = None
