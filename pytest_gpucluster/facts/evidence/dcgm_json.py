"""``dcgmi diag -j`` (DCGM 2 to 4) and ``dcgmi nvlink -e -j``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.sysfs import printable

KIND = "dcgm"
TITLE = "dcgmi diag -j, dcgmi nvlink -e -j"
_TOP = ("DCGM GPU Diagnostic", "DCGM Diagnostic")
_MAX_TEXT = 300


@dataclass(frozen=True)
class DiagTest:
    """One test on one entity. ``status`` as printed; ``messages``: warnings and errors."""

    category: str
    name: str
    status: str
    gpus: tuple[int, ...] = ()
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class LinkErrors:
    """Error counters of one link of one GPU."""

    gpu: int
    link: int
    counts: dict[str, int]


@dataclass(frozen=True)
class DcgmJsonRecord:
    """Results in order; ``tests`` counts names, ``results`` single entities."""

    results: tuple[DiagTest, ...] = ()
    links: tuple[LinkErrors, ...] = ()
    unread: tuple[Unread, ...] = ()
    cut: str | None = None

    def names(self, *status: str) -> list[str]:
        """Names of the tests that have one of these results, each once."""
        wanted = {word.lower() for word in status}
        return list(dict.fromkeys(r.name for r in self.results if r.status.lower() in wanted))


def recognises(document: Document) -> bool:
    """Whether a key of such a document stands in it, broken JSON or not."""
    text = "\n".join(document.lines[:2000])
    return any(f'"{name}"' in text for name in _TOP) or (
        '"NVLINK Error Counts"' in text and '"body"' in text
    )


def read(document: Document) -> DcgmJsonRecord:
    """All results; never raises. Text before the first brace (a log line) is left out."""
    text = document.text
    start = text.find("{")
    try:
        data, _ = json.JSONDecoder().raw_decode(text, max(start, 0))
    except (ValueError, RecursionError) as error:
        return DcgmJsonRecord(cut=f"broken JSON: {str(error)[:120]}")
    unread: list[Unread] = []
    top = _dict(data)
    diagnostic = next((_dict(top[name]) for name in _TOP if name in top), None)
    if diagnostic is not None:
        results = _results(diagnostic, unread)
        empty = None if results else "no test results"
        return DcgmJsonRecord(tuple(results), (), tuple(unread), empty)
    links = _link_errors(top, unread)
    return DcgmJsonRecord((), tuple(links), tuple(unread), None if links else "no links")


def _results(diagnostic: dict[str, Any], unread: list[Unread]) -> list[DiagTest]:
    results = []
    for category in _list(diagnostic.get("test_categories")):
        for test in _list(_dict(category).get("tests")):
            name = _text(_dict(test).get("name"))
            entries = [*_list(_dict(test).get("results"))]
            if not entries and "test_summary" in _dict(test):
                entries = [_dict(test)["test_summary"]]
            if not entries:
                unread.append(Unread(1, f"test {name} has no result"))
            for entry in entries:
                results.append(_result(_text(_dict(category).get("category")), name, _dict(entry)))
    return results


def _result(category: str, name: str, entry: dict[str, Any]) -> DiagTest:
    messages = []
    for key in ("warnings", "errors", "warning", "error"):
        found = entry.get(key)
        for message in found if isinstance(found, list) else [found]:
            said = _dict(message).get("warning") or _dict(message).get("error") or message
            if isinstance(said, str) and said:
                messages.append(_text(said))
    gpus = entry.get("gpu_ids", entry.get("gpu_id"))
    if gpus is None and str(entry.get("entity_group", "")).upper() == "GPU":
        gpus = entry.get("entity_id")
    numbers = re.findall(r"[0-9]{1,4}", str(gpus)) if gpus is not None else []
    return DiagTest(
        category, name, _text(entry.get("status")), tuple(map(int, numbers)), tuple(messages)
    )


def _link_errors(top: dict[str, Any], unread: list[Unread]) -> list[LinkErrors]:
    heading = " ".join(_text(part) for part in _list(top.get("header")))
    gpu = re.search(r"GPU ([0-9]{1,4})", heading)
    if gpu is None:
        unread.append(Unread(1, "the GPU is not named"))
    links = []
    for name, entry in _dict(top.get("body")).items():
        match = re.fullmatch(r"Link ([0-9]{1,3})", name)
        if match is None:
            unread.append(Unread(1, f"entry {printable(name, 40)!r}"))
            continue
        counts = {}
        for counter, cell in _dict(_dict(entry).get("children")).items():
            value = str(_dict(cell).get("value"))
            if re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
                counts[printable(counter, 40)] = int(value)
            elif value not in ("N/A", "None"):
                unread.append(Unread(1, f"link {match[1]} {printable(counter, 40)}: {value[:20]}"))
        links.append(LinkErrors(int(gpu[1]) if gpu else 0, int(match[1]), counts))
    return links


def summary(record: DcgmJsonRecord) -> dict[str, object]:
    """``tests`` and ``passed`` count names; ``failed`` and ``warned`` list them."""
    facts: dict[str, object] = {
        "tests": len(dict.fromkeys(r.name for r in record.results)),
        "failed": record.names("Fail"),
        "warned": record.names("Warn"),
        "skipped": record.names("Skip", "Skipped", "Not Run"),
    }
    bad = {*record.names("Fail"), *record.names("Warn")}
    facts["passed"] = len([name for name in record.names("Pass") if name not in bad])
    for link in record.links:
        by_link = facts.setdefault("errors", {})
        assert isinstance(by_link, dict)
        by_link[f"GPU{link.gpu} link {link.link}"] = link.counts
    return facts


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return printable(str(value).strip(), _MAX_TEXT) if value is not None else ""
