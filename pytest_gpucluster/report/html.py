"""The acceptance report: one self-contained page, readable without JavaScript or a network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.facts.model import NodeFacts
from pytest_gpucluster.report.charts import bar, legend
from pytest_gpucluster.report.matrix import link_matrix
from pytest_gpucluster.report.tables import by_reason, gpu_row, node_rows
from pytest_gpucluster.report.text import MEANING, figure, name_parts, printable
from pytest_gpucluster.verdict.verdict import WORST_FIRST, NodeVerdict, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment, Template

LONGEST_TEXT = 600
MANY_NODES = 4  # with more, only nodes that are not accepted show their hardware unfolded
SYMBOLS = {
    "accepted": "✓",
    "accepted_with_warnings": "✓",
    "rejected": "✕",
    "lost": "✕",
    "unverified": "?",
    "rehearsed": "○",
    "fail": "✕",
    "warn": "!",
    "passed": "✓",
    "failed": "✕",
    "crashed": "✕",
    "skipped": "–",
    "not_run": "–",
}


def render(verdict: Verdict, facts: Mapping[str, NodeFacts]) -> str:
    """The page. Everything that came from a machine is escaped by the template engine."""
    nodes = sorted(verdict.nodes, key=lambda node: WORST_FIRST.index(node.verdict))
    return _template().render(
        verdict=verdict,
        meaning=MEANING[verdict.verdict][:1].upper() + MEANING[verdict.verdict][1:],
        symbols=SYMBOLS,
        nodes=[_node(node, facts.get(node.name), many=len(nodes) > MANY_NODES) for node in nodes],
        measurements=[{"m": m, "bar": bar(m)} for m in verdict.measurements],
        legend={name: legend(name) for name in ("value", "floor", "expected", "ceiling")},
    )


def _node(node: NodeVerdict, facts: NodeFacts | None, *, many: bool) -> dict[str, Any]:
    gpus = facts.gpus if facts else None
    worst_last = sorted(node.findings, key=lambda finding: finding.severity != "warn")
    blamed = {part: f.severity for f in worst_last for part in f.component.split(",")}
    lost = any(gpu.lost for gpu in gpus or ())
    return {
        "verdict": node,
        "facts": facts,
        "host": node_rows(facts) if facts else {},
        "gpus": [gpu_row(gpu, with_state=lost) for gpu in gpus or ()],
        "matrix": link_matrix(facts) if facts and gpus and len(gpus) > 1 else None,
        "ports": [port for port in (facts.network or () if facts else ()) if not port.virtual],
        "blamed": blamed,
        "unverified": by_reason(node.unverified),
        "not_applicable": by_reason(node.not_applicable),
        "unfolded": not many or bool(node.findings or node.unverified),
        "fails": sum(1 for f in node.findings if f.severity == "fail"),
        "warns": sum(1 for f in node.findings if f.severity == "warn"),
    }


def _shorten(value: object) -> str:
    text = str(value)
    clean = printable(text, LONGEST_TEXT)
    return clean if len(text) <= LONGEST_TEXT else f"{clean} ({len(text)} characters)"


def _figure(value: object) -> str:
    return _shorten(figure(value))


@cache
def _template() -> Template:
    environment = _environment()
    environment.filters |= {
        "short": _shorten,
        "figure": _figure,
        "parts": lambda component: _shorten(name_parts(component)),
        "words": lambda name: str(name).replace("_", " "),
    }
    return environment.get_template("report.html")


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("pytest_gpucluster.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
