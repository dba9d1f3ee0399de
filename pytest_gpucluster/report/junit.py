"""Findings and measurements as plain properties, for JUnit and other readers of reports."""

from __future__ import annotations

from pytest_gpucluster.report.text import printable
from pytest_gpucluster.verdict.findings import Finding, Measurement


def properties(record: Finding | Measurement) -> list[tuple[str, str]]:
    """Name and value pairs: a measurement under its own name, a finding under its code."""
    pairs = [("gpucluster.node", record.node)]
    if isinstance(record, Measurement):
        numbers = {"": record.value, " floor": record.floor, " expected": record.expected}
        pairs += [
            (f"{record.name}{what} [{record.unit}]", f"{number:g}")
            for what, number in numbers.items()
            if number is not None
        ]
    else:
        pairs.append((f"{record.severity} {record.code}", f"{record.component}: {record.message}"))
    return [(printable(name), printable(value)) for name, value in pairs]
