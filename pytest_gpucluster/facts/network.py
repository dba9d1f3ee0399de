"""InfiniBand, RoCE, EFA and Ethernet ports, from sysfs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_gpucluster.facts.model import NetworkPort, Pcie, Unreadable
from pytest_gpucluster.facts.pcie import driver_name, read_device
from pytest_gpucluster.facts.sysfs import (
    is_virtual,
    names_in,
    pci_ancestor,
    printable,
    read_int,
    read_line,
)

# Linux: Documentation/ABI/stable/sysfs-class-infiniband (counters, hw_counters of mlx5).
_RDMA_COUNTERS = {
    "counters": (
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "port_rcv_errors",
        "port_rcv_remote_physical_errors",
        "port_rcv_switch_relay_errors",
        "port_rcv_constraint_errors",
        "port_xmit_constraint_errors",
        "port_xmit_discards",
        "port_xmit_wait",
        "local_link_integrity_errors",
        "excessive_buffer_overrun_errors",
        "VL15_dropped",
    ),
    "hw_counters": (
        "out_of_sequence",
        "out_of_buffer",
        "packet_seq_err",
        "local_ack_timeout_err",
        "implied_nak_seq_err",
        "rnr_nak_retry_err",
        "roce_adp_retrans",
        "roce_slow_restart",
        "rx_icrc_encapsulated",
        "np_cnp_sent",
        "rp_cnp_handled",
        "req_cqe_error",
        "resp_cqe_error",
        "rx_drops",
        "retrans_pkts",
    ),
}
_ETHERNET_COUNTERS = ("rx_errors", "tx_errors", "rx_crc_errors", "rx_dropped", "tx_dropped")
_LINK_LAYERS: dict[str, Literal["infiniband", "roce", "efa"]] = {
    "InfiniBand": "infiniband",
    "Ethernet": "roce",
}
_ARPHRD_INFINIBAND = 32  # Linux: include/uapi/linux/if_arp.h
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", re.ASCII)
_ENUM = re.compile(r"[0-9]+: *(\S.*)", re.ASCII)  # "4: ACTIVE"


@dataclass(frozen=True)
class NetworkFacts:
    """Ports of all adapters; ``None`` where sysfs shows no network class at all."""

    ports: tuple[NetworkPort, ...] | None = None
    unreadable: tuple[Unreadable, ...] = ()


def read_network(root: Path = Path("/")) -> NetworkFacts:
    """RDMA ports first, then network devices; IPoIB devices count with their RDMA port.

    A device that is listed but cannot be looked into is an `Unreadable` of its own name.
    """
    rdma_names = names_in(root / "sys/class/infiniband")
    net_names = names_in(root / "sys/class/net")
    if rdma_names is None and net_names is None:
        reason = (
            "neither /sys/class/infiniband nor /sys/class/net can be listed, so no adapter is "
            "known. Mount sysfs into the container, or run on the node itself."
        )
        return NetworkFacts(unreadable=(Unreadable("network", reason),))
    found: list[NetworkPort | Unreadable] = []
    for name in rdma_names or ():
        found.extend(_rdma_device(name, root))
    for name in net_names or ():
        port = _net_device(name, root)
        if port is not None:
            found.append(port)
    return NetworkFacts(
        ports=tuple(item for item in found if isinstance(item, NetworkPort)),
        unreadable=tuple(item for item in found if isinstance(item, Unreadable)),
    )


def _rdma_device(name: str, root: Path) -> Iterable[NetworkPort | Unreadable]:
    path = root / "sys/class/infiniband" / name
    device = printable(name)
    numbers = [text for text in names_in(path / "ports") or () if re.fullmatch("[0-9]{1,4}", text)]
    if not numbers:
        yield Unreadable(
            device,
            f"/sys/class/infiniband lists {device}, but it has no readable port. It vanished or "
            "its driver failed: look for its PCI address and mlx5 errors in the kernel log.",
        )
    for number in numbers:
        yield _rdma_port(path, device, int(number), root)


def _rdma_port(path: Path, device: str, number: int, root: Path) -> NetworkPort | Unreadable:
    port = path / "ports" / str(number)
    layer = read_line(port / "link_layer")
    driver = driver_name(path / "device")
    kind = "efa" if driver == "efa" else _LINK_LAYERS.get(layer or "")
    state = _enum_name(port / "state")
    if kind is None or state is None:
        missing = "state cannot be read" if kind else f"link layer is {layer or 'not readable'}"
        return Unreadable(
            f"{device} port {number}",
            f"its {missing} in /sys/class/infiniband, so the port counts as absent. Look for "
            "errors of its driver in the kernel log.",
        )
    address = pci_ancestor(path)
    pci = read_device(address, root) if address else None
    counters = {
        counter: value
        for folder, names in _RDMA_COUNTERS.items()
        for counter in names
        if (value := _count(port / folder / counter)) is not None
    }
    return NetworkPort(
        device=device,
        port=number,
        kind=kind,
        state=state,
        physical_state=_enum_name(port / "phys_state"),
        rate_gbps=_rate(port / "rate"),
        netdev=_netdev(path, port, number),
        firmware=read_line(path / "fw_ver"),
        pcie=pci.pcie if pci else Pcie(),
        bus_id=address,
        counters=counters | (pci.aer if pci else {}),
        virtual=is_virtual(path),
    )


def _netdev(path: Path, port: Path, number: int) -> str | None:
    # Empty slots of the GID table answer EINVAL; the first used one names the device.
    for index in names_in(port / "gid_attrs/ndevs") or ():
        name = read_line(port / "gid_attrs/ndevs" / index)
        if name:
            return name
    # IPoIB has no entry there; dev_port counts from 0.
    names = names_in(path / "device/net") or []
    for name in names:
        if read_int(path / "device/net" / name / "dev_port") == number - 1:
            return printable(name)
    return None


def _net_device(name: str, root: Path) -> NetworkPort | None:
    path = root / "sys/class/net" / name
    if not path.is_dir() or read_int(path / "type") == _ARPHRD_INFINIBAND:
        return None  # bonding_masters is a file
    address = pci_ancestor(path)
    pci = read_device(address, root) if address else None
    state = read_line(path / "operstate")
    speed = read_int(path / "speed")  # Mbit/s; -1 or EINVAL where there is no link
    counters = {
        counter: value
        for counter in _ETHERNET_COUNTERS
        if (value := _count(path / "statistics" / counter)) is not None
    }
    return NetworkPort(
        device=printable(name),
        kind="ethernet",
        state=state.upper() if state and state != "unknown" else None,
        rate_gbps=speed / 1000 if speed and 0 < speed < 2**31 else None,
        netdev=printable(name),
        pcie=pci.pcie if pci else Pcie(),
        bus_id=address,
        counters=counters | (pci.aer if pci else {}),
        virtual=is_virtual(path),
    )


def _enum_name(path: Path) -> str | None:
    match = _ENUM.fullmatch(read_line(path) or "")
    return match[1] if match else None


def _rate(path: Path) -> float | None:
    match = _RATE.match(read_line(path) or "")
    rate = float(match[1]) if match else 0.0
    return rate or None


def _count(path: Path) -> int | None:
    value = read_int(path)
    return value if value is not None and 0 <= value < 2**64 else None
