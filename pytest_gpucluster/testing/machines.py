"""Descriptions for the fake NVML library: healthy machines, and faults to put on top.

Values are those of the real parts: names and memory sizes as nvidia-smi prints them, NVLink
versions as NVML's enum (5 is NVLink 3.1, 6 is 4.0, 7 is 5.0), PCIe links that idle at
generation 1, nothing where the real part has nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MIB = 2**20
DRIVER = "580.95.05"
BUSES = (0x1B, 0x2A, 0x3B, 0x4C, 0x9B, 0xAB, 0xBB, 0xDB)
# NVML return codes (nvml.h)
DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH = 9, 15, 18
P2P_OK, P2P_CHIPSET, P2P_REGKEY, P2P_NOT_SUPPORTED = 0, 1, 4, 5
HEALTHY_FABRIC = "3 0 0 0x1aa"  # completed, success, clique 0, no flag raised


@dataclass(frozen=True)
class Machine:
    """A node of one product. ``links``: NVLinks per GPU, to ``remote``."""

    name: str
    count: int
    memory_mib: int
    capability: str
    power_w: int
    pcie_generation: int
    idle_generation: int = 1
    pcie_width: int = 16
    ecc: bool = True
    rows: bool = True
    mig: bool = False
    links: int = 0
    link_version: int = 0
    link_mbps: int = 0
    remote: Literal["switch", "gpu"] = "switch"
    fabric: bool = False
    p2p: bool = True


MACHINES = {
    "a100x8": Machine("NVIDIA A100-SXM4-80GB", 8, 81920, "8.0", 400, 4, mig=True, links=12,
                      link_version=5, link_mbps=25000, idle_generation=4),
    "h100x8": Machine("NVIDIA H100 80GB HBM3", 8, 81559, "9.0", 700, 5, mig=True, links=18,
                      link_version=6, link_mbps=26562, fabric=True),
    "h200x8": Machine("NVIDIA H200", 8, 143771, "9.0", 700, 5, mig=True, links=18,
                      link_version=6, link_mbps=26562, fabric=True),
    "b200x8": Machine("NVIDIA B200", 8, 183359, "10.0", 1000, 5, mig=True, links=18,
                      link_version=7, link_mbps=53125, fabric=True),
    "gb200x4": Machine("NVIDIA GB200", 4, 189471, "10.0", 1200, 5, mig=True, links=18,
                       link_version=7, link_mbps=53125, fabric=True),
    "l40sx8": Machine("NVIDIA L40S", 8, 46068, "8.9", 350, 4),
    "rtx3090x2": Machine("NVIDIA GeForce RTX 3090", 2, 24576, "8.6", 350, 4, ecc=False, links=4,
                         link_version=5, link_mbps=14062, remote="gpu"),
    "rtx4090x8": Machine("NVIDIA GeForce RTX 4090", 8, 24564, "8.9", 450, 4, ecc=False,
                         p2p=False),
}  # fmt: skip


def machine(key: str) -> str:
    """The description of a healthy machine, such as ``h100x8``."""
    m = MACHINES[key]
    lines = [f"driver {DRIVER}", f"nvml 13.{DRIVER}", "cuda 13000", f"gpus {m.count}"]
    lines += _every_gpu(m)
    if m.links:
        lines += _links(m)
    lines += [line for index in range(m.count) for line in _one_gpu(m, index)]
    lines += _pairs(m)
    return "\n".join(lines)


def bus_id(index: int) -> str:
    """The PCI address of a machine's GPU, as NVML writes it."""
    return f"00000000:{BUSES[index]:02X}:00.0"


def _every_gpu(m: Machine) -> list[str]:
    values: dict[str, object] = {
        "name": m.name,
        "vbios": "96.00.74.00.01",
        "compute_capability": m.capability,
        "memory.total": m.memory_mib * MIB,
        "memory.used": 3 * MIB,
        "persistence": 1,
        "compute_mode": 0,
        "power.limit_mw": m.power_w * 1000,
        "power.default_mw": m.power_w * 1000,
        "power.max_mw": m.power_w * 1000,
        "power.min_mw": 100_000,
        "power.draw_mw": 72_500,
        "clock.sm": 345,
        "clock.memory": 1593,
        "max_clock.sm": 1980,
        "max_clock.memory": 2619,
        "clock_events": "0x1",
        "temperature": 31,
        "pcie.generation": m.idle_generation,
        "pcie.max_generation": m.pcie_generation,
        "pcie.device_generation": m.pcie_generation,
        "pcie.width": m.pcie_width,
        "pcie.max_width": m.pcie_width,
        "pcie.replays": 0,
        "recovery_action": 0,
    }
    if m.ecc:
        counters = {f"ecc.{kind}.{span}": 0 for kind in ("corrected", "uncorrected")
                    for span in ("volatile", "aggregate")}  # fmt: skip
        values |= {"ecc.mode": 1, "ecc.sram_exceeded": 0, **counters}
    if m.rows:
        values["remapped"] = "0 0 0 0"  # GeForce answers zeros too
    if m.mig:
        values["mig"] = 0
    if m.fabric:
        values["fabric"] = HEALTHY_FABRIC
    if m.capability >= "9.0" or m.capability.startswith("10"):
        values["temperature_margin"] = 56
    return [f"gpu.*.{key} {value}" for key, value in values.items()]


