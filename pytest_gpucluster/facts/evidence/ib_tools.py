"""RDMA adapters as ibstat, ibstatus, ibv_devinfo, ibdev2netdev, ``rdma link``, sysfs show them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.ib_blocks import ANCHOR, read_blocks
from pytest_gpucluster.facts.evidence.ib_ports import IbDevice, IbMissing, IbPort, Ports
from pytest_gpucluster.facts.evidence.ib_rows import (
    FAILED,
    RDMA_LINK,
    ROW,
    read_failures,
    read_rows,
)
from pytest_gpucluster.facts.evidence.ib_sysfs import PATH, read_sysfs

KIND = "ib"
TITLE = "ibstat, ibstatus, ibv_devinfo, ibdev2netdev, rdma link or /sys/class/infiniband"

_MAX_LINE = 1024


@dataclass(frozen=True)
class IbRecord:
    """Ports, adapters, and adapters that a tool knew of and could not open."""

    ports: tuple[IbPort, ...] = ()
    devices: tuple[IbDevice, ...] = ()
    missing: tuple[IbMissing, ...] = ()
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def recognises(document: Document) -> bool:
    """Whether a line belongs to one of the tools."""
    return any(_is_ours(line[:_MAX_LINE]) for line in document.lines)


def read(document: Document) -> IbRecord:
    """All ports of the text; never raises, linear in the text."""
    lines = document.lines
    ports = Ports()
    ports.last_line = next((n for n in range(len(lines), 0, -1) if lines[n - 1].strip()), 0)
    read_blocks(lines, ports)
    read_rows(lines, ports)
    read_sysfs(lines, ports)
    missing = read_failures(lines, ports)
    return IbRecord(
        ports=tuple(ports.ports.values()),
        devices=tuple(ports.devices.values()),
        missing=tuple(missing),
        unread=tuple(sorted(ports.unread, key=lambda unread: unread.line)),
        cut=ports.cut,
    )


def summary(record: IbRecord) -> dict[str, object]:
    """Values by device, by "device port n" where it has several ports."""
    several = Counter((port.host, port.device) for port in record.ports)
    hosts = {port.host for port in record.ports} | {device.host for device in record.devices}

    def named(host: str | None, device: str, port: int | None = None) -> str:
        name = f"{device} port {port}" if port and several[host, device] > 1 else device
        return f"{host} {name}" if host and len(hosts) > 1 else name

    facts: dict[str, object] = {"ports": len(record.ports)}
    columns: dict[str, dict[str, object]] = {}
    for port in record.ports:
        name = named(port.host, port.device, port.port)
        values = {
            "state": port.state_text,
            "phys_state": port.physical_text,
            "rate_Gbps": port.rate_gbps,
            "link_layer": port.link_layer,
            "netdev": port.netdev,
            "netdev_state": port.netdev_state,
            **port.counters,
        }
        for key, value in values.items():
            if value is not None:
                columns.setdefault(key, {})[name] = value
    for device in record.devices:
        for key, value in (
            ("firmware", device.firmware),
            ("ca_type", device.ca_type),
            ("pci", device.bus_id),
        ):
            if value is not None:
                columns.setdefault(key, {})[named(device.host, device.device)] = value
    if record.missing:
        facts["missing"] = [named(gone.host, gone.device) for gone in record.missing]
    return facts | columns


def _is_ours(line: str) -> bool:
    if "/ports/" in line or "infiniband/" in line:
        return PATH.search(line) is not None
    if "==>" in line:
        return ROW.search(line) is not None
    if "'" in line or "hca_id" in line:
        return ANCHOR.search(line) is not None or (
            "ibpanic" in line and FAILED.search(line) is not None
        )
    if "IB devices" in line or "ibpanic" in line:
        return FAILED.search(line) is not None
    return "physical_state " in line and RDMA_LINK.search(line) is not None
