"""What pytest-html shows besides its own: the verdict above, three columns in the table.

pytest-html writes prefixes and cells into the page as they are, and finds a cell by its place:
everything is escaped here, and every row gets all columns, whatever kind of report it is.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.report.text import MEANING, figure, name_parts, printable
from pytest_gpucluster.verdict.findings import (
    FINDING,
    MEASUREMENT,
    Finding,
    Measurement,
    decode,
)

if TYPE_CHECKING:
    import pytest

    from pytest_gpucluster.verdict.verdict import Verdict

COLUMNS = ("node", "measured", "expected")
PLACE = 2  # after pytest-html's result and name
MOST_FINDINGS = 50


def summary_fragment(verdict: Verdict, folder: Path) -> str:
    """HTML for ``pytest_html_results_summary``: verdict, findings, where the report lies."""
    word = verdict.verdict.replace("_", " ")
    findings = [(node.name, finding) for node in verdict.nodes for finding in node.findings]
    items = [
        f"<li><b>{_safe(f.severity)}</b> {_safe(node)}, {_safe(name_parts(f.component))}: "
        f"{_safe(f.message)} <i>Next: {_safe(f.next_step)}</i></li>"
        for node, f in findings[:MOST_FINDINGS]
    ]
    if len(findings) > MOST_FINDINGS:
        items.append(f"<li>and {len(findings) - MOST_FINDINGS} more, see the report</li>")
    gaps = sum(len(node.unverified) for node in verdict.nodes)
    return (
        f"<h2>gpucluster: {_safe(word)}</h2><p>{_safe(MEANING[verdict.verdict])}</p>"
        + (f"<ul>{''.join(items)}</ul>" if items else "")
        + (f"<p>Checks not verified: {gaps}.</p>" if gaps else "")
        + f"<p>The whole report: <code>{_safe(str(folder / 'report.html'))}</code></p>"
    )


def add_header_cells(cells: list[str]) -> None:
    """For ``pytest_html_results_table_header``."""
    cells[PLACE:PLACE] = [
        f'<th class="sortable" data-column-type="{name}">{name.capitalize()}</th>'
        for name in COLUMNS
    ]


def add_row_cells(
    report: pytest.TestReport | pytest.CollectReport, cells: list[str], node: str
) -> None:
    """For ``pytest_html_results_table_row``; ``node``: where the test ran, if it does not say."""
    properties = getattr(report, "user_properties", ())
    findings = decode(properties, FINDING, Finding)
    measurements = decode(properties, MEASUREMENT, Measurement)
    records: list[Finding | Measurement] = [*findings, *measurements]
    where = dict.fromkeys(record.node for record in records if record.node)
    measured = [
        *(_figures(name_parts(f.component), f.measured, f.unit) for f in findings),
        *(_figures(m.name, m.value, m.unit) for m in measurements),
    ]
    expected = [
        *(_figures(name_parts(f.component), f.expected, f.unit) for f in findings),
        *(_limit(measurement) for measurement in measurements),
    ]
    texts = (", ".join(where) or node, *("; ".join(filter(None, t)) for t in (measured, expected)))
    cells[PLACE:PLACE] = [
        f'<td class="col-{name}">{_safe(text)}</td>'
        for name, text in zip(COLUMNS, texts, strict=True)
    ]


def _figures(what: str, value: object, unit: str | None) -> str:
    return f"{what} {figure(value)}{f' {unit}' if unit else ''}" if value is not None else ""


def _limit(measurement: Measurement) -> str:
    if measurement.floor is not None:
        return _figures(f"{measurement.name} at least", measurement.floor, measurement.unit)
    return _figures(measurement.name, measurement.expected, measurement.unit)


def _safe(text: str) -> str:
    return escape(printable(text))
