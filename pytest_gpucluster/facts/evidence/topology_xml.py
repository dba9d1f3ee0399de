"""NCCL topology XML: a hint file handed to NCCL, or a dump (``NCCL_TOPO_DUMP_FILE``)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucluster.facts.evidence import xml_tree
from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.sysfs import bus_id

KIND = "topology_xml"
TITLE = "NCCL topology XML"

# PCI base and sub class, https://pcisig.com (PCI Code and ID Assignment).
_GPU_CLASSES = ("0x0302", "0x0300")
_INFINIBAND = "0x0207"
_ETHERNET = "0x0200"
_BRIDGE = "0x0604"
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{1,8}){0,127}")


@dataclass(frozen=True)
class PciNode:
    """One PCI device. ``switch``: address of the bridge it hangs on, if any."""

    line: int
    bus_id: str
    numa: int | None
    switch: str | None
    link_width: int | None = None
    link_speed: str | None = None
    nvlinks: int | None = None  # in a dump: links of a GPU, ``None`` if it lists none


@dataclass(frozen=True)
class NumaNode:
    """One ``<cpu>``: ``mask`` as printed, ``cpus`` its bits."""

    line: int
    numa: int | None
    mask: str | None
    cpus: frozenset[int]


@dataclass(frozen=True)
class TopologyXml:
    """The devices of one node. ``nics``: InfiniBand-class devices and, in a dump, whatever
    holds a ``<net>``."""

    numa_nodes: tuple[NumaNode, ...] = ()
    gpus: tuple[PciNode, ...] = ()
    nics: tuple[PciNode, ...] = ()
    ethernet: tuple[PciNode, ...] = ()
    switches: tuple[PciNode, ...] = ()
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def recognises(document: Document) -> bool:
    """Whether ``<system`` opens and CPUs or PCI devices stand in it."""
    head = "\n".join(document.lines[:200])
    return "<system" in head and ("<cpu " in head or "<pci " in head)


def read(document: Document) -> TopologyXml:
    """All devices; never raises, linear in the text."""
    root, cut = xml_tree.parse(document, "system")
    if root is None:
        return TopologyXml(cut=cut)
    unread: list[Unread] = []
    found: dict[str, list[PciNode]] = {"gpu": [], "nic": [], "ethernet": [], "switch": []}
    numa_nodes = []
    for cpu in root.all("cpu"):
        numa = _number(cpu.attributes.get("numaid"))
        mask = cpu.attributes.get("affinity")
        if mask is not None and not _MASK.fullmatch(mask):
            unread.append(Unread(cpu.line, f"affinity {mask[:40]!r} is no CPU mask"))
            mask = None
        numa_nodes.append(NumaNode(cpu.line, numa, mask, _bits(mask)))
        waiting: list[tuple[str | None, xml_tree.Element]] = []
        waiting += [(None, child) for child in reversed(cpu.children)]
        _walk(waiting, numa, found, unread)
    return TopologyXml(
        tuple(numa_nodes),
        tuple(found["gpu"]),
        tuple(found["nic"]),
        tuple(found["ethernet"]),
        tuple(found["switch"]),
        tuple(unread[:100]),
        cut if cut else (None if numa_nodes else "no <cpu> element"),
    )


def _walk(
    waiting: list[tuple[str | None, xml_tree.Element]],
    numa: int | None,
    found: dict[str, list[PciNode]],
    unread: list[Unread],
) -> None:
    while waiting:
        switch, element = waiting.pop()
        if element.tag != "pci":
            continue
        address = bus_id(element.attributes.get("busid", ""))
        if address is None:
            unread.append(Unread(element.line, "a PCI device without address"))
            continue
        kind = _kind(element)
        node = PciNode(
            element.line,
            address,
            numa,
            switch,
            _number(element.attributes.get("link_width")),
            element.attributes.get("link_speed"),
            _nvlinks(element),
        )
        if kind is not None:
            found[kind].append(node)
        below = address if kind == "switch" else switch
        waiting += [(below, child) for child in reversed(element.children)]


def _kind(element: xml_tree.Element) -> str | None:
    inside = {child.tag for child in element.children}
    klass = element.attributes.get("class", "")[:6].lower()
    if "gpu" in inside or klass in _GPU_CLASSES:
        return "gpu"
    if "nic" in inside or klass == _INFINIBAND:
        return "nic"
    if klass == _ETHERNET:
        return "ethernet"
    return "switch" if klass == _BRIDGE else None


def _nvlinks(element: xml_tree.Element) -> int | None:
    counts = [
        _number(link.attributes.get("count")) or 0
        for gpu in element.all("gpu")
        for link in gpu.all("nvlink")
    ]
    return sum(counts) if counts else None


def _bits(mask: str | None) -> frozenset[int]:
    """CPUs of a mask of 32-bit words, the lowest last."""
    if mask is None:
        return frozenset()
    cpus = []
    for place, word in enumerate(reversed(mask.split(","))):
        value = int(word, 16)
        cpus += [32 * place + bit for bit in range(32) if value >> bit & 1]
    return frozenset(cpus)


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else None


def pairs(record: TopologyXml) -> dict[str, str]:
    """GPU -> the adapter that hangs on the same bridge, where there is exactly one of each, or
    as many adapters as GPUs (then in order)."""
    paired: dict[str, str] = {}
    for switch in dict.fromkeys(gpu.switch for gpu in record.gpus if gpu.switch):
        gpus = [gpu.bus_id for gpu in record.gpus if gpu.switch == switch]
        nics = [nic.bus_id for nic in record.nics if nic.switch == switch]
        if len(gpus) == len(nics):
            paired |= dict(zip(gpus, nics, strict=True))
    return paired


def summary(record: TopologyXml) -> dict[str, object]:
    """``affinity`` by NUMA node, ``numa`` by address, ``gpu_nic`` by GPU."""
    sizes = {len(node.cpus) for node in record.numa_nodes if node.mask}
    devices = [*record.gpus, *record.nics, *record.ethernet]
    facts: dict[str, object] = {
        "gpus": len(record.gpus),
        "nics": len(record.nics),
        "switches": len(record.switches),
        "numa_nodes": len(record.numa_nodes),
        "affinity": {str(node.numa): node.mask for node in record.numa_nodes if node.mask},
        "gpu_nic": pairs(record),
        "numa": {device.bus_id: device.numa for device in devices},
    }
    if len(sizes) == 1:
        facts["cpus_per_numa_node"] = sizes.pop()
    return facts
