"""What the findings mean for a node, and for the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from pytest_gpucluster.verdict.causes import fold
from pytest_gpucluster.verdict.exitcodes import exit_code
from pytest_gpucluster.verdict.findings import Finding, Measurement, NotChecked

SCHEMA_VERSION = 1
Outcome = Literal["passed", "failed", "crashed", "skipped", "not_run"]
Mode = Literal["live", "rehearsal", "evidence"]
VerdictName = Literal[
    "accepted", "accepted_with_warnings", "rejected", "unverified", "lost", "rehearsed"
]
# The worst of the nodes is the cluster's.
WORST_FIRST: tuple[VerdictName, ...] = (
    "rejected",
    "lost",
    "unverified",
    "accepted_with_warnings",
    "accepted",
    "rehearsed",
)


@dataclass(frozen=True)
class CheckResult:
    """How one test ended on one node. ``suspects``: the ranks a failure is blamed on."""

    check: str
    node: str
    outcome: Outcome
    reason: str | None = None
    duration_s: float = 0.0
    builtin: bool = True
    distributed: bool = False
    ranks: int | None = None
    suspects: str | None = None


@dataclass(frozen=True)
class NodeVerdict:
    """One node: its verdict and everything it rests on, findings worst first."""

    name: str
    verdict: VerdictName
    findings: tuple[Finding, ...] = ()
    unverified: tuple[NotChecked, ...] = ()
    not_applicable: tuple[NotChecked, ...] = ()
    checks: tuple[CheckResult, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What ``verdict.json`` holds; ``schema.json`` describes every field."""

    verdict: VerdictName
    mode: Mode
    started: str
    duration_s: float
    level: str
    profile: Mapping[str, str] | None
    versions: Mapping[str, str | None]
    counts: Mapping[str, int]
    nodes: tuple[NodeVerdict, ...]
    measurements: tuple[Measurement, ...]
    options: Mapping[str, Mapping[str, Any]]
    exit_code: int
    remarks: tuple[str, ...] = ()
    schema_version: int = field(default=SCHEMA_VERSION)


def judge_node(
    name: str,
    results: Sequence[CheckResult],
    findings: Iterable[Finding],
    unverified: Iterable[NotChecked],
    not_applicable: Iterable[NotChecked],
    required: Sequence[str],
    optional: Sequence[str] = (),
    deselected: Collection[str] = (),
    mode: Mode = "live",
) -> NodeVerdict:
    """Judge one node.

    ``required``: ids of checks that must have passed, failed, or said that they do not apply.
    ``optional``: globs of ids that may be missing. ``deselected``: ids left out on the command
    line. Nothing checked is never accepted.
    """
    found = [*findings, *_findings_of_failures(results, findings)]
    absent = list(not_applicable)
    excused = {entry.check for entry in absent}
    gaps = _once(
        [entry for entry in unverified if not _matches(entry.check, optional)],
        _missing(name, results, required, optional, deselected, excused),
    )
    folded = fold(found)
    passed = any(result.outcome == "passed" for result in results)
    verdict: VerdictName
    if any(finding.severity == "fail" for finding in folded):
        verdict = "rejected"
    elif gaps or not passed:
        verdict = "unverified"
        if not gaps:
            gaps = [NotChecked("", "no check has passed", name)]
    elif mode == "rehearsal":
        verdict = "rehearsed"
    else:
        verdict = "accepted_with_warnings" if folded else "accepted"
    return NodeVerdict(name, verdict, tuple(folded), tuple(gaps), tuple(absent), tuple(results))


def judge(
    nodes: Sequence[NodeVerdict],
    *,
    mode: Mode,
    started: str,
    duration_s: float,
    level: str,
    profile: Mapping[str, str] | None,
    versions: Mapping[str, str | None],
    measurements: Iterable[Measurement],
    options: Mapping[str, Mapping[str, Any]],
    pytest_status: int,
    remarks: tuple[str, ...] = (),
) -> Verdict:
    """The cluster's verdict: the worst of its nodes; without nodes nothing was verified."""
    verdicts = {node.verdict for node in nodes}
    worst = next((name for name in WORST_FIRST if name in verdicts), "unverified")
    return Verdict(
        verdict=worst,
        mode=mode,
        started=started,
        duration_s=duration_s,
        level=level,
        profile=profile,
        versions=versions,
        counts=dict(Counter(node.verdict for node in nodes)),
        nodes=tuple(nodes),
        measurements=tuple(measurements),
        options=options,
        exit_code=exit_code(worst, pytest_status),
        remarks=remarks,
    )


def _findings_of_failures(
    results: Sequence[CheckResult], findings: Iterable[Finding]
) -> list[Finding]:
    """A failure without a finding of its own must not be lost."""
    named = {finding.check for finding in findings if finding.severity == "fail"}
    return [
        Finding(
            "fail",
            "check.failed",
            result.suspects or "node",
            result.reason or "the test failed",
            next_step=f"Run it alone: pytest --gpucluster {result.check}",
            node=result.node,
            check=result.check,
        )
        for result in results
        if result.outcome == "failed" and result.check not in named
    ]


def _missing(
    node: str,
    results: Sequence[CheckResult],
    required: Sequence[str],
    optional: Sequence[str],
    deselected: Collection[str],
    excused: Collection[str],
) -> list[NotChecked]:
    by_check = {result.check: result for result in results}
    wanted = [check for check in required if not _matches(check, optional)]
    crashed = [r.check for r in results if r.outcome == "crashed" and r.check not in wanted]
    gaps = []
    for check in [*wanted, *crashed]:
        result = by_check.get(check)
        if result is None:
            left_out = check in deselected
            reason = "deselected on the command line" if left_out else "it was not run"
        elif result.outcome in ("passed", "failed") or check in excused:
            continue
        elif result.outcome == "crashed":
            reason = f"the check itself crashed: {result.reason}"
        else:
            reason = result.reason or result.outcome.replace("_", " ")
        gaps.append(NotChecked(check, reason.removeprefix("unverified: "), node))
    return gaps


def _once(said: Sequence[NotChecked], missing: Sequence[NotChecked]) -> list[NotChecked]:
    """A check that said itself why it is unverified is not named a second time."""
    known = {entry.check for entry in said}
    unique = {(entry.check, entry.reason): entry for entry in said}
    return [*unique.values(), *(entry for entry in missing if entry.check not in known)]


def _matches(check: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(check, glob) for glob in globs)
