"""Rows of the report's tables: what a node and its GPUs are, in words."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gpucluster.facts.model import Gpu, NodeFacts
from pytest_gpucluster.verdict.findings import NotChecked

UNKNOWN = "–"
GIB = 2**30


def node_rows(facts: NodeFacts) -> dict[str, str]:
    """What the machine around the GPUs is; what is not known is left out."""
    host, software = facts.host, facts.software
    memory = f"{host.memory_bytes / GIB:.0f} GiB" if host.memory_bytes else None
    rows = {
        "System": software.os,
        "Kernel": software.kernel,
        "Driver": software.driver,
        "Processor": host.cpu_model,
        "CPUs": str(host.cpus) if host.cpus else None,
        "NUMA nodes": str(host.numa_nodes) if host.numa_nodes else None,
        "Memory": memory,
        "Container": host.container,
        "Fabric manager": software.fabric_manager,
        "Facts read": facts.taken,
    }
    return {name: value for name, value in rows.items() if value}


def gpu_row(gpu: Gpu, *, with_state: bool) -> dict[str, str]:
    """One GPU, a cell per column; ``with_state``: whether the driver still reaches it."""
    ecc = gpu.ecc.enabled if gpu.ecc else None
    row = {
        "GPU": gpu.label,
        "Model": gpu.name or UNKNOWN,
        "Bus id": gpu.bus_id or UNKNOWN,
        "Memory": f"{gpu.memory_bytes / GIB:.1f} GiB" if gpu.memory_bytes else UNKNOWN,
        "ECC": {True: "on", False: "off", None: UNKNOWN}[ecc],
        "PCIe now": _pcie(gpu.pcie.generation, gpu.pcie.width),
        "PCIe max": _pcie(gpu.pcie.max_generation, gpu.pcie.max_width),
        "NVLinks up": _links(gpu),
        "Temperature": f"{gpu.temperature:g} °C" if gpu.temperature is not None else UNKNOWN,
        "Power limit": f"{gpu.power.limit:g} W" if gpu.power.limit else UNKNOWN,
    }
    if with_state:
        row["State"] = f"lost: {gpu.lost}" if gpu.lost else "reachable"
    return row


def by_reason(entries: Iterable[NotChecked]) -> list[tuple[str, list[str]]]:
    """Checks that share a reason stand in one row."""
    grouped: dict[str, list[str]] = {}
    for entry in entries:
        checks = grouped.setdefault(entry.reason, [])
        if entry.check and entry.check not in checks:
            checks.append(entry.check)
    return list(grouped.items())


def _pcie(generation: int | None, width: int | None) -> str:
    if generation is None and width is None:
        return UNKNOWN
    return f"gen {generation or '?'} x{width or '?'}"


def _links(gpu: Gpu) -> str:
    if gpu.nvlinks is None:
        return UNKNOWN
    if not gpu.nvlinks:
        return "none"
    up = gpu.active_links
    return f"{'?' if up is None else up} of {len(gpu.nvlinks)}"
