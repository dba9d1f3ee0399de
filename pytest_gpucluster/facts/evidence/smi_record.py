"""What ``nvidia-smi -q`` tells of a node, whether it came as text or as XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_gpucluster.facts.evidence.document import Unread
from pytest_gpucluster.facts.sysfs import bus_id

Cell = tuple[str, int]  # value as printed, line

# Values that stand for "this driver does not tell".
_UNKNOWN = re.compile(
    r"|N/A|\[N/A\]|\[Not Supported\]|Not Supported|\[?Unknown Error\]?|None|\[REDACTED\]"
    r"|(?:Requested functionality|.{0,60}) has been deprecated.{0,40}|Insufficient Permissions",
    re.IGNORECASE,
)
# Field -> where it stands: first as XML (v10 to v13), then as text.
PATHS: dict[str, tuple[str, ...]] = {
    "name": ("product_name",),
    "uuid": ("uuid", "gpu_uuid"),
    "serial": ("serial", "serial_number"),
    "persistence": ("persistence_mode",),
    "mig": ("mig_mode/current_mig", "mig_mode/current"),
    "ecc": ("ecc_mode/current_ecc", "ecc_mode/current"),
    "recovery_action": ("gpu_recovery_action",),
    "pstate": ("performance_state",),
    "pcie_gen_max": (
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
        "pci/gpu_link_info/pcie_generation/device_max",
        "pci/gpu_link_info/pcie_generation/max",
    ),
    "pcie_gen_current": (
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        "pci/gpu_link_info/pcie_generation/current",
    ),
    "pcie_width_max": (
        "pci/pci_gpu_link_info/link_widths/max_link_width",
        "pci/gpu_link_info/link_width/max",
    ),
    "pcie_width_current": (
        "pci/pci_gpu_link_info/link_widths/current_link_width",
        "pci/gpu_link_info/link_width/current",
    ),
    "pcie_replays": ("pci/replay_counter", "pci/replays_since_reset"),
    "gpu_util": ("utilization/gpu_util", "utilization/gpu"),
    "remap_pending": ("remapped_rows/remapped_row_pending", "remapped_rows/pending"),
    "remap_failed": (
        "remapped_rows/remapped_row_failure",
        "remapped_rows/remapping_failure_occurred",
    ),
    "remapped_uncorrectable": (
        "remapped_rows/remapped_row_unc",
        "remapped_rows/uncorrectable_error",
    ),
    "remapped_correctable": (
        "remapped_rows/remapped_row_corr",
        "remapped_rows/correctable_error",
    ),
    "retirement_pending": (
        "retired_pages/pending_retirement",
        "retired_pages/pending_page_blacklist",
        "retired_pages/pending_blacklist",
    ),
    "unrepairable": ("ecc_errors/unrepairable_memory",),
    "fabric_state": ("fabric/state",),
    "fabric_status": ("fabric/status",),
}
_UNCORRECTABLE = re.compile(
    r"ecc_errors/(volatile|aggregate)/(?:[sd]ram_uncorrectable(?:_parity|_secded|_sec_ded)?"
    r"|double_bit/total)"
)
_CLOCK = re.compile(
    r"clocks_(?:throttle|event)_reasons/(?:hw_slowdown/)?"
    r"(?:clocks_(?:throttle|event)_reason_)?(\w+)"
)
_CLOCKS = {  # as printed, without "_slowdown" -> name in the catalogue of clock events
    "gpu_idle": "idle",
    "idle": "idle",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
    "sw_thermal_slowdown": "sw_thermal",
}


@dataclass(frozen=True)
class SmiGpu:
    """One GPU. ``cells`` by the names of `PATHS`, only what is known; ``clocks`` by reason:
    active or not; ``uncorrectable``: ECC counts ``"volatile"`` and ``"aggregate"``."""

    line: int
    id: str  # as printed: "00000000:19:00.0"
    bus_id: str
    cells: dict[str, Cell] = field(default_factory=dict)
    clocks: dict[str, tuple[bool, int]] = field(default_factory=dict)
    uncorrectable: dict[str, Cell] = field(default_factory=dict)
    whole: bool = True

    def value(self, name: str) -> str | None:
        """A field as printed, ``None`` where the driver does not tell."""
        cell = self.cells.get(name)
        return cell[0] if cell else None

    def number(self, name: str) -> int | None:
        """The number a field begins with (``16x``, ``0 %``)."""
        match = re.match(r"[0-9]{1,12}", self.value(name) or "")
        return int(match[0]) if match else None


@dataclass(frozen=True)
class SmiRecord:
    """A whole record. ``attached``: GPUs the driver counts; ``full``: it is an ``nvidia-smi -q``
    without ``-d``, so that every section should be there."""

    gpus: tuple[SmiGpu, ...] = ()
    attached: int | None = None
    driver: str | None = None
    cuda: str | None = None
    full: bool = False
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def known(value: str) -> str | None:
    """A value as printed, or ``None`` where it says that it is not known."""
    text = value.strip()
    return None if _UNKNOWN.fullmatch(text) else text[:200]


def gpu_of(
    line: int, printed_id: str, cells: Mapping[str, Cell], unread: list[Unread], *, whole: bool
) -> SmiGpu:
    """One GPU from its cells by normalised path (``pci/gpu_link_info/link_width/max``)."""
    said = {
        name: cell
        for name, paths in PATHS.items()
        if (cell := _first(cells.get(path) for path in paths)) is not None
    }
    clocks: dict[str, tuple[bool, int]] = {}
    counts: dict[str, tuple[int, int]] = {}
    for path, (text, at) in cells.items():
        if (clock := _CLOCK.fullmatch(path)) and (name := _CLOCKS.get(clock[1])):
            if text in ("Active", "Not Active"):
                clocks[name] = (text == "Active", at)
            elif known(text) is not None:
                unread.append(Unread(at, f"clock event {clock[1]}: {text[:40]!r}"))
        elif (ecc := _UNCORRECTABLE.fullmatch(path)) and known(text) is not None:
            if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
                before, first = counts.get(ecc[1], (0, at))
                counts[ecc[1]] = (before + int(text), first if before else at)
            else:
                unread.append(Unread(at, f"ECC count {text[:40]!r}"))
    return SmiGpu(
        line,
        printed_id,
        bus_id(printed_id) or printed_id.lower(),
        said,
        clocks,
        {kind: (str(count), at) for kind, (count, at) in counts.items()},
        whole,
    )


def _first(cells: Iterable[Cell | None]) -> Cell | None:
    for cell in cells:
        if cell is not None and (value := known(cell[0])) is not None:
            return value, cell[1]
    return None


def record_of(
    gpus: list[SmiGpu],
    heading: Mapping[str, Cell],
    unread: list[Unread],
    cut: str | None,
    *,
    full: bool,
) -> SmiRecord:
    """The record; one that lists fewer GPUs than are attached is cut."""
    attached_text = heading.get("attached_gpus", ("", 0))[0]
    attached = int(attached_text) if re.fullmatch(r"[0-9]{1,4}", attached_text) else None
    if cut is None and attached is not None and attached > len(gpus):
        cut = f"{len(gpus)} GPUs listed, {attached} attached"
    return SmiRecord(
        tuple(gpus),
        attached,
        known(heading.get("driver_version", ("", 0))[0]),
        known(heading.get("cuda_version", ("", 0))[0]),
        full,
        tuple(unread),
        cut,
    )


def summarise(record: SmiRecord) -> dict[str, object]:
    """Values of all GPUs: one where they agree, else by the GPU's printed id."""
    facts: dict[str, object] = {
        "gpus": len(record.gpus),
        "gpus_listed": len(record.gpus),
        "gpus_attached": record.attached,
        "driver_version": record.driver,
        "cuda_version": record.cuda,
    }
    numbers = ("pcie_width_current", "pcie_width_max", "pcie_gen_current", "pcie_gen_max")
    columns: dict[str, dict[str, object]] = {}
    for gpu in record.gpus:
        values: dict[str, object] = {name: gpu.number(name) for name in numbers}
        values |= {
            "product": gpu.value("name"),
            "persistence_mode": gpu.value("persistence"),
            "mig_mode": gpu.value("mig"),
            "ecc_mode": gpu.value("ecc"),
            "remapped_row_pending": gpu.value("remap_pending"),
            "remapped_row_failure": gpu.value("remap_failed"),
            "fabric_state": gpu.value("fabric_state"),
            "fabric_status": gpu.value("fabric_status"),
        }
        for name, value in values.items():
            if value is not None:
                columns.setdefault(name, {})[gpu.id] = value
        for name, (active, _) in gpu.clocks.items():
            said = facts.setdefault(name, {})
            assert isinstance(said, dict)
            said[gpu.id] = "Active" if active else "Not Active"
        for kind, (count, _) in gpu.uncorrectable.items():
            columns.setdefault(f"ecc_uncorrectable_{kind}", {})[gpu.id] = int(count)
    for name, by_gpu in columns.items():
        different = list(dict.fromkeys(by_gpu.values()))
        facts[name] = different[0] if len(different) == 1 else by_gpu
    return facts
