"""The end of the run on a terminal: what was found, what was not checked, the verdict."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_gpucluster.verdict.findings import Finding, Measurement, NotChecked
from pytest_gpucluster.verdict.verdict import Verdict

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
LONGEST_LINE = 400
MOST_GAPS = 12
COLOURS = {
    "accepted": {"green": True, "bold": True},
    "accepted_with_warnings": {"yellow": True, "bold": True},
    "rehearsed": {"cyan": True, "bold": True},
    "unverified": {"yellow": True, "bold": True},
}
MEANING = {
    "accepted": "training jobs may run here",
    "accepted_with_warnings": "training jobs may run here; read the warnings",
    "rejected": "do not run training jobs here",
    "lost": "the node was lost during the run",
    "unverified": "not accepted: something that must be checked was not",
    "rehearsed": "CPU ranks only: this accepts nothing",
}
Line = tuple[str, dict[str, bool]]


def printable(text: str) -> str:
    """Text from a machine without control characters, cut to a bearable length."""
    clean = CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\n", " "))
    return clean if len(clean) <= LONGEST_LINE else f"{clean[: LONGEST_LINE - 1]}…"


def summary_lines(verdict: Verdict, folder: Path) -> list[Line]:
    """Lines and their colours, worst first, the verdict last."""
    lines: list[Line] = []
    for node in verdict.nodes:
        prefix = f"{node.name}: " if len(verdict.nodes) > 1 else ""
        for finding in node.findings:
            lines += _finding(finding, prefix)
        lines += _gaps(node.unverified, prefix)
    lines += [_measurement(measurement) for measurement in verdict.measurements]
    lines += [(f"note: {printable(remark)}", {"red": True}) for remark in verdict.remarks]
    colour = COLOURS.get(verdict.verdict, {"red": True, "bold": True})
    lines.append((f"verdict: {verdict.verdict} ({MEANING[verdict.verdict]})", colour))
    again = [f.check for node in verdict.nodes for f in node.findings if f.severity == "fail"]
    if again:
        named = " ".join(dict.fromkeys(again))
        lines.append((f"again: pytest --gpucluster {printable(named)}", {}))
    lines.append((f"report: {folder / 'report.html'}", {}))
    return lines


def _finding(finding: Finding, prefix: str) -> list[Line]:
    colour = {"red": True} if finding.severity == "fail" else {"yellow": True}
    lines: list[Line] = [
        (
            f"{finding.severity.upper()} {prefix}{printable(finding.component)}: "
            f"{printable(finding.message)} [{finding.code}]",
            colour,
        )
    ]
    if finding.expected is not None:
        unit = f" {finding.unit}" if finding.unit else ""
        source = f" ({finding.source})" if finding.source else ""
        compared = f"found {finding.measured}{unit}, expected {finding.expected}{unit}{source}"
        lines.append((f"     {printable(compared)}", {}))
    lines += [(f"     {printable(f'{e.file}:{e.line}: {e.text}')}", {}) for e in finding.evidence]
    lines.append((f"     next: {printable(finding.next_step)}", {}))
    if finding.consequences:
        follows = ", ".join(finding.consequences[:8])
        lines.append((f"     follows from it: {printable(follows)}", {}))
    return lines


def _gaps(unverified: tuple[NotChecked, ...], prefix: str) -> list[Line]:
    """Checks that share a reason stand on one line."""
    by_reason: dict[str, list[str]] = {}
    for entry in unverified:
        by_reason.setdefault(entry.reason, []).append(entry.check.removeprefix("gpucluster/"))
    lines: list[Line] = []
    for reason, checks in list(by_reason.items())[:MOST_GAPS]:
        shown = ", ".join(dict.fromkeys(checks[:3])) + (
            f" and {len(checks) - 3} more" if len(checks) > 3 else ""
        )
        lines.append(
            (f"UNVERIFIED {prefix}{printable(shown)}: {printable(reason)}", {"yellow": True})
        )
    if len(by_reason) > MOST_GAPS:
        lines.append((f"... and {len(by_reason) - MOST_GAPS} more reasons, see the report", {}))
    return lines


def _measurement(measurement: Measurement) -> Line:
    text = f"{measurement.name}: {measurement.value:g} {measurement.unit}"
    if measurement.low is not None and measurement.high is not None:
        text += f" ({measurement.low:g} to {measurement.high:g})"
    if measurement.floor is not None:
        text += f", floor {measurement.floor:g} ({measurement.source})"
    elif measurement.derivation:
        text += f", {measurement.derivation}"
    return printable(text), {}
