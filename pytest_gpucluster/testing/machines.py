"""Descriptions for the fake NVML library: healthy machines, and faults to put on top.

    description.write_text(machine("h100x8") + fault("links_down", gpu=2))

Values are those of the real parts: names and memory sizes as nvidia-smi prints them, NVLink
versions as NVML's enum (4 is NVLink 3.0, 6 is 4.0, 7 is 5.0), raw signalling rates, PCIe links
that idle at generation 1, nothing where the real part has nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MIB = 2**20
DRIVER = "580.95.05"
RESERVED_MIB = 512
BUSES = (0x1B, 0x2A, 0x3B, 0x4C, 0x9B, 0xAB, 0xBB, 0xDB)
GRACE_DOMAINS = (0x8, 0x9, 0x18, 0x19)
# NVML return codes and enums (nvml.h)
DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH = 9, 15, 18
P2P_OK, P2P_CHIPSET, P2P_REGKEY, P2P_NOT_SUPPORTED = 0, 1, 4, 5
TO_GPU, TO_SWITCH = 0, 2
SLOWDOWN = 1
NODE, SYSTEM = 40, 50
HEALTHY_FABRIC = "3 0 0 0x1aa"  # completed, success, clique 0, no flag raised
NVLINK5_ERRORS = (206, 207, 208, 211, 214, 215)  # field ids that replace 161-163 on Blackwell


@dataclass(frozen=True)
class NvLinks:
    """NVLinks of each GPU of a machine. ``version`` is NVML's enum, ``mbps`` the raw rate."""

    count: int
    version: int
    mbps: int
    remote: Literal["switch", "gpu"] = "switch"
    switch_buses: tuple[int, ...] = (0x05, 0x06, 0x07, 0x08)  # none: not on this node's PCIe


@dataclass(frozen=True)
class Machine:
    """A node of one product. ``margin``: the GPU tells its margin, not its limit."""

    name: str
    count: int
    memory_mib: int
    capability: str
    power_w: int
    pcie_generation: int
    sm_mhz: int
    memory_mhz: int
    links: NvLinks | None = None
    idle_generation: int = 1
    datacentre: bool = True  # ECC, a serial number; GeForce has neither
    mig: bool = False
    margin: bool = True
    fabric: bool = False
    cluster_uuid: str | None = None  # 32 hexadecimal digits
    domains: tuple[int, ...] = ()  # PCI domain of each GPU; none: all in domain 0
    p2p: int = P2P_OK


HOPPER_LINKS = NvLinks(18, 6, 26562)
BLACKWELL_LINKS = NvLinks(18, 7, 53125)
# fmt: off
MACHINES = {
    "a100x8": Machine("NVIDIA A100-SXM4-80GB", 8, 81920, "8.0", 400, 4, 1410, 1593,
                      NvLinks(12, 4, 25000), idle_generation=4, mig=True, margin=False),
    "h100x8": Machine("NVIDIA H100 80GB HBM3", 8, 81559, "9.0", 700, 5, 1980, 2619,
                      HOPPER_LINKS, mig=True, fabric=True),
    "h200x8": Machine("NVIDIA H200", 8, 143771, "9.0", 700, 5, 1980, 3201,
                      HOPPER_LINKS, mig=True, fabric=True),
    "b200x8": Machine("NVIDIA B200", 8, 183359, "10.0", 1000, 5, 1965, 3996,
                      BLACKWELL_LINKS, mig=True, fabric=True),
    "gb200x4": Machine("NVIDIA GB200", 4, 189471, "10.0", 1200, 5, 2062, 3996,
                       NvLinks(18, 7, 53125, switch_buses=()), mig=True, fabric=True,
                       cluster_uuid="5a1c6e3f9b0247d8a1e4c02f7b6d9e31", domains=GRACE_DOMAINS),
    "l40sx8": Machine("NVIDIA L40S", 8, 46068, "8.9", 350, 4, 2520, 9001),
    "rtx3090x2": Machine("NVIDIA GeForce RTX 3090", 2, 24576, "8.6", 350, 4, 2100, 9751,
                         NvLinks(4, 5, 14062, remote="gpu"), datacentre=False, margin=False),
    "rtx4090x8": Machine("NVIDIA GeForce RTX 4090", 8, 24564, "8.9", 450, 4, 3105, 10501,
                         datacentre=False, p2p=P2P_CHIPSET),
}
# fmt: on


