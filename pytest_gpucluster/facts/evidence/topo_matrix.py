"""``nvidia-smi topo -m``: how each GPU reaches each other GPU and each adapter."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.evidence.topo_places import Place, places

KIND = "topo"
TITLE = "nvidia-smi topo -m"

_MAX_LINE = 8192
_MAX_MATRICES = 1000
_CELL = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|INT|C2C|NV[0-9]{1,3}")
_LABEL = re.compile(r"GPU[0-9]{1,3}|[A-Za-z][A-Za-z0-9_.-]{1,31}")
_PEER_STATUS = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"})  # topo -p2p
_TRAILING = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_GLUED = re.compile("|".join(_TRAILING))
_NAMES = re.compile(r"\s*(NIC[0-9]{1,3}): +(\S{1,64})\s*")


@dataclass(frozen=True)
class Row:
    """One row: ``cells`` by column name, in the order of the columns. ``whole``: as many cells
    as columns, and nothing behind them that could not be understood."""

    line: int
    label: str
    cells: dict[str, str]
    place: Place
    whole: bool = True


@dataclass(frozen=True)
class Matrix:
    """One matrix. ``columns`` are GPUs and adapters; without a header they are worked out."""

    line: int
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    rows: tuple[Row, ...]
    header: bool
    nic_names: dict[str, str] = field(default_factory=dict)  # "NIC0": "mlx5_0"

    @property
    def gpu_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.label in self.gpus)

    @property
    def cut(self) -> str | None:
        """What of the GPU rows is missing, or ``None``."""
        missing = [gpu for gpu in self.gpus if gpu not in {row.label for row in self.rows}]
        if missing:
            return f"no row for {', '.join(missing)}"
        if not self.header:
            return "the header is missing"
        short = next((row.label for row in self.gpu_rows if not row.whole), None)
        return f"the row of {short} is incomplete" if short else None


@dataclass(frozen=True)
class TopoRecord:
    """The matrices of a text, in order."""

    matrices: tuple[Matrix, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def cut(self) -> str | None:
        return next((matrix.cut for matrix in self.matrices if matrix.cut), None)


@dataclass
class _Building:
    line: int
    header: list[str] | None = None
    trailing: list[str] = field(default_factory=list)
    rows: list[tuple[int, str, list[str], str]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


def recognises(document: Document) -> bool:
    """Whether a line is the row of a GPU in such a matrix."""
    return any("GPU" in line and _gpu_row(line[:_MAX_LINE]) for line in document.lines)


def _gpu_row(line: str) -> bool:
    row = _row(line)
    return row is not None and row[0].startswith("GPU") and "X" in row[1] and len(row[1]) > 1


def read(document: Document) -> TopoRecord:
    """All matrices; never raises, linear in the text."""
    unread: list[Unread] = []
    built: list[_Building] = []
    current: _Building | None = None
    for number, raw in enumerate(document.lines, 1):
        if not raw.strip() or len(built) >= _MAX_MATRICES:
            continue
        line = raw[:_MAX_LINE]
        if (header := _header(line)) is not None:
            current = _Building(number, *header)
            built.append(current)
        elif (row := _row(line)) is not None and not _is_legend(line):
            if current is None or any(label == row[0] for _, label, _, _ in current.rows):
                current = _Building(number)
                built.append(current)
            current.rows.append((number, *row))
        elif current is not None and (named := _NAMES.fullmatch(line)):
            current.names[named[1]] = named[2]
    matrices = [_matrix(building, unread) for building in built if _has_topology(building)]
    return TopoRecord(tuple(matrices), tuple(unread))


def _has_topology(building: _Building) -> bool:
    return bool(building.trailing) or any(
        len(cells) > 1 or label.startswith("GPU") for _, label, cells, _ in building.rows
    )


def _header(line: str) -> tuple[list[str], list[str]] | None:
    """The columns of a header, and its trailing ones; their names may be glued to a column's."""
    trailing = _GLUED.findall(line)
    columns = _GLUED.sub(" ", line).split()
    if not columns or not columns[0].startswith("GPU"):
        return None
    if any(_CELL.fullmatch(c) or not _LABEL.fullmatch(c) for c in columns):
        return None
    if len(columns) == 1 and not trailing:
        return None
    return columns, trailing


