"""``nvidia-smi -q`` as text, whole or one section of it (``-d``)."""

from __future__ import annotations

import re

from pytest_gpucluster.facts.evidence import smi_record
from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.smi_record import Cell, SmiGpu, SmiRecord

KIND = "smi_text"
TITLE = "nvidia-smi -q"

_MAX_LINE = 4096
_GPU = re.compile(r"GPU ([0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s*")
_PAIR = re.compile(r"( *)(\S.{0,80}?) +: ?(.*)")
_SECTION = re.compile(r"( *)(\S[^:]{0,80})")
_HEADING = frozenset({"driver_version", "cuda_version", "attached_gpus", "timestamp"})
# Sections that only a whole record has all of.
_FULL = ("product_name", "pci/bus_id", "performance_state")


def recognises(document: Document) -> bool:
    """Whether a GPU's heading or that of the whole log stands there."""
    return any(
        ("NVSMI LOG" in line or line.startswith("GPU ")) and _opens(line[:_MAX_LINE])
        for line in document.lines
    )


def _opens(line: str) -> bool:
    return "==NVSMI LOG==" in line or _GPU.fullmatch(line) is not None


def read(document: Document) -> SmiRecord:
    """All GPUs; never raises, linear in the text."""
    heading: dict[str, Cell] = {}
    unread: list[Unread] = []
    gpus: list[SmiGpu] = []
    all_cells: list[dict[str, Cell]] = []
    cells: dict[str, Cell] = heading
    current: tuple[int, str] | None = None
    path: list[tuple[int, str]] = []  # indentation and name of the open sections
    full = False
    last_pair = last_text = 0

    def close(*, whole: bool) -> None:
        if current is not None:
            all_cells.append(cells)
            gpus.append(smi_record.gpu_of(*current, cells, unread, whole=whole))

    for number, raw in enumerate(document.lines, 1):
        line = raw[:_MAX_LINE].replace("\t", "    ").rstrip()
        if not line or "NVSMI LOG" in line:
            continue
        last_text = number
        if opening := _GPU.fullmatch(line):
            full = full or all(name in cells for name in _FULL)
            close(whole=True)
            current, cells, path = (number, opening[1]), {}, []
        elif pair := _PAIR.fullmatch(line):
            last_pair = number
            indent, name = len(pair[1]), _normal(pair[2])
            while path and path[-1][0] >= indent:
                path.pop()
            full_name = "/".join([*(section for _, section in path), name])
            target = heading if current is None or (not indent and name in _HEADING) else cells
            if full_name not in target:
                target[full_name] = (pair[3].strip(), number)
            path.append((indent, name))  # "HW Slowdown : ..." has parts of its own
        elif section := _SECTION.fullmatch(line):
            indent = len(section[1])
            while path and path[-1][0] >= indent:
                path.pop()
            if indent:
                path.append((indent, _normal(section[2])))
    full = full or all(name in cells for name in _FULL)
    stops = last_text != last_pair and current is not None
    close(whole=not stops)
    cut = "the last line stops inside a value" if stops and full else None
    ends = [list(cells)[-1:] for cells in all_cells]
    if cut is None and len(ends) > 1 and all(end == ends[0] for end in ends[:-1]):
        cut = f"{gpus[-1].id} ends early" if ends[-1] != ends[0] else None
    return smi_record.record_of(gpus, heading, unread, cut, full=full)


def _normal(name: str) -> str:
    return re.sub(r"\W+", "_", name.strip().lower()).strip("_")


def summary(record: SmiRecord) -> dict[str, object]:
    """Values by the names that the XML has for them."""
    return smi_record.summarise(record)
