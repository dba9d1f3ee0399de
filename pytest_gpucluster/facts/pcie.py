"""PCIe links as the kernel's sysfs shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from pytest_gpucluster.facts.model import Pcie, Unreadable
from pytest_gpucluster.facts.sysfs import bus_id, names_in, read_int, read_line, read_text

NVIDIA = 0x10DE
_DISPLAY_CLASSES = (0x0300, 0x0302)  # VGA controller, 3D controller

# Linux: drivers/pci/probe.c pci_speed_string(); older kernels print "8 GT/s" for "8.0 GT/s PCIe".
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) ?GT/s", re.ASCII)
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})  # 0 and 255 are the kernel's "unknown"
_AER_FILES = {
    "aer_correctable": ("aer_dev_correctable", "TOTAL_ERR_COR"),
    "aer_nonfatal": ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    "aer_fatal": ("aer_dev_fatal", "TOTAL_ERR_FATAL"),
}


@dataclass(frozen=True)
class PciDevice:
    """One PCI function. ``aer`` counts errors since boot: ``aer_correctable``, ``aer_nonfatal``,
    ``aer_fatal``; empty where the kernel keeps no such counts."""

    bus_id: str
    pcie: Pcie = field(default_factory=Pcie)
    driver: str | None = None
    aer: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PcieFacts:
    """NVIDIA's display-class functions; ``None`` where the PCI bus is not in sysfs."""

    nvidia: tuple[PciDevice, ...] | None = None
    unreadable: tuple[Unreadable, ...] = ()


def read_pcie(root: Path = Path("/")) -> PcieFacts:
    """Every NVIDIA GPU function on the PCI bus, whether or not a driver holds it.

    SR-IOV virtual functions are left out where their physical function is in sight: the
    driver does not count them as GPUs of this node either.
    """
    devices = root / "sys/bus/pci/devices"
    names = names_in(devices)
    if names is None:
        reason = (
            "/sys/bus/pci/devices cannot be listed, so GPUs that the driver does not see go "
            "unnoticed. Mount sysfs into the container, or run on the node itself."
        )
        return PcieFacts(unreadable=(Unreadable("pcie", reason),))
    found = [name for name in names if _is_nvidia_display(devices / name)]
    described = (read_device(name, root) for name in found)
    return PcieFacts(tuple(device for device in described if device is not None))


def read_device(address: str, root: Path = Path("/")) -> PciDevice | None:
    """The PCI function at ``address`` in any spelling, or ``None`` if the bus has none there."""
    address_ = bus_id(address)
    if address_ is None:
        return None
    path = root / "sys/bus/pci/devices" / address_
    if not path.is_dir():
        return None
    return PciDevice(address_, _link(path), driver_name(path), _aer(path))


def driver_name(device: Path) -> str | None:
    """The kernel driver bound to a sysfs device directory, or ``None``."""
    try:
        return (device / "driver").resolve(strict=True).name
    except (OSError, RuntimeError):
        return None


def _is_nvidia_display(path: Path) -> bool:
    if read_int(path / "vendor") != NVIDIA:
        return False
    pci_class = read_int(path / "class")  # 24 bits: class, subclass, programming interface
    return (
        pci_class is not None
        and pci_class >> 8 in _DISPLAY_CLASSES
        and not (path / "physfn").exists()
    )


def _link(path: Path) -> Pcie:
    # max_link_* is what this end alone can do; the bridge above it has its own.
    upstream = path.resolve().parent
    generation, width = _generation(path, "max_link_speed"), _width(path, "max_link_width")
    numa_node = read_int(path / "numa_node")
    return Pcie(
        generation=_generation(path, "current_link_speed"),
        width=_width(path, "current_link_width"),
        max_generation=_both(generation, _generation(upstream, "max_link_speed")),
        max_width=_both(width, _width(upstream, "max_link_width")),
        device_generation=generation,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
    )


def _both(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)


def _generation(path: Path, name: str) -> int | None:
    match = _SPEED.match(read_line(path / name) or "")
    return _GENERATIONS.get(float(match[1])) if match else None


def _width(path: Path, name: str) -> int | None:
    width = read_int(path / name)
    return width if width in _WIDTHS else None


def _aer(path: Path) -> dict[str, int]:
    counts = {}
    for key, (name, total) in _AER_FILES.items():
        match = re.search(rf"^{total} ([0-9]{{1,18}})$", read_text(path / name) or "", re.MULTILINE)
        if match:
            counts[key] = int(match[1])
    return counts
