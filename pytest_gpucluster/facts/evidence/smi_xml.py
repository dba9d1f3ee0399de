"""``nvidia-smi -q -x``, schemas v10 to v13."""

from __future__ import annotations

from pytest_gpucluster.facts.evidence import smi_record, xml_tree
from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.smi_record import Cell, SmiRecord

KIND = "smi_xml"
TITLE = "nvidia-smi -q -x"
_ROOT = "nvidia_smi_log"


def recognises(document: Document) -> bool:
    """Whether the root element of such a record opens somewhere."""
    return any(f"<{_ROOT}" in line[:4096] for line in document.lines)


def read(document: Document) -> SmiRecord:
    """All GPUs; never raises, linear in the text."""
    root, cut = xml_tree.parse(document, _ROOT)
    if root is None:
        return SmiRecord(cut=cut)
    unread: list[Unread] = []
    heading = {child.tag: (child.text, child.line) for child in root.children}
    listed = root.all("gpu")
    gpus = []
    for place, element in enumerate(listed):
        cells: dict[str, Cell] = {}
        _flatten(element, cells)
        printed = element.attributes.get("id") or cells.get("pci/pci_bus_id", ("", 0))[0]
        if not printed:
            unread.append(Unread(element.line, "a GPU without PCI address"))
        whole = cut is None or place < len(listed) - 1
        gpus.append(smi_record.gpu_of(element.line, printed, cells, unread, whole=whole))
    return smi_record.record_of(gpus, heading, unread, cut, full=True)


def _flatten(element: xml_tree.Element, cells: dict[str, Cell]) -> None:
    waiting = [("", element)]
    while waiting:
        path, parent = waiting.pop()
        for child in parent.children:
            name = f"{path}/{child.tag}" if path else child.tag
            if child.children:
                waiting.append((name, child))
            elif name not in cells:
                cells[name] = (child.text, child.line)


def summary(record: SmiRecord) -> dict[str, object]:
    """Values by the names of their XML elements."""
    return smi_record.summarise(record)
