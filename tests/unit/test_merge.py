"""The ranks' reports of one test become one outcome that names who is to blame."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpucluster.ranks.merge import RANKS, SUSPECTS, TestIdentity, merge
from pytest_gpucluster.ranks.results import GroupResult, RankResult

IDENTITY = TestIdentity("test_x.py::test_it", ("test_x.py", 3, "test_it"), {"test_it": 1})
PEER_LOST = "RuntimeError: [gloo/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"

WAITING = """\
Current thread 0x00007f01 (most recent call first):
  File "/venv/torch/distributed/distributed_c10d.py", line 3007 in all_reduce
  File "/venv/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/u/test_x.py", line 12 in test_it
  File "/venv/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call
  File "/venv/pytest_gpucluster/ranks/rank.py", line 190 in _run
"""
LOADING = """\
Current thread 0x00007f02 (most recent call first):
  File "/home/u/data.py", line 40 in load_batch
  File "/home/u/test_x.py", line 10 in test_it
  File "/venv/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call
  File "/venv/pytest_gpucluster/ranks/rank.py", line 190 in _run
"""


def report(when: str, outcome: str = "passed", longrepr: Any = None, **more: Any) -> dict[str, Any]:
    """A report as it arrives from a rank: through JSON."""
    wasxfail = more.pop("wasxfail", None)
    made = pytest.TestReport(
        IDENTITY.nodeid,
        IDENTITY.location,
        {},
        outcome,  # type: ignore[arg-type]
        longrepr,
        when,  # type: ignore[arg-type]
        **more,
    )
    if wasxfail is not None:
        made.wasxfail = wasxfail
    data: dict[str, Any] = json.loads(json.dumps(made._to_json()))
    return data


def phases(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [report("setup"), call, report("teardown")]


def passed(rank: int, **more: Any) -> RankResult:
    return RankResult(rank, "done", phases(report("call", **more)))


def failed(rank: int, text: str, at: float = 1.0) -> RankResult:
    return RankResult(rank, "done", phases(report("call", "failed", text)), failed_at=at)


def died(rank: int, at: float = 5.0, *reports: dict[str, Any]) -> RankResult:
    said = list(reports) or [report("setup")]
    return RankResult(rank, "died", said, failed_at=at, ended="signal SIGKILL")


def hung(rank: int, stack: str | None = WAITING, *reports: dict[str, Any]) -> RankResult:
    return RankResult(rank, "hung", list(reports) or [report("setup")], stack=stack)


def merged(*ranks: RankResult, **more: Any) -> list[pytest.TestReport]:
    return merge(IDENTITY, GroupResult(tuple(ranks), **more), pytest.TestReport._from_json)


def the_failure(reports: list[pytest.TestReport]) -> pytest.TestReport:
    found = [report for report in reports if report.failed]
    assert len(found) == 1, "one failed test is one failed phase"
    return found[0]


def message(report: pytest.TestReport) -> str:
    """What pytest's short summary prints."""
    return str(report.longrepr.reprcrash.message)  # type: ignore[union-attr]


def suspects(report: pytest.TestReport) -> object:
    return dict(report.user_properties)[SUSPECTS]


# Passing


def test_a_test_passes_when_every_rank_said_so() -> None:
    reports = merged(passed(0), passed(1), passed(2))
    assert [(r.when, r.outcome) for r in reports] == [
        ("setup", "passed"),
        ("call", "passed"),
        ("teardown", "passed"),
    ]
    for merged_report in reports:
        assert merged_report.nodeid == IDENTITY.nodeid
        assert merged_report.location == IDENTITY.location
        assert dict(merged_report.user_properties) == {RANKS: 3}


@pytest.mark.parametrize("missing", ["setup", "call", "teardown"])
def test_a_rank_that_is_done_without_a_report_does_not_pass(missing: str) -> None:
    silent = passed(1)
    silent.reports = [entry for entry in silent.reports if entry["when"] != missing]
    reports = merged(passed(0), silent, passed(2))
    failure = the_failure(reports)
    assert failure.when == missing
    assert message(failure).startswith("rank 1: the ranks disagree")
    assert "rank 1 did not run this phase" in message(failure)


def test_the_slowest_rank_is_the_duration() -> None:
    reports = merged(
        passed(0, duration=1.0, start=10.0, stop=11.0),
        passed(1, duration=3.0, start=9.0, stop=12.0),
    )
    call = reports[1]
    assert (call.duration, call.start, call.stop) == (3.0, 9.0, 12.0)


