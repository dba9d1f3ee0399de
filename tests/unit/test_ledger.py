"""pytest's reports become results, findings, measurements, and what was not checked."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.ledger import Ledger, headline
from pytest_gpucluster.ranks import merge
from pytest_gpucluster.verdict.findings import Measurement
from pytest_gpucluster.verdict.recorder import Findings
from pytest_gpucluster.verdict.verdict import CheckResult

BUILTIN = "gpucluster/test_nvlink.py::test_links_up"
OWN = "test_site.py::test_rack"
Properties = list[tuple[str, object]]


def report(
    when: str,
    outcome: str = "passed",
    longrepr: Any = None,
    check: str = BUILTIN,
    properties: Properties | None = None,
    duration: float = 0.5,
) -> pytest.TestReport:
    return pytest.TestReport(
        check,
        (check.partition("::")[0], 1, check),
        {},
        outcome,  # type: ignore[arg-type]
        longrepr,
        when,  # type: ignore[arg-type]
        user_properties=properties or [],
        duration=duration,
    )


def result(*reports: pytest.TestReport) -> CheckResult:
    ledger = Ledger()
    for entry in reports:
        ledger.add(entry)
    (found,) = ledger.results("node-1")
    return found


def skipped(reason: str, when: str = "call") -> pytest.TestReport:
    return report(when, "skipped", ("test_nvlink.py", 4, f"Skipped: {reason}"))


def failure(check: str = BUILTIN, properties: Properties | None = None) -> CheckResult:
    return result(
        report("setup", check=check, properties=properties),
        report("call", "failed", "AssertionError: no\nmore", check, properties),
        report("teardown", check=check, properties=properties),
    )


def recorded(severity: str | None = "fail") -> Properties:
    """Properties of a check that reported a finding and a measurement."""
    properties: Properties = []
    recorder = Findings("node-1", BUILTIN, properties)
    if severity is not None:
        recorder.report(
            severity,  # type: ignore[arg-type]
            "nvlink.links_down",
            "GPU2",
            "0 of 18 links",
            next_step="reseat",
        )
    recorder.measured(Measurement("links", 0, "links"))
    return properties


def test_a_check_that_passed() -> None:
    found = result(report("setup"), report("call"), report("teardown"))
    assert (found.check, found.node, found.outcome, found.reason) == (
        BUILTIN,
        "node-1",
        "passed",
        None,
    )
    assert found.duration_s == 1.5
    assert found.builtin
    assert not found.distributed


@pytest.mark.parametrize("when", ["setup", "call"])
def test_a_check_that_was_skipped_says_why(when: str) -> None:
    found = result(skipped("no NVLink here", when), report("teardown"))
    assert (found.outcome, found.reason) == ("skipped", "no NVLink here")


def test_a_check_that_never_got_to_its_call_did_not_run() -> None:
    found = result(report("setup"))
    assert (found.outcome, found.reason) == ("not_run", "it did not finish")


def test_a_users_test_that_fails_has_failed() -> None:
    found = failure(OWN)
    assert (found.outcome, found.reason) == ("failed", "AssertionError: no")
    assert not found.builtin


def test_a_built_in_check_that_fails_by_its_finding_has_failed() -> None:
    assert failure(properties=recorded()).outcome == "failed"


@pytest.mark.parametrize("severity", [None, "warn"])
def test_a_built_in_check_that_fails_without_one_has_crashed(severity: str | None) -> None:
    assert failure(properties=recorded(severity)).outcome == "crashed"


def test_a_built_in_check_that_fails_on_its_ranks_has_failed() -> None:
    found = failure(properties=[(merge.RANKS, 8), (merge.SUSPECTS, "rank 2")])
    assert found.outcome == "failed"
    assert found.distributed
    assert (found.ranks, found.suspects) == (8, "rank 2")


def test_a_failure_in_teardown_is_a_failure() -> None:
    found = result(
        report("setup", check=OWN),
        report("call", check=OWN),
        report("teardown", "failed", "E", check=OWN),
    )
    assert found.outcome == "failed"


def test_what_every_phase_repeats_is_taken_once() -> None:
    ledger = Ledger()
    properties = recorded()
    new = [
        ledger.add(report(when, properties=properties)) for when in ("setup", "call", "teardown")
    ]
    assert [len(measurements) for measurements in new] == [1, 0, 0]
    assert len(ledger.findings) == 1
    assert len(ledger.measurements) == 1


def test_equal_findings_of_different_checks_are_both_kept() -> None:
    ledger = Ledger()
    ledger.add(report("call", properties=recorded()))
    ledger.add(report("call", check=OWN, properties=recorded()))
    assert len(ledger.findings) == 2


def test_what_was_not_checked_is_told_apart() -> None:
    properties: Properties = []
    recorder = Findings("node-1", BUILTIN, properties)
    recorder.unverified("the links could not be read")
    recorder.not_applicable("no NVLink here")
    ledger = Ledger()
    ledger.add(report("call", properties=properties))
    assert [entry.reason for entry in ledger.unverified] == ["the links could not be read"]
    assert [entry.reason for entry in ledger.not_applicable] == ["no NVLink here"]
    assert not ledger.findings


def test_properties_of_other_plugins_are_left_alone() -> None:
    ledger = Ledger()
    assert ledger.add(report("call", properties=[("rack", "not JSON"), ("seed", 7)])) == []


@pytest.mark.parametrize(
    ("longrepr", "line"),
    [
        (("f.py", 1, "Skipped: no GPU"), "no GPU"),
        ("first\nsecond", "first"),
        ("", "no reason given"),
        (None, "no reason given"),
    ],
)
def test_the_headline_of_a_report(longrepr: Any, line: str) -> None:
    assert headline(report("call", "failed", longrepr)) == line


def test_the_headline_of_a_failed_assertion_is_its_message(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it():\n    x = 3\n    assert x == 4, 'three is not four'")
    reprec = pytester.inline_run()
    (failed,) = reprec.getfailures("pytest_runtest_logreport")
    assert isinstance(failed, pytest.TestReport)
    assert headline(failed) == "AssertionError: three is not four"


def test_a_ledger_knows_the_names_that_ranks_use() -> None:
    from pytest_gpucluster import ledger

    assert (ledger.RANKS, ledger.SUSPECTS) == (merge.RANKS, merge.SUSPECTS)


def rerun(check: str) -> pytest.TestReport:
    entry = report("call", "failed", "OSError: once", check)
    entry.outcome = "rerun"  # type: ignore[assignment]
    return entry


def test_a_built_in_check_that_passes_only_when_run_again_has_failed() -> None:
    passes = [report("setup"), report("call"), report("teardown")]
    found = result(report("setup"), rerun(BUILTIN), *passes)
    assert found.outcome == "crashed"  # it failed without a finding of its own
    assert found.reason == "OSError: once"


def test_a_test_of_the_users_that_passes_when_run_again_is_a_warning() -> None:
    ledger = Ledger()
    for entry in (rerun(OWN), report("call", check=OWN)):
        ledger.add(entry)
    assert [entry.outcome for entry in ledger.results("node-1")] == ["passed"]
    (finding,) = ledger.flaky("node-1")
    assert (finding.severity, finding.code, finding.check) == ("warn", "check.flaky", OWN)

    ledger.add(report("call", "failed", "OSError: twice", OWN))
    assert ledger.flaky("node-1") == []
