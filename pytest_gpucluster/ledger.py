"""pytest's reports → results of checks, findings, measurements, and what was not checked."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.collection import is_builtin
from pytest_gpucluster.verdict.findings import (
    FINDING,
    MEASUREMENT,
    NOT_APPLICABLE,
    UNVERIFIED,
    Finding,
    Measurement,
    NotChecked,
    decode,
)

if TYPE_CHECKING:
    from pytest_gpucluster.verdict.verdict import CheckResult, Outcome

RANKS = "gpucluster.ranks"
SUSPECTS = "gpucluster.suspects"
RERUN = "rerun"  # what pytest-rerunfailures calls a failure that gets another chance


@dataclass
class Ledger:
    """What the reports of a run said, in the order in which it was said."""

    findings: list[Finding] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    unverified: list[NotChecked] = field(default_factory=list)
    not_applicable: list[NotChecked] = field(default_factory=list)
    reports: dict[str, dict[str, pytest.TestReport]] = field(default_factory=dict)
    failed_before: dict[str, pytest.TestReport] = field(default_factory=dict)
    _seen: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, report: pytest.TestReport) -> list[Measurement]:
        """Take one report; returns the measurements it brought for the first time."""
        if report.outcome == RERUN:
            self.failed_before.setdefault(report.nodeid, report)
        self.reports.setdefault(report.nodeid, {})[report.when] = report
        new = []
        for key, value in report.user_properties:
            mark = (report.nodeid, key, str(value))
            if mark not in self._seen:
                self._seen.add(mark)
                new.append((key, value))
        measured = decode(new, MEASUREMENT, Measurement)
        self.findings += decode(new, FINDING, Finding)
        self.unverified += decode(new, UNVERIFIED, NotChecked)
        self.not_applicable += decode(new, NOT_APPLICABLE, NotChecked)
        self.measurements += measured
        return measured

    def results(self, node: str) -> list[CheckResult]:
        """One result per test."""
        failed = {finding.check for finding in self.findings if finding.severity == "fail"}
        return [
            _result(nodeid, node, self._with_first_failure(nodeid, phases), nodeid in failed)
            for nodeid, phases in self.reports.items()
        ]

    def _with_first_failure(
        self, nodeid: str, phases: dict[str, pytest.TestReport]
    ) -> dict[str, pytest.TestReport]:
        """A built-in check stays failed, however often pytest-rerunfailures runs it."""
        first = self.failed_before.get(nodeid)
        if first is None or not is_builtin(nodeid):
            return phases
        failed = copy.copy(first)
        failed.outcome = "failed"
        return {**phases, failed.when: failed}

    def flaky(self, node: str) -> list[Finding]:
        """Tests of the user's that passed only when they were run again."""
        return [
            Finding(
                "warn",
                "check.flaky",
                str(dict(report.user_properties).get(SUSPECTS, "node")),
                f"failed, and passed when it was run again: {headline(report)}",
                next_step="A fault that comes and goes is a fault: run the test many times.",
                node=node,
                check=nodeid,
            )
            for nodeid, report in self.failed_before.items()
            if not is_builtin(nodeid) and not any(r.failed for r in self.reports[nodeid].values())
        ]


def _result(
    nodeid: str, node: str, phases: dict[str, pytest.TestReport], has_finding: bool
) -> CheckResult:
    from pytest_gpucluster.verdict.verdict import CheckResult

    properties = {key: value for report in phases.values() for key, value in report.user_properties}
    ranks = properties.get(RANKS)
    outcome, reason = _outcome(nodeid, phases, has_finding, on_ranks=ranks is not None)
    suspects = properties.get(SUSPECTS)
    return CheckResult(
        check=nodeid,
        node=node,
        outcome=outcome,
        reason=reason,
        duration_s=sum(report.duration for report in phases.values()),
        builtin=is_builtin(nodeid),
        distributed=ranks is not None,
        ranks=int(str(ranks)) if ranks is not None else None,
        suspects=str(suspects) if suspects is not None else None,
    )


def _outcome(
    nodeid: str, phases: dict[str, pytest.TestReport], has_finding: bool, *, on_ranks: bool
) -> tuple[Outcome, str | None]:
    """A built-in check that fails without a finding of its own has crashed, unless it failed
    on its ranks: there an exception is the hardware's until proven otherwise."""
    failed = next((report for report in phases.values() if report.failed), None)
    if failed is not None:
        crashed = is_builtin(nodeid) and not has_finding and not on_ranks
        return ("crashed" if crashed else "failed"), headline(failed)
    skipped = next((report for report in phases.values() if report.skipped), None)
    if skipped is not None:
        return "skipped", headline(skipped)
    if "call" not in phases:
        return "not_run", "it did not finish"
    return "passed", None


def headline(report: pytest.TestReport) -> str:
    """The one line that says why a test failed or was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", None) or report.longreprtext).strip()
    return text.splitlines()[0] if text else "no reason given"
