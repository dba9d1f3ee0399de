"""A verdict as metrics, for the textfile collector of a node exporter.

The text format: https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_gpucluster.verdict.verdict import WORST_FIRST, Verdict

Sample = tuple[Mapping[str, str], float]


def exposition(verdict: Verdict) -> str:
    """All metrics of a run, each with its help and type, ending in a newline."""
    families = (
        ("gpucluster_verdict", "1 for the verdict of a node, 0 for the others.", _verdicts),
        ("gpucluster_findings", "Findings of a node by severity and code.", _findings),
        ("gpucluster_unverified_checks", "Checks that had to judge and did not.", _unverified),
        ("gpucluster_measurement", "Median of the repetitions.", _measurements),
        ("gpucluster_duration_seconds", "Length of the run.", _duration),
    )
    lines = []
    for name, help_text, samples in families:
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
        unique = {_labels(labels): value for labels, value in samples(verdict)}
        lines += [f"{name}{labels} {_number(value)}" for labels, value in unique.items()]
    return "\n".join(lines) + "\n"


def _verdicts(verdict: Verdict) -> Iterator[Sample]:
    for node in verdict.nodes:
        for name in WORST_FIRST:
            yield {"node": node.name, "verdict": name}, float(node.verdict == name)


def _findings(verdict: Verdict) -> Iterator[Sample]:
    numbers = Counter((n.name, f.severity, f.code) for n in verdict.nodes for f in n.findings)
    for (node, severity, code), number in numbers.items():
        yield {"node": node, "severity": severity, "code": code}, number


def _unverified(verdict: Verdict) -> Iterator[Sample]:
    for node in verdict.nodes:
        yield {"node": node.name}, len(node.unverified)


def _measurements(verdict: Verdict) -> Iterator[Sample]:
    for m in verdict.measurements:
        yield {"node": m.node, "check": m.check, "name": m.name, "unit": m.unit}, m.value


def _duration(verdict: Verdict) -> Iterator[Sample]:
    yield {"mode": verdict.mode, "level": verdict.level}, verdict.duration_s


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.10g}"
