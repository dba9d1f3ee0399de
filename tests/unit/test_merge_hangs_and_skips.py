"""Ranks that do not answer, that skip, or that fail as expected: one outcome for all of them."""

from __future__ import annotations

from pytest_gpucluster.ranks.results import RankResult
from tests.unit.rank_reports import (
    LOADING,
    WAITING,
    failed,
    hung,
    merged,
    message,
    passed,
    phases,
    report,
    suspects,
    the_failure,
)

# Hanging


def test_a_hang_names_who_waits_and_who_did_not_arrive() -> None:
    ranks = [hung(0), hung(1), hung(2, LOADING), hung(3)]
    failure = the_failure(merged(*ranks, cut_off_s=30.04))
    assert message(failure) == (
        "rank 2: no answer within 30.0 s: ranks 0,1,3 wait in all_reduce at test_x.py:12; "
        "rank 2 is in load_batch at data.py:40"
    )
    assert failure.when == "call"
    assert suspects(failure) == "rank 2"
    text = str(failure.longrepr)
    assert 'File "/home/u/data.py", line 40 in load_batch' in text
    assert "_pytest" not in text


def test_a_rank_that_finished_while_another_waits_for_it_is_named() -> None:
    failure = the_failure(merged(hung(0), passed(1), cut_off_s=5.0))
    assert message(failure).startswith("ranks 0,1: no answer within 5.0 s: rank 0 waits")
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
    assert str(failure.longrepr).endswith(
        "rank 0: still waited for a failed rank and had to be ended (a consequence)"
    )


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
