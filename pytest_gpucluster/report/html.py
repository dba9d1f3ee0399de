"""The acceptance report: one self-contained page, readable without JavaScript or a network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.facts.model import Gpu, NodeFacts
from pytest_gpucluster.report.charts import bar
from pytest_gpucluster.report.matrix import link_matrix
from pytest_gpucluster.report.terminal import MEANING
from pytest_gpucluster.verdict.verdict import NodeVerdict, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment, Template

LONGEST_TEXT = 600
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
    nodes = [_node(node, facts.get(node.name)) for node in verdict.nodes]
    return _template().render(
        verdict=verdict,
        meaning=MEANING[verdict.verdict],
        symbols=SYMBOLS,
        nodes=nodes,
        measurements=[{"m": m, "bar": bar(m)} for m in verdict.measurements],
        settings=[(name, entry) for name, entry in verdict.options.items()],
    )


def _node(node: NodeVerdict, facts: NodeFacts | None) -> dict[str, Any]:
    gpus = facts.gpus if facts else None
    return {
        "verdict": node,
        "facts": facts,
        "gpus": [_gpu_row(gpu) for gpu in gpus or ()],
        "matrix": link_matrix(facts) if facts and gpus and len(gpus) > 1 else None,
        "blamed": {part for f in node.findings for part in f.component.split(",")},
        "unverified": _by_reason(node.unverified),
        "not_applicable": _by_reason(node.not_applicable),
    }


def _by_reason(entries: Any) -> list[tuple[str, list[str]]]:
    grouped: dict[str, list[str]] = {}
    for entry in entries:
        checks = grouped.setdefault(entry.reason, [])
        if entry.check and entry.check not in checks:
            checks.append(entry.check)
    return list(grouped.items())


def _gpu_row(gpu: Gpu) -> dict[str, str]:
    ecc = gpu.ecc.enabled if gpu.ecc else None
    up, all_links = gpu.active_links, gpu.nvlinks
    return {
        "GPU": gpu.label,
        "Model": gpu.name or "–",
        "Bus": gpu.bus_id or "–",
        "Memory": f"{gpu.memory_bytes / 1e9:.1f} GB" if gpu.memory_bytes else "–",
        "ECC": {True: "on", False: "off", None: "–"}[ecc],
        "PCIe": _pcie(gpu),
        "NVLinks up": f"{up} of {len(all_links)}" if up is not None and all_links else "–",
        "Temp.": f"{gpu.temperature:g} °C" if gpu.temperature is not None else "–",
        "Power limit": f"{gpu.power.limit:g} W" if gpu.power.limit else "–",
        "State": gpu.lost or "reachable",
    }


def _pcie(gpu: Gpu) -> str:
    if gpu.pcie.max_generation is None:
        return "–"
    now = f", now gen {gpu.pcie.generation}" if gpu.pcie.generation else ""
    return f"gen {gpu.pcie.max_generation} x{gpu.pcie.width or '?'}{now}"


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"


def _figure(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else _shorten(value)


@cache
def _template() -> Template:
    environment = _environment()
    environment.filters |= {"short": _shorten, "figure": _figure}
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
