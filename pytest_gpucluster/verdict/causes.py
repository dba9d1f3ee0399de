"""One root cause, one finding: what follows from a fault is listed under it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from pytest_gpucluster.verdict.findings import Finding

# Root → codes that follow from it on the same part, or on a pair the part belongs to.
OF_THE_SAME_PART: dict[str, tuple[str, ...]] = {
    "gpu.off_bus": ("*",),
    "memory.row_remap_failed": (
        "memory.ecc_uncorrectable",
        "memory.row_remap_pending",
        "gpu.recovery_needed",
    ),
    "memory.ecc_uncorrectable": ("memory.row_remap_pending", "gpu.recovery_needed"),
    "memory.row_remap_pending": ("gpu.recovery_needed",),
    "nvlink.links_down": ("nvlink.*", "p2p.*", "fabric.*"),
    "nvlink.links_missing": ("nvlink.*", "p2p.*", "fabric.*"),
    "fabric.not_ready": ("p2p.*", "fabric.*"),
    "fabric.insufficient_resources": ("p2p.*", "fabric.unhealthy"),
}
# What may explain what: the earlier the later, never the other way round.
DEPTH = ("fabric.manager", *OF_THE_SAME_PART)
LINKS = ("nvlink.links_down", "nvlink.links_missing")
FABRIC = ("fabric.not_ready", "fabric.insufficient_resources")
SLOW = ("collective.bandwidth_low", "collective.bandwidth_marginal")
SLOWS_COLLECTIVES = (
    *LINKS, "gpu.off_bus", "fabric.not_ready", "fabric.unhealthy", "pcie.downgraded",
    "clocks.thermal", "clocks.power_brake", "power.limit_low", "gpu.busy",
)  # fmt: skip
# Root → codes that follow from it anywhere on the node.
ON_THE_NODE: dict[str, tuple[str, ...]] = {
    "fabric.manager": FABRIC,
    **dict.fromkeys(SLOWS_COLLECTIVES, SLOW),
}
MANY = 3  # the same fault on so many GPUs is one finding that names them all
GPU = re.compile(r"GPU\d+")
ORDER = {"fail": 0, "warn": 1}


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Findings without those that follow from others, worst first.

    A finding that follows is named in ``consequences`` of its root. A root never swallows
    something worse than itself. Equal findings count once.
    """
    entries = _unique(findings)
    wide = _fabric_wide(entries)
    roots = [_root_of(finding, entries, wide) for finding in entries]
    absorbed: dict[int, list[str]] = {}
    for index, finding in enumerate(entries):
        root = _last_root(index, roots)
        if root != index:
            absorbed.setdefault(root, []).append(f"{finding.code} {finding.component}")
    kept = [
        replace(entry, consequences=(*entry.consequences, *absorbed.get(index, ())))
        for index, entry in enumerate(entries)
        if roots[index] is None
    ]
    return sorted(_same_on_many(kept), key=lambda finding: ORDER[finding.severity])


def _unique(findings: Iterable[Finding]) -> list[Finding]:
    """Of equal findings the first, or the first that fails."""
    worst_first = sorted(enumerate(findings), key=lambda entry: ORDER[entry[1].severity])
    unique: dict[tuple[str, ...], tuple[int, Finding]] = {}
    for position, finding in worst_first:
        key = (finding.node, finding.code, finding.component, finding.message)
        unique.setdefault(key, (position, finding))
    return [finding for _, finding in sorted(unique.values(), key=lambda entry: entry[0])]


def _root_of(finding: Finding, entries: Sequence[Finding], wide: frozenset[str]) -> int | None:
    """The place of the finding that explains this one: the worst, then the most basic."""
    explaining = [
        (ORDER[root.severity], _depth(root, wide), place)
        for place, root in enumerate(entries)
        if _follows(finding, root, entries, wide)
    ]
    return min(explaining)[2] if explaining else None


