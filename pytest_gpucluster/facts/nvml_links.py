"""NVLink, fabric and peer access of GPUs, through NVML."""

from __future__ import annotations

import ctypes
from typing import Any, Literal, cast

import pynvml

from pytest_gpucluster.facts.model import (
    Ancestor,
    Fabric,
    GpuPair,
    NvLink,
    P2pStatus,
)
from pytest_gpucluster.facts.nvml_calls import Asker, GpuLost, scaled
from pytest_gpucluster.facts.sysfs import bus_id

# nvmlDeviceGetNvLinkVersion answers with an enum: 6 is NVLink 4.0 (nvml.h).
VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
REMOTES = {0: "gpu", 1: "npu", 2: "switch"}
# Links are probed until NVML says there is no such link; this only bounds a mad driver.
MOST_LINKS = 64
ERROR_FIELDS = {"replay": 161, "recovery": 162, "crc": 163}
SPEED_FIELD = 164
FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
CONFIGURATIONS = {
    0: "not_supported",
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


def read_links(asker: Asker, handle: Any) -> tuple[NvLink, ...] | None:
    """Every NVLink of a GPU; ``()`` where it has none, ``None`` where that is not known."""
    links = []
    for number in range(MOST_LINKS):
        before = len(asker.problems)
        active = asker.ask("nvlink", "nvmlDeviceGetNvLinkState", handle, number)
        if active is None:
            if len(asker.problems) > before:
                return None
            break
        links.append(_link(asker, handle, number, bool(active)))
    return tuple(links)


def _link(asker: Asker, handle: Any, number: int, active: bool) -> NvLink:
    version = asker.ask("nvlink version", "nvmlDeviceGetNvLinkVersion", handle, number)
    remote = asker.ask("nvlink remote", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
    pci = asker.ask("nvlink remote", "nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
    values = read_fields(
        asker, "nvlink errors", handle, {**ERROR_FIELDS, "speed": SPEED_FIELD}, number
    )
    speed = values.pop("speed", None)
    return NvLink(
        link=number,
        active=active,
        version=VERSIONS.get(version) if version is not None else None,
        signalling_gbs=scaled(speed, 1e-3),
        remote_type=cast(
            Literal["gpu", "switch", "npu", "unknown"],
            REMOTES.get(remote, "unknown"),
        )
        if remote is not None
        else None,
        remote_bus_id=pci_address(pci),
        errors=values,
    )


def read_fields(
    asker: Asker, subject: str, handle: Any, fields: dict[str, int], scope: int = 0
) -> dict[str, int]:
    """Field values by name; each has its own return code, the call succeeds regardless."""
    pairs = [(number, scope) for number in fields.values()]
    answers = asker.ask(subject, "nvmlDeviceGetFieldValues", handle, pairs)
    if answers is None:
        return {}
    return {
        name: int(answer.value.uiVal)
        for name, answer in zip(fields, answers, strict=True)
        if answer.nvmlReturn == pynvml.NVML_SUCCESS
    }


def pci_address(pci: Any) -> str | None:
    """A PCI address in one spelling; VMs answer with an empty one."""
    if pci is None:
        return None
    raw = pci.busId
    return bus_id(raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw))


def read_fabric(asker: Asker, handle: Any) -> Fabric | None:
    """Registration with the NVSwitch fabric; ``None`` where the part has none."""
    if not hasattr(pynvml, "c_nvmlGpuFabricInfo_v3_t"):
        return None
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    reference = ctypes.byref(info)  # None in its place kills the process
    done = asker.ask("fabric", "nvmlDeviceGetGpuFabricInfoV", handle, reference)
    if done is None:
        return None
    mask = int(info.healthMask)

    def raised(shift: int) -> bool | None:
        return {1: True, 2: False}.get(mask >> shift & 0x3)

    return Fabric(
        state=cast(Any, FABRIC_STATES.get(int(info.state))),
        status=int(info.status),
        clique_id=int(info.cliqueId),
        cluster_uuid=bytes(info.clusterUuid).hex(),
        degraded_bandwidth=raised(0),
        route_recovery=raised(2),
        route_unhealthy=raised(4),
        access_timeout=raised(6),
        incorrect_configuration=CONFIGURATIONS.get(mask >> 8 & 0xF, f"code {mask >> 8 & 0xF}"),
    )


def read_pair(asker: Asker, a: int, b: int, handles: dict[int, Any]) -> GpuPair:
    """Peer access and nearest common ancestor of two GPUs."""

    def status(index: int) -> P2pStatus:
        answer = asker.ask("p2p", "nvmlDeviceGetP2PStatus", handles[a], handles[b], index)
        return P2P.get(answer, "unknown") if answer is not None else "unknown"

    try:
        level = asker.ask("topology", "nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
        return GpuPair(
            a,
            b,
            read=status(READ),
            write=status(WRITE),
            nvlink=status(NVLINK),
            ancestor=ANCESTORS.get(level) if level is not None else None,
        )
    except GpuLost:
        return GpuPair(a, b)
