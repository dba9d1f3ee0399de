"""The ranks' reports of one test → pytest's three reports, one outcome.

A test passes only when every rank said so. What failed first and is not merely the loss of a
peer comes first; equal failures are shown once.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from pytest_gpucluster.ranks import autopsy
from pytest_gpucluster.ranks.autopsy import rank_list
from pytest_gpucluster.ranks.results import GroupResult, RankResult

Phase = Literal["setup", "call", "teardown"]
PHASES: tuple[Phase, ...] = ("setup", "call", "teardown")
SUSPECTS = "gpucluster.suspects"  # user property: "rank 2" or "ranks 1-7"
RANKS = "gpucluster.ranks"  # user property: how many ranks ran the test
ADDRESS = re.compile(r"0x[0-9a-f]+")


ByRank = Mapping[int, Mapping[Phase, pytest.TestReport]]


class RankFailure(str):
    """The text of a merged failure, with the one-line message pytest's summary asks for."""

    reprcrash: types.SimpleNamespace


@dataclass(frozen=True)
class Failure:
    """What one or more ranks have to say about a failed test."""

    ranks: tuple[int, ...]
    phase: Phase
    headline: str
    text: str
    at: float
    peer_lost: bool = False


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
    by_rank = {
        result.rank: {report.when: report for report in map(restore, result.reports)}
        for result in outcome.ranks
    }
    failures = order(find_failures(outcome, by_rank))
    properties = _properties(by_rank, len(outcome.ranks))
    if failures:
        return _failed(identity, failures, by_rank, properties)
    return [
        _agreed(identity, phase, by_rank, properties)
        for phase in PHASES
        if any(phase in reports for reports in by_rank.values())
    ]


def find_failures(outcome: GroupResult, by_rank: ByRank) -> list[Failure]:
    """Everything that went wrong, one entry per rank or per group of ranks."""
    found = []
    for result in outcome.ranks:
        reports = by_rank[result.rank]
        if result.state == "died":
            text = f"died ({result.ended}) before it reported its result"
            found.append(_own(result, reports, text))
        elif result.state == "unknown_test":
            text = "did not collect this test: its collection differs from the leader's"
            found.append(_own(result, reports, text))
        for phase in PHASES:
            report = reports.get(phase)
            if report is not None and report.failed:
                found.append(_from_report(result, phase, report))
    hung = [result for result in outcome.ranks if result.state == "hung"]
    if hung and outcome.cut_off_s is not None:
        found.append(_hang(outcome, hung, by_rank))
    if not found:
        found += _disagreement(by_rank)
    return found


def order(failures: Sequence[Failure]) -> list[Failure]:
    """Root cause first: the earliest that is not a lost-peer message. Equal ones joined."""
    joined: dict[tuple[Phase, str], Failure] = {}
    for failure in sorted(failures, key=lambda entry: (entry.peer_lost, entry.at)):
        key = (failure.phase, ADDRESS.sub("0x…", failure.text))
        first = joined.get(key)
        if first is None:
            joined[key] = failure
        else:
            ranks = tuple(sorted({*first.ranks, *failure.ranks}))
            joined[key] = Failure(
                ranks, first.phase, first.headline, first.text, first.at, first.peer_lost
            )
    return list(joined.values())


def _own(result: RankResult, reports: Mapping[Phase, pytest.TestReport], headline: str) -> Failure:
    phase: Phase = "setup" if "setup" not in reports else "call"
    if "call" in reports:
        phase = "teardown"
    return Failure((result.rank,), phase, headline, "", result.failed_at or 0.0)


def _from_report(result: RankResult, phase: Phase, report: pytest.TestReport) -> Failure:
    text = report.longreprtext
    crash = getattr(report.longrepr, "reprcrash", None)
    headline = str(getattr(crash, "message", None) or text).strip().splitlines() or ["failed"]
    lost = autopsy.peer_was_lost(headline[0])
    return Failure((result.rank,), phase, headline[0], text, result.failed_at or 0.0, lost)


def _hang(
    outcome: GroupResult,
    hung: Sequence[RankResult],
    by_rank: ByRank,
) -> Failure:
    story = autopsy.narrate(outcome.ranks)
    guilty = autopsy.suspects(outcome.ranks)
    waiting = [result.rank for result in hung]
    if outcome.waited_for_peers:
        headline = "still waited for a failed rank and had to be ended"
    else:
        headline = f"no answer within {outcome.cut_off_s:.1f} s: {story}"
    stacks = "\n\n".join(
        f"rank {result.rank}, innermost call first:\n{autopsy.own_frames(result.stack)}"
        for result in hung
    )
    phase: Phase = "call" if any("setup" in by_rank[result.rank] for result in hung) else "setup"
    return Failure(
        tuple(guilty or waiting),
        phase,
        headline,
        f"{story}\n\n{stacks}",
        float("inf"),
        peer_lost=outcome.waited_for_peers,
    )


def _disagreement(by_rank: ByRank) -> list[Failure]:
    for phase in PHASES:
        said: dict[str, list[int]] = {}
        for rank, reports in by_rank.items():
            said.setdefault(_verdict_of(reports.get(phase)), []).append(rank)
        if len(said) > 1:
            text = "the ranks disagree: " + "; ".join(
                f"{rank_list(ranks)} {what}" for what, ranks in said.items()
            )
            odd = min(said, key=lambda what: (len(said[what]), what == "passed"))
            return [Failure(tuple(said[odd]), phase, text, "", 0.0)]
    return []


def _is_agreed(phase: Phase, by_rank: ByRank) -> bool:
    verdicts = {_verdict_of(reports.get(phase)) for reports in by_rank.values()}
    return len(verdicts) == 1 and "failed" not in verdicts


def _verdict_of(report: pytest.TestReport | None) -> str:
    if report is None:
        return "did not run this phase"
    if hasattr(report, "wasxfail"):
        return "xpassed" if report.passed else f"xfailed ({report.wasxfail})"
    if report.skipped:
        return f"skipped ({_skip_reason(report)})"
    return str(report.outcome)


def _skip_reason(report: pytest.TestReport) -> str:
    """The text of a skip; JSON has turned pytest's (file, line, reason) into a list."""
    if isinstance(report.longrepr, (list, tuple)):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext


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
    return merged


def _failed(
    identity: TestIdentity,
    failures: Sequence[Failure],
    by_rank: ByRank,
    properties: list[tuple[str, object]],
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
            report.sections = _sections(last)
        elif known and _is_agreed(phase, by_rank):
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
    return [
        (f"[rank {rank}] {name}", text)
        for rank, report in sorted(reports.items())
        for name, text in report.sections
        if text.strip()
    ]
