"""One root cause, one finding: what follows from a fault is listed under it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from pytest_gpucluster.verdict.findings import Finding

# Root → codes that follow from it when they concern the same part, or a pair it belongs to.
CONSEQUENCES: dict[str, tuple[str, ...]] = {
    "gpu.off_bus": ("*",),
    "memory.row_remap_failed": ("memory.*", "gpu.recovery_needed"),
    "memory.ecc_uncorrectable": ("memory.row_remap_pending", "gpu.recovery_needed"),
    "memory.row_remap_pending": ("gpu.recovery_needed",),
    "nvlink.links_down": ("nvlink.*", "p2p.*", "fabric.*"),
    "nvlink.links_missing": ("nvlink.*", "p2p.*", "fabric.*"),
    "fabric.not_ready": ("p2p.*", "fabric.*"),
}
# Roots anywhere on the node from which slow or failing collectives follow.
SLOWS_COLLECTIVES = (
    "nvlink.links_down", "gpu.off_bus", "fabric.not_ready", "fabric.unhealthy",
    "pcie.downgraded", "clocks.thermal", "clocks.power_brake", "power.limit_low", "gpu.busy",
)  # fmt: skip
SLOW = ("collective.bandwidth_low", "collective.bandwidth_marginal")
PART = re.compile(r"GPU\d+")
ORDER = {"fail": 0, "warn": 1}


def fold(findings: Iterable[Finding]) -> list[Finding]:
    """Findings without those that follow from others, worst first.

    A root never swallows something worse than itself. Equal findings count once.
    """
    unique: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        unique.setdefault(findings_key(finding), finding)
    entries = _same_on_many(list(unique.values()))
    absorbed: dict[int, list[str]] = {}
    gone: set[int] = set()
    for index, root in enumerate(entries):
        for other, finding in enumerate(entries):
            if other != index and other not in gone and _follows(finding, root):
                absorbed.setdefault(index, []).append(f"{finding.code} {finding.component}")
                gone.add(other)
    kept = [
        replace(entry, consequences=(*entry.consequences, *absorbed.get(index, ())))
        for index, entry in enumerate(entries)
        if index not in gone
    ]
    return sorted(kept, key=lambda finding: ORDER[finding.severity])


def findings_key(finding: Finding) -> tuple[str, str, str, str]:
    """What makes two findings the same."""
    return finding.node, finding.code, finding.component, finding.message


def _follows(finding: Finding, root: Finding) -> bool:
    if finding.node != root.node or ORDER[root.severity] > ORDER[finding.severity]:
        return False
    if finding.code in SLOW:
        return root.code in SLOWS_COLLECTIVES
    patterns = CONSEQUENCES.get(root.code, ())
    if finding.code == root.code or not any(fnmatchcase(finding.code, p) for p in patterns):
        return False
    return bool(set(PART.findall(finding.component)) & set(PART.findall(root.component)))


def _same_on_many(findings: list[Finding]) -> list[Finding]:
    """The same fault with the same figures on three GPUs or more is said once, naming all."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        if PART.fullmatch(finding.component):
            key = (finding.node, finding.severity, finding.code, finding.check, finding.measured)
            groups.setdefault((*key, finding.expected), []).append(finding)
    joined = {id(f): group for group in groups.values() if len(group) >= 3 for f in group}
    result = []
    for finding in findings:
        group = joined.get(id(finding))
        if group is None:
            result.append(finding)
        elif group[0] is finding:
            names = ",".join(entry.component for entry in group)
            result.append(replace(finding, component=names))
    return result
