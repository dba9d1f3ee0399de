"""NVLinks, fabric and peer access, through NVML. Imports ``pynvml``: only for the reader."""

from __future__ import annotations

import ctypes
from itertools import combinations
from typing import Any, Literal
from uuid import UUID

import pynvml

from pytest_gpucluster.facts.model import (
    Ancestor,
    Fabric,
    GpuPair,
    NvLink,
    P2pStatus,
    Unreadable,
)
from pytest_gpucluster.facts.nvml_calls import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    Asker,
    text,
    too_old,
)
from pytest_gpucluster.facts.sysfs import bus_id

# nvmlDeviceGetNvLinkVersion answers with an enum: 6 is NVLink 4.0 (nvml.h).
VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
REMOTES: dict[int, Literal["gpu", "switch", "npu"]] = {0: "gpu", 1: "npu", 2: "switch"}
# Links are probed until NVML says there is no such link; this only bounds a mad driver.
MOST_LINKS = 64
LINK_COUNT_FIELD = 91
SPEED_FIELDS = {"speed": 164, "common_speed": 90}  # Mbps per direction; the second is older
# Counted per link up to Hopper, and what counts in their place from Blackwell on.
ERROR_FIELDS = {"replay": 161, "recovery": 162, "crc": 163}
NVLINK5_ERROR_FIELDS = {
    "malformed": 206,
    "overrun": 207,
    "receive": 208,
    "integrity": 211,
    "recovery_failed": 214,
    "recovery": 215,
}
# nvmlDeviceGetNvLinkErrorCounter, of drivers without the fields; crc: flits and data.
ERROR_COUNTERS = {"replay": (0,), "recovery": (1,), "crc": (2, 3)}
FABRIC_STATES: dict[int, Literal["not_supported", "not_started", "in_progress", "completed"]] = {
    0: "not_supported",
    1: "not_started",
    2: "in_progress",
    3: "completed",
}
# With each structure's size in bytes: nvidia-ml-py 12.535 has a wrong one, which misleads.
FABRIC_CALLS = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t", 40),
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t", 36),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t", 28),
)
CONFIGURATIONS = {
    0: None,
    1: "none",
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "GPU state invalid",
}
P2P: dict[int, P2pStatus] = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "topology_not_supported",
    4: "disabled_by_regkey",
    5: "not_supported",
}
ANCESTORS: dict[int, Ancestor] = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "host_bridge",
    40: "node",
    50: "system",
}
READ, WRITE, NVLINK = 0, 1, 2


def read_links(asker: Asker) -> tuple[NvLink, ...] | None:
    """Every NVLink of a GPU; ``()`` where it has none, ``None`` where that is not known."""
    count = asker.fields("nvlink", {"links": LINK_COUNT_FIELD}).get("links", 0)
    links: list[NvLink] = []
    for number in range(MOST_LINKS):
        state = asker.attempt("nvmlDeviceGetNvLinkState", number)
        if state.error in (INVALID_ARGUMENT, NOT_SUPPORTED):
            return tuple(links)
        asker.keep("nvlink", state)
        if state.reason is not None and number >= count:
            return None
        links.append(_link(asker, number, None if state.value is None else bool(state.value)))
    return tuple(links)


def _link(asker: Asker, number: int, active: bool | None) -> NvLink:
    errors = _errors(asker, number)
    if not active:  # an inactive link has no version, speed or peer worth the name
        return NvLink(number, active, errors=errors)
    version = asker.ask("nvlink version", "nvmlDeviceGetNvLinkVersion", number)
    remote = asker.ask("nvlink remote", "nvmlDeviceGetNvLinkRemoteDeviceType", number)
    peer = asker.ask("nvlink remote", "nvmlDeviceGetNvLinkRemotePciInfo", number)
    speeds = asker.fields("nvlink speed", SPEED_FIELDS, number)
    speed = speeds.get("speed") or speeds.get("common_speed")
    return NvLink(
        link=number,
        active=active,
        version=None if version is None else VERSIONS.get(version),
        signalling_gbs=speed / 1000 if speed else None,
        remote_type=None if remote is None else REMOTES.get(remote, "unknown"),
        remote_bus_id=pci_address(peer),
        errors=errors,
    )


