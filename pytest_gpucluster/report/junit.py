"""Findings and measurements as plain properties, for JUnit and other readers of reports."""

from __future__ import annotations

from pytest_gpucluster.verdict.findings import Finding, Measurement


def properties(record: Finding | Measurement) -> list[tuple[str, str]]:
    """Name and value pairs: a measurement under its own name, a finding under its code."""
    if isinstance(record, Measurement):
        pairs = [(f"{record.name} [{record.unit}]", f"{record.value:g}")]
        if record.floor is not None:
            pairs.append((f"{record.name} floor [{record.unit}]", f"{record.floor:g}"))
        return [("gpucluster.node", record.node), *pairs]
    return [
        ("gpucluster.node", record.node),
        (f"{record.severity} {record.code}", f"{record.component}: {record.message}"),
    ]