def _last_root(index: int, roots: Sequence[int | None]) -> int:
    following = roots[index]
    return index if following is None else _last_root(following, roots)


def _follows(
    finding: Finding, root: Finding, entries: Sequence[Finding], wide: frozenset[str]
) -> bool:
    if finding.node != root.node or ORDER[root.severity] > ORDER[finding.severity]:
        return False
    if _depth(root, wide) >= _depth(finding, wide):
        return False
    if finding.code in ON_THE_NODE.get(root.code, ()):
        return True
    if finding.code == "gpu.missing" and root.code == "gpu.off_bus":
        return _explains_the_count(finding, entries)
    patterns = OF_THE_SAME_PART.get(root.code, ())
    if root.code in FABRIC and root.node in wide:
        patterns += LINKS
    return _same_part(finding, root) and any(fnmatchcase(finding.code, p) for p in patterns)


def _depth(finding: Finding, wide: frozenset[str]) -> float:
    """How basic a cause is; slow collectives explain nothing and come last."""
    if finding.code in SLOW:
        return len(DEPTH) + 1
    if finding.code in FABRIC and finding.node in wide:
        return DEPTH.index(LINKS[0]) - 0.5
    return DEPTH.index(finding.code) if finding.code in DEPTH else len(DEPTH)


def _same_part(finding: Finding, root: Finding) -> bool:
    """Every part of the finding is one of the root's, or a pair with one of them."""
    roots = {part for item in root.component.split(",") for part in _parts(item)}
    return all(_parts(item) & roots for item in finding.component.split(","))


def _parts(item: str) -> set[str]:
    if item == "node":
        return set()
    return set(GPU.findall(item)) or {item}


def _explains_the_count(missing: Finding, entries: Sequence[Finding]) -> bool:
    """As many GPUs fell off the bus as are missing."""
    if not isinstance(missing.expected, int) or not isinstance(missing.measured, int):
        return False
    lost = {
        entry.component
        for entry in entries
        if entry.node == missing.node and entry.code == "gpu.off_bus"
    }
    return len(lost) >= missing.expected - missing.measured


def _fabric_wide(entries: Sequence[Finding]) -> frozenset[str]:
    """Nodes on which many GPUs lack the fabric, and no GPU lacks its links alone.

    Then the links wait for the fabric manager; one GPU's own links would not stop the others.
    """
    wide = set()
    for node in {entry.node for entry in entries}:
        fabric, links = (
            {entry.component for entry in entries if entry.node == node and entry.code in codes}
            for codes in (FABRIC, LINKS)
        )
        if len(fabric) >= MANY and links == fabric:
            wide.add(node)
    return frozenset(wide)


def _same_on_many(findings: Sequence[Finding]) -> list[Finding]:
    """The same fault with the same figures on many GPUs is said once, naming all."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for place, finding in enumerate(findings):
        key: tuple[object, ...] = (place,)
        if GPU.fullmatch(finding.component):
            figures = (finding.measured, finding.expected)
            key = (finding.node, finding.severity, finding.code, finding.check, *figures)
        groups.setdefault(key, []).append(finding)
    result = []
    for group in groups.values():
        result += [_joined(group)] if len(group) >= MANY else group
    return result


def _joined(group: Sequence[Finding]) -> Finding:
    return replace(
        group[0],
        component=",".join(finding.component for finding in group),
        message=_common(group, [finding.message for finding in group]),
        next_step=_common(group, [finding.next_step for finding in group]),
        evidence=tuple(dict.fromkeys(line for finding in group for line in finding.evidence)),
        consequences=tuple(dict.fromkeys(c for finding in group for c in finding.consequences)),
    )


def _common(group: Sequence[Finding], texts: Sequence[str]) -> str:
    """The text that all share, or the first one's, marked as an example."""
    return texts[0] if len(set(texts)) == 1 else f"{group[0].component}, for example: {texts[0]}"
