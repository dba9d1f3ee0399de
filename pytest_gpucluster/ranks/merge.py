"""The ranks' reports of one test → pytest's three reports, one outcome.

A test passes only when every rank said so. What failed first and is not merely the loss of a
peer comes first; equal failures are shown once.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pytest_gpucluster.ranks.failures import (
    PHASES,
    ByRank,
    Failure,
    Phase,
    find_failures,
    is_agreed,
    order,
)
from pytest_gpucluster.ranks.naming import rank_list
from pytest_gpucluster.ranks.results import GroupResult
from pytest_gpucluster.ranks.serial import BRIEF, BRIEF_FIELDS

SUSPECTS = "gpucluster.suspects"  # user property: "rank 2" or "ranks 1-7"
RANKS = "gpucluster.ranks"  # user property: how many ranks ran the test


class RankFailure(str):
    """The text of a merged failure, with the one-line message pytest's summary asks for."""

    reprcrash: types.SimpleNamespace


@dataclass(frozen=True)
class TestIdentity:
    """What every report of the test carries."""

    nodeid: str
    location: tuple[str, int | None, str]
    keywords: Mapping[str, Any]

    __test__ = False


def merge(
    identity: TestIdentity,
    outcome: GroupResult,
    restore: Callable[[dict[str, Any]], pytest.TestReport],
) -> list[pytest.TestReport]:
    """The reports the session sees. ``restore`` is pytest's own deserialiser."""

    def read(data: dict[str, Any]) -> pytest.TestReport:
        if not data.get(BRIEF):
            return restore(data)
        brief = {name: data[name] for name in BRIEF_FIELDS}
        return pytest.TestReport(identity.nodeid, identity.location, {}, longrepr=None, **brief)

    by_rank = {
        result.rank: {report.when: report for report in map(read, result.reports)}
        for result in outcome.ranks
    }
    failures = order(find_failures(outcome, by_rank))
    properties = _properties(by_rank, len(outcome.ranks))
    if failures:
        last_output = {result.rank: result.last_output for result in outcome.ranks}
        return _failed(identity, failures, by_rank, properties, last_output)
    return [
        _agreed(identity, phase, by_rank, properties)
        for phase in PHASES
        if any(phase in reports for reports in by_rank.values())
    ]


def _properties(by_rank: ByRank, world_size: int) -> list[tuple[str, object]]:
    """Every rank's properties, equal ones once, in the order of the ranks."""
    seen: dict[tuple[str, str], object] = {(RANKS, str(world_size)): world_size}
    for reports in by_rank.values():
        for report in reports.values():
            for key, value in report.user_properties:
                seen.setdefault((key, str(value)), value)
    return [(key, value) for (key, _), value in seen.items()]


def _agreed(
    identity: TestIdentity,
    phase: Phase,
    by_rank: ByRank,
    properties: list[tuple[str, object]],
) -> pytest.TestReport:
    reports = [by_phase[phase] for by_phase in by_rank.values()]
    first = reports[0]
    longrepr = tuple(first.longrepr) if isinstance(first.longrepr, list) else first.longrepr
    merged = _report(identity, phase, first.outcome, longrepr, reports, properties)
    merged.sections = _sections({rank: reports[phase] for rank, reports in by_rank.items()})
    if hasattr(first, "wasxfail"):
        merged.wasxfail = first.wasxfail
    if phase == "call" and len(reports) > 1:
        durations = [report.duration for report in reports]
        spread = [len(reports), min(durations), max(durations)]
        merged.gpucluster_spread = spread  # type: ignore[attr-defined]
    return merged


def _failed(
    identity: TestIdentity,
    failures: Sequence[Failure],
    by_rank: ByRank,
    properties: list[tuple[str, object]],
    last_output: Mapping[int, Sequence[tuple[str, str]]],
) -> list[pytest.TestReport]:
    # One failed phase tells everything. It is the first that failed anywhere: the root cause may
    # lie in a later one (a rank died in teardown), yet what failed must not be shown as passed.
    broken = min((failure.phase for failure in failures), key=PHASES.index)
    properties = [*properties, (SUSPECTS, rank_list(failures[0].ranks))]
    reports = []
    for phase in PHASES:
        if phase == "call" and broken == "setup":
            continue
        known = [by_phase[phase] for by_phase in by_rank.values() if phase in by_phase]
        if phase == broken:
            text = _failure_text(failures)
            report = _report(identity, phase, "failed", text, known, properties)
            last = {rank: list(by.values())[-1] for rank, by in by_rank.items() if by}
            report.sections = _sections(last) + [
                (f"Captured {stream} when it died [rank {rank}]", _prefixed(rank, text))
                for rank, said in last_output.items()
                for stream, text in said
            ]
        elif known and is_agreed(phase, by_rank):
            report = _agreed(identity, phase, by_rank, properties)
        else:
            report = _report(identity, phase, "passed", None, known, properties)
        reports.append(report)
    return reports


def _failure_text(failures: Sequence[Failure]) -> RankFailure:
    blocks = [
        f"{rank_list(failure.ranks)}: {failure.headline}\n\n{failure.text}".strip()
        for failure in failures
        if not failure.peer_lost or failure is failures[0]
    ]
    blocks += [
        f"{rank_list(failure.ranks)}: {failure.headline} (a consequence)"
        for failure in failures[1:]
        if failure.peer_lost
    ]
    text = RankFailure("\n\n".join(blocks))
    message = f"{rank_list(failures[0].ranks)}: {failures[0].headline}"
    text.reprcrash = types.SimpleNamespace(message=message)
    return text


def _report(
    identity: TestIdentity,
    phase: Phase,
    outcome: Literal["passed", "failed", "skipped"],
    longrepr: Any,
    reports: Sequence[pytest.TestReport],
    properties: list[tuple[str, object]],
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=identity.nodeid,
        location=identity.location,
        keywords=identity.keywords,
        outcome=outcome,
        longrepr=longrepr,
        when=phase,
        duration=max((report.duration for report in reports), default=0.0),
        start=min((report.start for report in reports), default=0.0),
        stop=max((report.stop for report in reports), default=0.0),
        user_properties=properties,
    )


def _sections(reports: Mapping[int, pytest.TestReport]) -> list[tuple[str, str]]:
    """Captured output. The title begins as pytest's own: by that JUnit and HTML know it."""
    return [
        (f"{name} [rank {rank}]", _prefixed(rank, text))
        for rank, report in sorted(reports.items())
        for name, text in report.sections
        if text.strip()
    ]


def _prefixed(rank: int, text: str) -> str:
    """Each line with its rank: JUnit joins sections and drops their titles."""
    return "".join(f"[rank {rank}] {line}" for line in text.splitlines(keepends=True))