def _errors(asker: Asker, number: int) -> dict[str, int]:
    wanted = {
        **{f"old {name}": field for name, field in ERROR_FIELDS.items()},
        **{f"new {name}": field for name, field in NVLINK5_ERROR_FIELDS.items()},
    }
    found = asker.fields("nvlink errors", wanted, number)
    for generation in ("old ", "new "):
        counts = {
            name.removeprefix(generation): count
            for name, count in found.items()
            if name.startswith(generation)
        }
        if counts:
            return counts
    totals = {}
    for name, counters in ERROR_COUNTERS.items():
        answers = [asker.attempt("nvmlDeviceGetNvLinkErrorCounter", number, c) for c in counters]
        if all(answer.value is not None for answer in answers):
            totals[name] = sum(int(answer.value) for answer in answers)
    return totals


def pci_address(pci: Any) -> str | None:
    """A PCI address in one spelling; virtual machines answer with an empty one."""
    return None if pci is None else bus_id(text(pci.busId) or "")


def read_fabric(asker: Asker) -> Fabric | None:
    """Registration with the NVSwitch fabric; ``None`` where the part has none."""
    answer = too_old("nvmlDeviceGetGpuFabricInfoV")
    for call, name, size in FABRIC_CALLS:
        structure = getattr(pynvml, name, None)
        if structure is None or ctypes.sizeof(structure) != size:
            continue
        info = structure()
        # A reference, always: with None in its place the library kills the process.
        answer = asker.attempt(call, ctypes.byref(info))
        if answer.reason is None:
            return _fabric(info)
        if answer.error not in (FUNCTION_NOT_FOUND, INVALID_ARGUMENT, VERSION_MISMATCH):
            break
    asker.keep("fabric", answer)
    return None


def _fabric(info: Any) -> Fabric:
    mask = int(getattr(info, "healthMask", 0))
    # As raw bytes: an array of characters would be cut off at its first zero.
    cluster = ctypes.string_at(ctypes.addressof(info) + type(info).clusterUuid.offset, 16)

    def raised(shift: int) -> bool | None:
        return {1: True, 2: False}.get(mask >> shift & 0x3)

    configuration = mask >> 8 & 0xF
    return Fabric(
        state=FABRIC_STATES.get(int(info.state)),
        status=int(info.status),
        clique_id=int(info.cliqueId),
        cluster_uuid=str(UUID(bytes=cluster)) if any(cluster) else None,
        degraded_bandwidth=raised(0),
        route_recovery=raised(2),
        route_unhealthy=raised(4),
        access_timeout=raised(6),
        incorrect_configuration=CONFIGURATIONS.get(configuration, f"code {configuration}"),
    )


def read_pairs(handles: dict[int, Any]) -> tuple[tuple[GpuPair, ...], list[Unreadable]]:
    """Peer access and nearest common ancestor of every two GPUs, and what was not readable."""
    pairs, problems = [], []
    for a, b in combinations(sorted(handles), 2):
        asker = Asker(f"GPU{a}-GPU{b}", (handles[a], handles[b]))
        pairs.append(_pair(asker, a, b))
        problems += asker.problems
        if asker.lost is not None:
            problems.append(Unreadable(asker.label, asker.lost))
    return tuple(pairs), problems


def _pair(asker: Asker, a: int, b: int) -> GpuPair:
    def status(index: int) -> P2pStatus:
        answer = asker.ask("p2p", "nvmlDeviceGetP2PStatus", index)
        return "unknown" if answer is None else P2P.get(answer, "unknown")

    level = asker.ask("topology", "nvmlDeviceGetTopologyCommonAncestor")
    return GpuPair(
        a,
        b,
        read=status(READ),
        write=status(WRITE),
        nvlink=status(NVLINK),
        ancestor=None if level is None else ANCESTORS.get(level),
    )