def _row(line: str) -> tuple[str, list[str], str] | None:
    """Label, cells, and the text behind them."""
    words = line.split()
    if len(words) < 2 or not _LABEL.fullmatch(words[0]) or not _CELL.fullmatch(words[1]):
        return None
    cells = []
    for word in words[1:]:
        if not _CELL.fullmatch(word):
            break
        cells.append(word)
    tail = words[1 + len(cells) :]
    return None if tail and tail[0] in _PEER_STATUS else (words[0], cells, " ".join(tail))


def _is_legend(line: str) -> bool:
    return "=" in line


def _matrix(building: _Building, unread: list[Unread]) -> Matrix:
    gpus, nics = _columns(building)
    columns = [*gpus, *nics]
    gpu_rows = [row for row in building.rows if row[1] in gpus]
    found = places([tail for _, _, _, tail in gpu_rows], building.trailing)
    by_label = dict(zip([label for _, label, _, _ in gpu_rows], found, strict=True))
    rows = []
    for line, label, cells, tail in building.rows:
        place = by_label.get(label, Place())
        whole = len(cells) == len(columns) and place.problem is None
        if len(cells) > len(columns):
            unread.append(Unread(line, f"{label} has {len(cells)} cells, not {len(columns)}"))
        if label in columns and cells[: len(columns)].count("X") == 1:
            own = columns.index(label)
            if own < len(cells) and cells[own] != "X":
                unread.append(Unread(line, f"the cells of {label} are shifted"))
                whole = False
        if place.problem:
            unread.append(Unread(line, f"{label}: {place.problem}"))
        elif label in by_label and not tail and building.trailing[:1]:
            whole = False  # the line ends before its affinity
        rows.append(Row(line, label, dict(zip(columns, cells, strict=False)), place, whole))
    return Matrix(
        building.line, tuple(gpus), tuple(nics), tuple(rows), bool(building.header), building.names
    )


def _columns(building: _Building) -> tuple[list[str], list[str]]:
    """GPU columns and adapter columns; without a header, a column with X or NV# of a GPU row is
    a GPU's."""
    if building.header is not None:
        gpus = [c for c in building.header if c.startswith("GPU")]
        return gpus, [c for c in building.header if not c.startswith("GPU")]
    gpu_rows = [(label, cells) for _, label, cells, _ in building.rows if label.startswith("GPU")]
    last = max(
        (
            place
            for _, cells in gpu_rows
            for place, cell in enumerate(cells)
            if cell == "X" or cell.startswith("NV")
        ),
        default=-1,
    )
    names = {cells.index("X"): label for label, cells in gpu_rows if "X" in cells}
    offset = next((int(label[3:]) - place for place, label in names.items()), 0)
    gpus = [names.get(place, f"GPU{place + offset}") for place in range(last + 1)]
    width = max((len(cells) for _, cells in gpu_rows), default=0)
    labels = [label for _, label, _, _ in building.rows if not label.startswith("GPU")]
    nics = [labels[n] if n < len(labels) else f"NIC{n}" for n in range(max(width - len(gpus), 0))]
    return gpus, nics


def summary(record: TopoRecord) -> dict[str, object]:
    """The first matrix: links both ways, NUMA and affinity by GPU, ``"unknown"`` for blanks."""
    if not record.matrices:
        return {}
    matrix = record.matrices[0]
    links = {
        f"{row.label}-{column}": cell
        for row in matrix.gpu_rows
        for column, cell in row.cells.items()
        if column != row.label
    }
    return {
        "gpus": len(matrix.gpus),
        "gpu_rows": len(matrix.gpu_rows),
        "nics": len(matrix.nics),
        "links": links,
        "numa": {row.label: _or_unknown(row.place.numa) for row in matrix.gpu_rows},
        "cpu_affinity": {row.label: _or_unknown(row.place.cpus) for row in matrix.gpu_rows},
    }


def _or_unknown(text: str | None) -> object:
    if text is None:
        return "unknown"
    return int(text) if text.isdecimal() else text