def machine(key: str) -> str:
    """The description of a healthy machine, such as ``h100x8``."""
    if key not in MACHINES:
        raise ValueError(f"{key}: unknown machine. Choose from {', '.join(MACHINES)}.")
    m = MACHINES[key]
    lines = [f"driver {DRIVER}", f"nvml 13.{DRIVER}", "cuda 13000", f"gpus {m.count}"]
    lines += _every_gpu(m)
    if m.links is not None:
        lines += _links(m, m.links)
    lines += [line for index in range(m.count) for line in _one_gpu(m, index)]
    lines += _pairs(m)
    return "".join(f"{line}\n" for line in lines)


def bus_id(index: int, domains: tuple[int, ...] = ()) -> str:
    """The PCI address of a machine's GPU, as NVML writes it."""
    if domains:
        return f"{domains[index]:08X}:01:00.0"
    return f"00000000:{BUSES[index]:02X}:00.0"


def _every_gpu(m: Machine) -> list[str]:
    values: dict[str, object] = {
        "name": m.name,
        "vbios": "96.00.74.00.01",
        "compute_capability": m.capability,
        "memory.total": m.memory_mib * MIB,
        "memory.used": (RESERVED_MIB + 3) * MIB,
        "memory.reserved": RESERVED_MIB * MIB,
        "persistence": 1,
        "compute_mode": 0,
        "power.limit_mw": m.power_w * 1000,
        "power.default_mw": m.power_w * 1000,
        "power.max_mw": m.power_w * 1000,
        "power.min_mw": 100_000,
        "power.draw_mw": 72_500,
        "clock.sm": 345,
        "clock.memory": m.memory_mhz,
        "max_clock.sm": m.sm_mhz,
        "max_clock.memory": m.memory_mhz,
        "clock_events": "0x1",
        "temperature": 31,
        "pcie.generation": m.idle_generation,
        "pcie.max_generation": m.pcie_generation,
        "pcie.device_generation": m.pcie_generation,
        "pcie.width": 16,
        "pcie.max_width": 16,
        "pcie.replays": 0,
        "recovery_action": 0,
        "remapped": "0 0 0 0",  # GeForce answers zeros too
    }
    if m.datacentre:
        kinds, spans = ("corrected", "uncorrected"), ("volatile", "aggregate")
        values |= {f"ecc.{kind}.{span}": 0 for kind in kinds for span in spans}
        values |= {"ecc.mode": 1, "ecc.sram_exceeded": 0}
    if m.mig:
        values["mig"] = 0
    if m.fabric:
        values["fabric"] = HEALTHY_FABRIC
    if m.cluster_uuid:
        values["fabric_uuid"] = m.cluster_uuid
    values |= {"temperature_margin": 56} if m.margin else {}
    values |= {} if m.margin else {f"temperature_threshold.{SLOWDOWN}": 90}
    return [f"gpu.*.{key} {value}" for key, value in values.items()]


def _links(m: Machine, links: NvLinks) -> list[str]:
    values = {
        "active": 1,
        "version": links.version,
        "remote_type": TO_SWITCH if links.remote == "switch" else TO_GPU,
        "signalling_mbps": links.mbps,
    }
    if links.version >= BLACKWELL_LINKS.version:
        values |= {f"field.{number}": 0 for number in NVLINK5_ERRORS}
    else:
        values |= {"replay": 0, "recovery": 0, "crc": 0}
    lines = [f"gpu.*.links {links.count}"]
    lines += [f"gpu.*.link.*.{key} {value}" for key, value in values.items()]
    buses = links.switch_buses
    for index in range(m.count):
        for number in range(links.count):
            if links.remote == "gpu":
                lines.append(f"gpu.{index}.link.{number}.remote_bus_id {bus_id(1 - index)}")
            elif buses and index == 0:
                switch = f"00000000:{buses[number % len(buses)]:02X}:00.0"
                lines.append(f"gpu.*.link.{number}.remote_bus_id {switch}")
    return lines


def _one_gpu(m: Machine, index: int) -> list[str]:
    lines = [
        f"gpu.{index}.uuid GPU-{index:08x}-5d3c-4a77-9f10-0123456789ab",
        f"gpu.{index}.bus_id {bus_id(index, m.domains)}",
        f"gpu.{index}.numa_node {_socket(m, index)}",
    ]
    if m.datacentre:
        lines.append(f"gpu.{index}.serial 165342300{index:04d}")
    if m.domains:  # Grace: the GPU's memory is a NUMA node as well
        lines.append(f"gpu.{index}.memory_numa_node {2 + 8 * index}")
    return lines


def _socket(m: Machine, index: int) -> int:
    return index // max(1, m.count // 2)


