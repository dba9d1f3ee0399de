"""What the findings mean for a node, and for the cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    lost: str | None = None,
) -> NodeVerdict:
    """Judge one node.

    ``required``: ids of checks that must have passed, failed, or said that they do not apply; an
    id without parameters stands for all of its cases. ``optional``: globs of ids that need not
    verify anything. ``deselected``: ids left out on the command line. ``lost``: why the node
    stopped answering. Nothing checked is never accepted.
    """
    found = list(findings)
    folded = fold([*found, *_findings_of_failures(results, found)])
    said = list(unverified)
    absent = [*not_applicable, *(_waived(e) for e in said if _matches(e.check, optional))]
    excused = {entry.check for entry in absent}
    gaps = _once(
        [entry for entry in said if not _matches(entry.check, optional)],
        _missing(name, results, required, optional, deselected, excused),
    )
    if lost is not None:
        gaps.insert(0, NotChecked("", f"the node was lost: {lost}", name))
    if not gaps and not any(result.outcome == "passed" for result in results):
        gaps.append(NotChecked("", "no check has passed", name))
    verdict: VerdictName
    if any(finding.severity == "fail" for finding in folded):
        verdict = "rejected"
    elif lost is not None:
        verdict = "lost"
    elif gaps:
        verdict = "unverified"
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
    numbers = Counter(node.verdict for node in nodes)
    present = [verdict for verdict in WORST_FIRST if numbers[verdict]]
    worst: VerdictName = present[0] if present else "unverified"
    return Verdict(
        verdict=worst,
        mode=mode,
        started=started,
        duration_s=duration_s,
        level=level,
        profile=profile,
        versions=versions,
        counts={verdict: numbers[verdict] for verdict in present},
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
            (result.reason or "the test failed").removeprefix(f"{result.suspects}: "),
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
    """Checks that were wanted and did not judge, and every check that crashed."""
    wanted = [check for check in required if not _matches(check, optional)]
    gaps = []
    for check in wanted:
        if not any(_is_case_of(result.check, check) for result in results):
            left_out = any(_is_case_of(item, check) for item in deselected)
            reason = "deselected on the command line" if left_out else "it was not run"
            gaps.append(NotChecked(check, reason, node))
    for result in results:
        if result.outcome == "crashed":
            reason = f"the check itself crashed: {result.reason}"
        elif result.outcome in ("passed", "failed") or result.check in excused:
            continue
        elif any(_is_case_of(result.check, check) for check in wanted):
            reason = (result.reason or result.outcome.replace("_", " ")).removeprefix(
                "unverified: "
            )
        else:
            continue
        gaps.append(NotChecked(result.check, reason, node))
    return gaps


def _is_case_of(item: str, check: str) -> bool:
    """``test_x.py::test_y[4]`` is a case of ``test_x.py::test_y``."""
    return item == check or item.startswith(f"{check}[")


def _waived(entry: NotChecked) -> NotChecked:
    return replace(entry, reason=f"not verified, and the profile calls it optional: {entry.reason}")


def _once(said: Sequence[NotChecked], missing: Sequence[NotChecked]) -> list[NotChecked]:
    """A check that said itself why it is unverified is not named a second time."""
    known = {entry.check for entry in said}
    more = [entry for entry in missing if entry.check not in known]
    return list({(entry.check, entry.reason): entry for entry in [*said, *more]}.values())


def _matches(check: str, globs: Sequence[str]) -> bool:
    """Whether a glob names the check, or the check that it is a case of."""
    return any(fnmatchcase(check, g) or fnmatchcase(check.split("[")[0], g) for g in globs)