def test_what_ranks_printed_is_kept_under_their_numbers() -> None:
    reports = merged(
        passed(1, sections=[("Captured stdout call", "one\n")]),
        passed(0, sections=[("Captured stdout call", "zero\n"), ("Captured log call", " \n")]),
    )
    assert reports[1].sections == [
        ("[rank 0] Captured stdout call", "zero\n"),
        ("[rank 1] Captured stdout call", "one\n"),
    ]


def test_what_all_ranks_recorded_is_kept_once_what_one_recorded_too() -> None:
    both = [("seed", 7)]
    reports = merged(
        passed(0, user_properties=both),
        passed(1, user_properties=[*both, ("temperature", 71)]),
    )
    for merged_report in reports:
        assert merged_report.user_properties == [(RANKS, 2), ("seed", 7), ("temperature", 71)]


# Failing


def test_one_failed_rank_fails_the_test_and_is_named() -> None:
    reports = merged(passed(0), failed(1, "assert 3 == 4"), passed(2))
    failure = the_failure(reports)
    assert failure.when == "call"
    assert message(failure) == "rank 1: assert 3 == 4"
    assert suspects(failure) == "rank 1"
    assert str(failure.longrepr).startswith("rank 1: assert 3 == 4")


def test_a_failure_in_setup_is_reported_there_and_the_call_is_not() -> None:
    broken = RankResult(
        1, "done", [report("setup", "failed", "no fixture"), report("teardown")], failed_at=1.0
    )
    reports = merged(passed(0), broken)
    assert [(r.when, r.outcome) for r in reports] == [("setup", "failed"), ("teardown", "passed")]


def test_a_failure_in_teardown_leaves_the_call_passed() -> None:
    broken = RankResult(
        1,
        "done",
        [report("setup"), report("call"), report("teardown", "failed", "left a file")],
        failed_at=1.0,
    )
    reports = merged(passed(0), broken)
    assert [r.outcome for r in reports] == ["passed", "passed", "failed"]


def test_equal_failures_are_shown_once() -> None:
    ranks = [failed(rank, "assert loss < 1") for rank in range(1, 8)]
    failure = the_failure(merged(passed(0), *ranks))
    assert message(failure) == "ranks 1-7: assert loss < 1"
    assert str(failure.longrepr).count("assert loss < 1") == 2, "headline and text"
    assert suspects(failure) == "ranks 1-7"


def test_failures_that_differ_only_by_an_address_are_equal() -> None:
    failure = the_failure(
        merged(failed(0, "<Tensor at 0x7f0a> is bad"), failed(1, "<Tensor at 0x7f0b> is bad"))
    )
    assert suspects(failure) == "ranks 0,1"


def test_different_failures_are_all_shown_the_earliest_first() -> None:
    failure = the_failure(merged(failed(0, "second", at=2.0), failed(1, "first", at=1.0)))
    text = str(failure.longrepr)
    assert message(failure) == "rank 1: first"
    assert text.index("rank 1: first") < text.index("rank 0: second")
    assert suspects(failure) == "rank 1"


def test_a_lost_peer_is_never_the_root_even_if_it_spoke_first() -> None:
    failure = the_failure(
        merged(failed(0, PEER_LOST, at=1.0), failed(1, "ValueError: bad shape", at=2.0))
    )
    assert message(failure) == "rank 1: ValueError: bad shape"
    assert suspects(failure) == "rank 1"
    consequence = str(failure.longrepr).partition("rank 0: ")[2]
    assert consequence.endswith("(a consequence)")


def test_a_death_outranks_the_peers_that_noticed_it_first() -> None:
    failure = the_failure(
        merged(failed(0, PEER_LOST, at=1.0), failed(1, PEER_LOST, at=1.1), died(2, 5.0))
    )
    assert message(failure) == ("rank 2: died (signal SIGKILL) before it reported its result")
    assert suspects(failure) == "rank 2"
    assert "ranks 0,1: RuntimeError" in str(failure.longrepr)


def test_a_lost_peer_is_shown_in_full_if_nothing_else_is_known() -> None:
    failure = the_failure(merged(failed(0, PEER_LOST), passed(1)))
    assert message(failure) == f"rank 0: {PEER_LOST}"
    assert "consequence" not in str(failure.longrepr)


