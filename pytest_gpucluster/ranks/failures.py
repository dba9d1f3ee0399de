"""What went wrong in one test, rank by rank, and which of it is the root cause."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from pytest_gpucluster.ranks import autopsy
from pytest_gpucluster.ranks.naming import rank_list
from pytest_gpucluster.ranks.results import GroupResult, RankResult
from pytest_gpucluster.ranks.stacks import own_frames

Phase = Literal["setup", "call", "teardown"]
PHASES: tuple[Phase, ...] = ("setup", "call", "teardown")
PEER = "a peer was lost"  # in whatever words: addresses and ports differ
ADDRESS = re.compile(r"0x[0-9a-f]+")

ByRank = Mapping[int, Mapping[Phase, pytest.TestReport]]


@dataclass(frozen=True)
class Failure:
    """What one or more ranks have to say about a failed test.

    ``alike`` is what failures of several ranks must share to be shown once.
    """

    ranks: tuple[int, ...]
    phase: Phase
    headline: str
    text: str
    at: float
    peer_lost: bool = False
    alike: str = ""


def find_failures(outcome: GroupResult, by_rank: ByRank) -> list[Failure]:
    """Everything that went wrong, one entry per rank or per group of ranks."""
    found = []
    for result in outcome.ranks:
        reports = by_rank[result.rank]
        if result.state == "died":
            found.append(_death(result, reports, outcome))
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
    if outcome.difference is not None and (outcome.waited_for_peers or not hung):
        headline = outcome.difference.describe()
        found.append(Failure(outcome.difference.odd, "call", headline, "", float("-inf")))
    if not found:
        found += _disagreement(by_rank)
    return found


def order(failures: Sequence[Failure]) -> list[Failure]:
    """Root cause first: the earliest that is not a lost-peer message. Equal ones joined."""
    joined: dict[tuple[Phase, str], Failure] = {}
    for failure in sorted(failures, key=lambda entry: (entry.peer_lost, entry.at)):
        alike = PEER if failure.peer_lost else failure.alike or failure.text
        key = (failure.phase, ADDRESS.sub("0x…", alike))
        first = joined.setdefault(key, failure)
        joined[key] = replace(first, ranks=tuple(sorted({*first.ranks, *failure.ranks})))
    return list(joined.values())


def _own(result: RankResult, reports: Mapping[Phase, pytest.TestReport], headline: str) -> Failure:
    return Failure((result.rank,), _phase(result, reports), headline, "", result.failed_at or 0.0)


def _phase(result: RankResult, reports: Mapping[Phase, pytest.TestReport]) -> Phase:
    """Where a rank was when it ended: it says so itself; else after its last report."""
    for phase in PHASES:
        if result.standing is not None and result.standing.phase == phase:
            return phase
    return next((phase for phase in PHASES if phase not in reports), "teardown")


def _death(
    result: RankResult, reports: Mapping[Phase, pytest.TestReport], outcome: GroupResult
) -> Failure:
    known = [
        result.activity,
        result.standing.describe() if result.standing else None,
        own_frames(result.stack) if result.stack else None,
    ]
    failure = _own(result, reports, f"died ({result.ended}) before it reported its result")
    # Gloo aborts a rank that receives more than it asked for: the victim of a mismatch.
    by_mismatch = outcome.difference is not None and result.ended == "signal SIGABRT"
    return replace(failure, text="\n".join(part for part in known if part), peer_lost=by_mismatch)


def _from_report(result: RankResult, phase: Phase, report: pytest.TestReport) -> Failure:
    text = report.longreprtext
    crash = getattr(report.longrepr, "reprcrash", None)
    # Not the whole text: pytest prints the test's arguments, and those name the rank.
    alike = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else text
    said = str(crash.message if crash else text).strip().splitlines() or ["failed"]
    lost = autopsy.peer_was_lost(said[0])
    at = result.failed_at or 0.0
    return Failure((result.rank,), phase, said[0], text, at, lost, alike)


def _hang(
    outcome: GroupResult,
    hung: Sequence[RankResult],
    by_rank: ByRank,
) -> Failure:
    story = autopsy.narrate(outcome.ranks)
    guilty = waiting = [result.rank for result in hung]
    if outcome.waited_for_peers:
        headline = "still waited for a failed rank and had to be ended"
    elif outcome.difference is not None:
        guilty = list(outcome.difference.odd)
        said = outcome.difference.describe()
        headline = f"no answer within {outcome.cut_off_s:.1f} s: {said}; {story}"
    else:
        guilty = autopsy.suspects(outcome.ranks) or waiting
        headline = f"no answer within {outcome.cut_off_s:.1f} s: {story}"
    stacks = "\n\n".join(
        f"rank {result.rank}, innermost call first:\n{own_frames(result.stack)}" for result in hung
    )
    phase = min((_phase(result, by_rank[result.rank]) for result in hung), key=PHASES.index)
    return Failure(
        tuple(guilty),
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


def is_agreed(phase: Phase, by_rank: ByRank) -> bool:
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