def _links(m: Machine) -> list[str]:
    values = {
        "active": 1,
        "version": m.link_version,
        "remote_type": 2 if m.remote == "switch" else 0,
        "signalling_mbps": m.link_mbps,
        "replay": 0,
        "recovery": 0,
        "crc": 0,
    }
    lines = [f"gpu.*.links {m.links}"]
    lines += [f"gpu.*.link.*.{key} {value}" for key, value in values.items()]
    if m.remote == "switch":
        return [*lines, *(f"gpu.*.link.{n}.remote_bus_id 00000000:{5 + n % 4:02X}:00.0"
                          for n in range(m.links))]  # fmt: skip
    return [*lines, *(f"gpu.{i}.link.*.remote_bus_id {bus_id(1 - i)}" for i in range(m.count))]


def _one_gpu(m: Machine, index: int) -> list[str]:
    return [
        f"gpu.{index}.uuid GPU-{index:08x}-5d3c-4a77-9f10-0123456789ab",
        f"gpu.{index}.serial 165342300{index:04d}",
        f"gpu.{index}.bus_id {bus_id(index)}",
        f"gpu.{index}.numa_node {index // max(1, m.count // 2)}",
    ]


def _pairs(m: Machine) -> list[str]:
    ok = P2P_OK if m.p2p else P2P_CHIPSET
    linked = P2P_OK if m.links else P2P_NOT_SUPPORTED
    lines = [
        f"pair.*.*.p2p.read {ok}",
        f"pair.*.*.p2p.write {ok}",
        f"pair.*.*.p2p.nvlink {linked}",
        "pair.*.*.ancestor 50",
    ]
    half = max(1, m.count // 2)
    near = [
        f"pair.{a}.{b}.ancestor 40"
        for a in range(m.count)
        for b in range(a + 1, m.count)
        if a // half == b // half
    ]
    return lines + near


FAULTS = {
    "links_down": "gpu.{g}.link.*.active 0\npair.{g}.*.p2p.nvlink 5\npair.*.{g}.p2p.nvlink 5",
    "one_link_down": "gpu.{g}.link.7.active 0",
    "link_wrong_version": "gpu.{g}.link.*.version 4",
    "link_errors": "gpu.{g}.link.3.replay 412\ngpu.{g}.link.3.crc 9",
    "remap_failure": "gpu.{g}.remapped 0 8 0 1",
    "remap_pending": "gpu.{g}.remapped 0 1 1 0",
    "ecc_uncorrected": "gpu.{g}.ecc.uncorrected.volatile 2\ngpu.{g}.ecc.uncorrected.aggregate 2",
    "ecc_disabled": "gpu.{g}.ecc.mode 0",
    "retired_pages_many": "gpu.{g}.retired.single_bit 40\ngpu.{g}.retired.double_bit 22\n"
    "gpu.{g}.retired.pending 0",
    "gpu_lost": f"gpu.{{g}}.error.* {GPU_IS_LOST}",
    "gpu_missing": "gpus 7",
    "odd_gpu_model": "gpu.{g}.name NVIDIA H100 PCIe",
    "less_memory": f"gpu.{{g}}.memory.total {40 * 1024 * MIB}",
    "pcie_width_8": "gpu.{g}.pcie.width 8",
    "pcie_generation_low": "gpu.{g}.pcie.max_generation 3",
    "pcie_replays": "gpu.{g}.pcie.replays 48211",
    "p2p_disabled": f"pair.0.{{g}}.p2p.read {P2P_REGKEY}\npair.0.{{g}}.p2p.write {P2P_REGKEY}",
    "mig_enabled": "gpu.{g}.mig 1",
    "foreign_process": "gpu.{g}.process.0 4711 12884901888\nprocess.4711.name python3",
    "power_limit_low": "gpu.{g}.power.limit_mw 350000",
    "thermal_slowdown": "gpu.{g}.clock_events 0x48",
    "power_brake": "gpu.{g}.clock_events 0x88",
    "fabric_not_started": "gpu.{g}.fabric 1 0 0 0x0",
    "fabric_degraded": "gpu.{g}.fabric 3 0 0 0x1a9",
    "exclusive_compute_mode": "gpu.{g}.compute_mode 3",
    "persistence_off": "gpu.{g}.persistence 0",
    "old_driver": "driver 418.87.00\ncuda 10010",
    "driver_mismatch": f"error.nvmlInit_v2 {VERSION_MISMATCH}",
    "not_loaded": f"error.nvmlInit_v2 {DRIVER_NOT_LOADED}",
    "unknown_gpu": "gpu.*.name NVIDIA X9000",
    "hung_call": "gpu.{g}.hang.nvmlDeviceGetTemperature 1",
    "recovery_action": "gpu.{g}.recovery_action 1",
}


def fault(name: str, gpu: int = 2) -> str:
    """Lines to append to a machine's description."""
    return FAULTS[name].format(g=gpu)


def environment(description: Path, library_folder: Path) -> dict[str, str]:
    """The variables a process needs to see the fake machine."""
    return {"FAKE_NVML": str(description), "LD_LIBRARY_PATH": str(library_folder)}