def _pairs(m: Machine) -> list[str]:
    lines = [
        f"pair.*.*.p2p.read {m.p2p}",
        f"pair.*.*.p2p.write {m.p2p}",
        f"pair.*.*.p2p.nvlink {P2P_NOT_SUPPORTED if m.links is None else P2P_OK}",
        f"pair.*.*.ancestor {SYSTEM}",
    ]
    near = [
        f"pair.{a}.{b}.ancestor {NODE}"
        for a in range(m.count)
        for b in range(a + 1, m.count)
        if _socket(m, a) == _socket(m, b)
    ]
    return lines + near


# {g} is the GPU's index. gpu_missing is made for machines of eight.
FAULTS: dict[str, tuple[str, ...]] = {
    "links_down": (
        "gpu.{g}.link.*.active 0",
        f"pair.{{g}}.*.p2p.nvlink {P2P_NOT_SUPPORTED}",
        f"pair.*.{{g}}.p2p.nvlink {P2P_NOT_SUPPORTED}",
    ),
    "one_link_down": ("gpu.{g}.link.1.active 0",),
    "link_wrong_version": ("gpu.{g}.link.*.version 2",),
    "link_errors": (
        "gpu.{g}.link.3.replay 412",
        "gpu.{g}.link.3.recovery 0",
        "gpu.{g}.link.3.crc 9",
    ),
    "remap_failure": ("gpu.{g}.remapped 0 8 0 1",),
    "remap_pending": ("gpu.{g}.remapped 0 1 1 0",),
    "ecc_uncorrected": (
        "gpu.{g}.ecc.uncorrected.volatile 2",
        "gpu.{g}.ecc.uncorrected.aggregate 2",
    ),
    "ecc_disabled": ("gpu.{g}.ecc.mode 0",),
    "retired_pages_many": (
        "gpu.{g}.retired.single_bit 40",
        "gpu.{g}.retired.double_bit 22",
        "gpu.{g}.retired.pending 0",
    ),
    "gpu_lost": (
        f"gpu.{{g}}.error.* {GPU_IS_LOST}",
        "gpu.{g}.error.nvmlDeviceGetHandleByIndex_v2 -",
    ),
    "gpu_missing": ("gpus 7",),
    "odd_gpu_model": ("gpu.{g}.name NVIDIA H100 PCIe",),
    "less_memory": (f"gpu.{{g}}.memory.total {20 * 1024 * MIB}",),
    "pcie_width_8": ("gpu.{g}.pcie.width 8",),
    "pcie_generation_low": ("gpu.{g}.pcie.max_generation 3", "gpu.{g}.pcie.generation 1"),
    "pcie_replays": ("gpu.{g}.pcie.replays 48211",),
    "p2p_disabled": (
        f"pair.0.{{g}}.p2p.read {P2P_REGKEY}",
        f"pair.0.{{g}}.p2p.write {P2P_REGKEY}",
    ),
    "mig_enabled": ("gpu.{g}.mig 1",),
    "foreign_process": (
        f"gpu.{{g}}.process.0 4711 {12 * 1024 * MIB}",
        f"gpu.{{g}}.memory.used {(12 * 1024 + RESERVED_MIB) * MIB}",
        "process.4711.name python3",
    ),
    "power_limit_low": ("gpu.{g}.power.limit_mw 250000",),
    "thermal_slowdown": ("gpu.{g}.clock_events 0x48",),
    "power_brake": ("gpu.{g}.clock_events 0x88",),
    "fabric_not_started": ("gpu.{g}.fabric 1 0 0 0x0",),
    "fabric_degraded": ("gpu.{g}.fabric 3 0 0 0x1a9",),
    "exclusive_compute_mode": ("gpu.{g}.compute_mode 3",),
    "persistence_off": ("gpu.{g}.persistence 0",),
    "old_driver": ("driver 418.87.00", "cuda 10010"),
    "driver_mismatch": (f"error.nvmlInit_v2 {VERSION_MISMATCH}",),
    "not_loaded": (f"error.nvmlInit_v2 {DRIVER_NOT_LOADED}",),
    "unknown_gpu": ("gpu.*.name NVIDIA X9000",),
    "hung_call": ("gpu.{g}.hang.nvmlDeviceGetTemperature 1",),
    "recovery_action": ("gpu.{g}.recovery_action 1",),
}


def fault(name: str, gpu: int = 2) -> str:
    """Lines to append to a machine's description."""
    if name not in FAULTS:
        raise ValueError(f"{name}: unknown fault. Choose from {', '.join(FAULTS)}.")
    return "".join(f"{line.format(g=gpu)}\n" for line in FAULTS[name])


def environment(description: Path, library_dir: Path) -> dict[str, str]:
    """The variables a process needs to see the fake machine."""
    return {"FAKE_NVML": str(description), "LD_LIBRARY_PATH": str(library_dir)}
