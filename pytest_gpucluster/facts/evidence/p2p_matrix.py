"""``nvidia-smi topo -p2p``: whether a GPU may reach another one's memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucluster.facts.evidence.document import Document, Unread

KIND = "p2p_matrix"
TITLE = "nvidia-smi topo -p2p"

_MAX_LINE = 8192
_ROW = re.compile(r"\s*(GPU[0-9]{1,3})((?:\s+(?:X|OK|NS|CNS|GNS|TNS|DR|U))+)\s*", re.ASCII)
_HEADER = re.compile(r"\s*((?:GPU[0-9]{1,3}\s*)+)", re.ASCII)
_MEANING = {
    "NS": "not supported",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by a registry key",
    "U": "unknown",
}


@dataclass(frozen=True)
class P2pRow:
    """``cells`` by the other GPU's name: ``"OK"``, ``"CNS"``, ..., ``"X"`` for itself."""

    line: int
    gpu: str
    cells: dict[str, str]


@dataclass(frozen=True)
class P2pRecord:
    """Rows of all matrices (read, write, atomics) in order; ``gpus`` of the first header."""

    gpus: tuple[str, ...] = ()
    rows: tuple[P2pRow, ...] = ()
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def recognises(document: Document) -> bool:
    """Whether a GPU's row holds a peer status."""
    return any(
        "GPU" in line and (row := _ROW.fullmatch(line[:_MAX_LINE])) and row[2].split() != ["X"]
        for line in document.lines
    )


def read(document: Document) -> P2pRecord:
    """All rows; never raises, linear in the text."""
    columns: list[str] = []
    gpus: tuple[str, ...] = ()
    rows: list[P2pRow] = []
    unread: list[Unread] = []
    cut = None
    seen: set[str] = set()
    for number, raw in enumerate(document.lines, 1):
        line = raw[:_MAX_LINE]
        if "GPU" not in line:
            continue
        if header := _HEADER.fullmatch(line):
            cut = cut or _missing(columns, seen)
            columns, seen = header[1].split(), set()
        elif row := _ROW.fullmatch(line):
            cells = row[2].split()
            names = columns or [f"GPU{n}" for n in range(len(cells))]
            gpus = gpus or tuple(names)
            seen.add(row[1])
            if len(cells) != len(names):
                unread.append(Unread(number, f"{row[1]}: {len(cells)} cells, not {len(names)}"))
                cut = cut or f"the row of {row[1]} is incomplete"
            rows.append(P2pRow(number, row[1], dict(zip(names, cells, strict=False))))
    cut = cut or _missing(columns, seen) or (None if columns else "the header is missing")
    return P2pRecord(gpus, tuple(rows), tuple(unread), cut)


def _missing(columns: list[str], seen: set[str]) -> str | None:
    if not seen:  # the header of another matrix
        return None
    missing = [name for name in columns if name not in seen]
    return f"no row for {', '.join(missing)}" if missing else None


def meaning(cell: str) -> str:
    """A status in words."""
    return _MEANING.get(cell, cell)


def summary(record: P2pRecord) -> dict[str, object]:
    """``p2p``: status by pair, both ways."""
    return {
        "gpus": len(record.gpus),
        "p2p": {
            f"{row.gpu}-{other}": cell
            for row in record.rows
            for other, cell in row.cells.items()
            if other != row.gpu
        },
    }
