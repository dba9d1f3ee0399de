"""What connects each pair of GPUs, as ``nvidia-smi topo -m`` would say it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpucluster.facts.model import Gpu, NodeFacts

# nvidia-smi's words for the nearest common ancestor on PCIe.
ANCESTORS = {
    "internal": "PIX",
    "single": "PIX",
    "multiple": "PXB",
    "host_bridge": "PHB",
    "node": "NODE",
    "system": "SYS",
}


@dataclass(frozen=True)
class Cell:
    """``text`` such as NV18 or SYS; ``heat`` from 0 (no NVLink) to 4 (as many as any pair)."""

    text: str
    heat: int
    title: str


def link_matrix(facts: NodeFacts) -> list[tuple[str, list[Cell | None]]]:
    """One row per GPU: its label and a cell per GPU, ``None`` on the diagonal."""
    gpus = facts.gpus or ()
    counts = {(a.index, b.index): links_between(a, b) for a in gpus for b in gpus if a is not b}
    most = max(filter(None, counts.values()), default=0)
    pairs = {(pair.a, pair.b): pair for pair in facts.pairs or ()}
    rows: list[tuple[str, list[Cell | None]]] = []
    for a in gpus:
        cells: list[Cell | None] = []
        for b in gpus:
            if a is b:
                cells.append(None)
                continue
            count = counts[a.index, b.index]
            pair = pairs.get((min(a.index, b.index), max(a.index, b.index)))
            path = ANCESTORS.get(pair.ancestor or "", "–") if pair else "–"
            text = f"NV{count}" if count else path
            heat = max(1, round(4 * count / most)) if count and most else 0
            title = (
                f"{a.label} to {b.label}: {f'{count} NVLinks, ' if count else ''}PCIe path {path}"
            )
            if pair:
                title += f", peer access {pair.read.replace('_', ' ')}"
            cells.append(Cell(text, heat, title))
        rows.append((a.label, cells))
    return rows


def links_between(a: Gpu, b: Gpu) -> int | None:
    """Active NVLinks from ``a`` that lead to ``b``, directly or through switches."""
    if a.nvlinks is None or b.nvlinks is None:
        return None
    up = [link for link in a.nvlinks if link.active]
    direct = sum(1 for link in up if link.remote_bus_id and link.remote_bus_id == b.bus_id)
    if direct:
        return direct
    return min(_to_switches(a), _to_switches(b))


def _to_switches(gpu: Gpu) -> int:
    return sum(1 for link in gpu.nvlinks or () if link.active and link.remote_type == "switch")