@pytest.mark.parametrize(
    ("heard", "phase"),
    [
        ([], "setup"),
        ([report("setup")], "call"),
        ([report("setup"), report("call")], "teardown"),
    ],
    ids=["nothing heard", "after setup", "after call"],
)
def test_a_death_is_reported_in_the_phase_it_happened_in(
    heard: list[dict[str, Any]], phase: str
) -> None:
    dead = RankResult(1, "died", heard, failed_at=1.0, ended="exit code 3")
    failure = the_failure(merged(passed(0), dead))
    assert failure.when == phase
    assert "exit code 3" in message(failure)


def test_a_rank_that_does_not_know_the_test_fails_it() -> None:
    stranger = RankResult(1, "unknown_test", failed_at=1.0)
    failure = the_failure(merged(passed(0), stranger))
    assert "rank 1: did not collect this test" in message(failure)


# Hanging


def test_a_hang_names_who_waits_and_who_did_not_arrive() -> None:
    ranks = [hung(0), hung(1), hung(2, LOADING), hung(3)]
    failure = the_failure(merged(*ranks, cut_off_s=30.04))
    assert message(failure) == (
        "rank 2: no answer within 30.0 s: ranks 0,1,3 wait in all_reduce at test_x.py:12; "
        "rank 2 in load_batch at data.py:40"
    )
    assert failure.when == "call"
    assert suspects(failure) == "rank 2"
    text = str(failure.longrepr)
    assert 'File "/home/u/data.py", line 40 in load_batch' in text
    assert "_pytest" not in text


def test_a_rank_that_finished_early_is_told_and_not_blamed_on_the_waiting() -> None:
    failure = the_failure(merged(hung(0), passed(1), cut_off_s=5.0))
    assert message(failure).startswith("rank 0: no answer within 5.0 s: ")
    assert message(failure).endswith("in all_reduce at test_x.py:12; rank 1 finished")


def test_when_everybody_waits_everybody_is_named() -> None:
    failure = the_failure(merged(hung(0), hung(1), cut_off_s=5.0))
    assert suspects(failure) == "ranks 0,1"


def test_a_hang_before_any_setup_is_a_failure_of_setup() -> None:
    silent = RankResult(0, "hung", [], stack=WAITING)
    assert the_failure(merged(silent, passed(1), cut_off_s=5.0)).when == "setup"


def test_ranks_that_waited_for_a_failed_one_are_a_consequence() -> None:
    failure = the_failure(
        merged(hung(0), failed(1, "ValueError: bad"), cut_off_s=2.0, waited_for_peers=True)
    )
    assert message(failure) == "rank 1: ValueError: bad"
    assert suspects(failure) == "rank 1"
    assert "rank 0: still waited for a failed rank" in str(failure.longrepr)


# Skips and expected failures


def skipped(rank: int, reason: str) -> RankResult:
    where = ("test_x.py", 4, f"Skipped: {reason}")
    return RankResult(rank, "done", phases(report("call", "skipped", where)))


def test_a_test_that_all_ranks_skip_is_skipped_with_the_reason() -> None:
    call = merged(skipped(0, "no BF16"), skipped(1, "no BF16"))[1]
    assert call.skipped
    assert call.longrepr == ("test_x.py", 4, "Skipped: no BF16")


def test_a_skip_on_some_ranks_only_is_a_failure() -> None:
    failure = the_failure(merged(passed(0), skipped(1, "no BF16"), passed(2)))
    assert message(failure) == (
        "rank 1: the ranks disagree: ranks 0,2 passed; rank 1 skipped (no BF16)"
    )
    assert suspects(failure) == "rank 1"


def test_skips_for_different_reasons_are_a_failure() -> None:
    failure = the_failure(merged(skipped(0, "no BF16"), skipped(1, "no FP8")))
    assert "rank 0 skipped (no BF16); rank 1 skipped (no FP8)" in message(failure)


def xfailed(rank: int, reason: str = "known") -> RankResult:
    call = report("call", "skipped", "AssertionError", wasxfail=reason)
    return RankResult(rank, "done", phases(call))


def test_a_failure_that_all_ranks_expected_is_expected() -> None:
    call = merged(xfailed(0), xfailed(1))[1]
    assert call.skipped
    assert call.wasxfail == "known"


def test_an_expected_failure_on_some_ranks_only_is_a_failure() -> None:
    failure = the_failure(merged(xfailed(0), passed(1)))
    assert "rank 0 xfailed (known); rank 1 passed" in message(failure)


def test_a_real_failure_is_told_rather_than_the_disagreement_it_causes() -> None:
    failure = the_failure(merged(skipped(0, "no BF16"), failed(1, "assert 0")))
    assert message(failure) == "rank 1: assert 0"
