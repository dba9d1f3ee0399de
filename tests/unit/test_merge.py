"""The ranks' reports of one test become one outcome that names who is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.ranks.merge import RANKS
from pytest_gpucluster.ranks.results import RankResult
from tests.unit.rank_reports import (
    IDENTITY,
    PEER_LOST,
    died,
    failed,
    merged,
    message,
    passed,
    report,
    suspects,
    the_failure,
)

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
        ("Captured stdout call [rank 0]", "[rank 0] zero\n"),
        ("Captured stdout call [rank 1]", "[rank 1] one\n"),
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
