"""The end of the run on a terminal: what was found, what was not checked, the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_gpucluster.report.text import MEANING, figure, name_parts, printable
from pytest_gpucluster.verdict.findings import Finding, Measurement, NotChecked
from pytest_gpucluster.verdict.verdict import WORST_FIRST, Verdict

__all__ = ["Line", "printable", "summary_lines"]

MOST_EVIDENCE = 4
MOST_CONSEQUENCES = 8
MOST_GAPS = 12
MOST_MEASUREMENTS = 24
MOST_REPEATED = 6
COLOURS = {
    "accepted": {"green": True, "bold": True},
    "accepted_with_warnings": {"yellow": True, "bold": True},
    "rehearsed": {"cyan": True, "bold": True},
    "unverified": {"yellow": True, "bold": True},
}
Line = tuple[str, dict[str, bool]]


def summary_lines(verdict: Verdict, folder: Path) -> list[Line]:
    """Lines and their colours, worst first, the verdict last."""
    several = len(verdict.nodes) > 1
    nodes = sorted(verdict.nodes, key=lambda node: WORST_FIRST.index(node.verdict))
    lines: list[Line] = []
    for severity in ("fail", "warn"):
        for node in nodes:
            prefix = f"{printable(node.name)}: " if several else ""
            for finding in node.findings:
                if finding.severity == severity:
                    lines += _finding(finding, prefix)
    for node in nodes:
        lines += _gaps(node.unverified, f"{printable(node.name)}: " if several else "")
    lines += _measurements(verdict.measurements, several=several)
    lines += [(f"note: {printable(remark)}", {"red": True}) for remark in verdict.remarks]
    colour = COLOURS.get(verdict.verdict, {"red": True, "bold": True})
    if several:
        counted = ", ".join(f"{number} {name}" for name, number in verdict.counts.items())
        lines.append((f"nodes: {counted}", {}))
    lines.append((f"verdict: {verdict.verdict} ({MEANING[verdict.verdict]})", colour))
    lines += _again([f for node in nodes for f in node.findings if f.severity == "fail"])
    lines.append((f"report: {printable(str(folder / 'report.html'))}", {}))
    return lines


def _finding(finding: Finding, prefix: str) -> Iterator[Line]:
    colour = {"red": True} if finding.severity == "fail" else {"yellow": True}
    head = f"{finding.severity.upper()} {prefix}{name_parts(finding.component)}: "
    yield f"{printable(f'{head}{finding.message}')} [{printable(finding.code)}]", colour
    if finding.expected is not None:
        unit = f" {finding.unit}" if finding.unit else ""
        source = f" ({finding.source})" if finding.source else ""
        found = f"found {figure(finding.measured)}{unit}"
        yield _below(f"{found}, expected {figure(finding.expected)}{unit}{source}")
    for line in finding.evidence[:MOST_EVIDENCE]:
        place = line.file if line.line is None else f"{line.file}:{line.line}"
        yield _below(f"{place}: {line.text}" if line.text else place)
    yield _below(f"next: {finding.next_step}")
    if finding.consequences:
        yield _below(f"follows from it: {_some(finding.consequences, MOST_CONSEQUENCES)}")


def _below(text: str) -> Line:
    return f"     {printable(text)}", {}


def _some(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _gaps(unverified: Sequence[NotChecked], prefix: str) -> Iterator[Line]:
    """Checks that share a reason stand on one line."""
    by_reason: dict[str, list[str]] = {}
    for entry in unverified:
        checks = by_reason.setdefault(entry.reason, [])
        name = entry.check.removeprefix("gpucluster/")
        if name and name not in checks:
            checks.append(name)
    for reason, checks in list(by_reason.items())[:MOST_GAPS]:
        named = f"{_some(checks, 3)}: " if checks else ""
        yield printable(f"UNVERIFIED {prefix}{named}{reason}"), {"yellow": True}
    if len(by_reason) > MOST_GAPS:
        yield f"... and {len(by_reason) - MOST_GAPS} more reasons, see the report", {}


def _measurements(measurements: Sequence[Measurement], *, several: bool) -> Iterator[Line]:
    for measurement in measurements[:MOST_MEASUREMENTS]:
        node = f"{measurement.node}: " if several else ""
        yield printable(node + _measurement(measurement)), {}
    if len(measurements) > MOST_MEASUREMENTS:
        yield f"... and {len(measurements) - MOST_MEASUREMENTS} more, see the report", {}


def _measurement(measurement: Measurement) -> str:
    text = f"{measurement.name}: {measurement.value:g} {measurement.unit}"
    if measurement.low is not None and measurement.high is not None:
        text += f" ({measurement.low:g} to {measurement.high:g})"
    source = f" ({measurement.source})" if measurement.source else ""
    if measurement.floor is not None:
        text += f", floor {measurement.floor:g}"
    if measurement.expected is not None:
        text += f", expected {measurement.expected:g}"
    if measurement.floor is not None or measurement.expected is not None:
        return text + source
    return f"{text}, {measurement.derivation}" if measurement.derivation else text


def _again(failures: Sequence[Finding]) -> list[Line]:
    checks = list(dict.fromkeys(finding.check for finding in failures if finding.check))
    if not checks:
        return []
    named = " ".join(shlex.quote(check) for check in checks)
    which = named if len(checks) <= MOST_REPEATED and printable(named) == named else "--lf"
    return [(f"again: pytest --gpucluster {which}", {})]
