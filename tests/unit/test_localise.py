"""Schedules of pairs, and which member or pair is to blame."""

from __future__ import annotations

from itertools import combinations

import pytest

from pytest_gpucluster.localise.rounds import rounds
from pytest_gpucluster.localise.suspects import blame, slow_pairs

Pair = tuple[int, int]


def all_pairs(count: int) -> list[Pair]:
    return list(combinations(range(count), 2))


def pairs_of(member: int, count: int) -> list[Pair]:
    return [pair for pair in all_pairs(count) if member in pair]


@pytest.mark.parametrize("count", range(2, 34))
def test_every_pair_plays_once_and_nobody_twice_in_a_round(count: int) -> None:
    schedule = rounds(range(count))
    played = [pair for pairs in schedule for pair in pairs]
    assert sorted(played) == all_pairs(count)
    for pairs in schedule:
        members = [member for pair in pairs for member in pair]
        assert len(members) == len(set(members))


@pytest.mark.parametrize("count", range(2, 34))
def test_the_schedule_is_as_short_as_it_can_be(count: int) -> None:
    assert len(rounds(range(count))) == (count - 1 if count % 2 == 0 else count)


def test_members_may_have_any_numbers() -> None:
    assert sorted(pair for pairs in rounds([9, 4, 7]) for pair in pairs) == [
        (4, 7),
        (4, 9),
        (7, 9),
    ]


@pytest.mark.parametrize("members", [[], [3]])
def test_fewer_than_two_have_nobody_to_play(members: list[int]) -> None:
    assert rounds(members) == []


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("member", [0, 2])
def test_a_member_whose_every_pair_is_bad_is_blamed_itself(count: int, member: int) -> None:
    assert blame(pairs_of(member, count), all_pairs(count)) == ([member], [])


def test_two_bad_members_are_both_blamed_and_nobody_else() -> None:
    bad = {*pairs_of(2, 8), *pairs_of(5, 8)}
    assert blame(sorted(bad), all_pairs(8)) == ([2, 5], [])


def test_one_bad_pair_is_blamed_as_a_pair() -> None:
    assert blame([(2, 5)], all_pairs(8)) == ([], [(2, 5)])


def test_a_bad_member_and_a_bad_pair_elsewhere_are_told_apart() -> None:
    assert blame([*pairs_of(2, 8), (4, 6)], all_pairs(8)) == ([2], [(4, 6)])


def test_a_member_with_one_good_pair_is_not_blamed_itself() -> None:
    bad = [pair for pair in pairs_of(2, 8) if pair != (2, 5)]
    assert blame(bad, all_pairs(8)) == ([], bad)


def test_of_two_members_nobody_can_tell_which_is_bad() -> None:
    assert blame([(0, 1)], [(0, 1)]) == ([], [(0, 1)])


def test_without_bad_pairs_nobody_is_blamed() -> None:
    assert blame([], all_pairs(8)) == ([], [])


def test_when_all_pairs_are_bad_the_last_two_remain_a_pair() -> None:
    members, pairs = blame(all_pairs(4), all_pairs(4))
    assert len(members) == 2
    assert pairs == [tuple(sorted(set(range(4)) - set(members)))]


SPEEDS = dict.fromkeys(all_pairs(4), 100.0)


def slow(
    medians: dict[Pair, float], highs: dict[Pair, float] | None = None, ratio: float = 0.5
) -> list[Pair]:
    return slow_pairs(medians, highs or medians, ratio)


def test_a_pair_far_below_the_median_is_slow() -> None:
    assert slow(SPEEDS) == []
    assert slow({**SPEEDS, (1, 3): 20}) == [(1, 3)]


def test_a_pair_whose_interval_reaches_up_to_the_limit_is_not() -> None:
    medians = {**SPEEDS, (1, 3): 20.0}
    assert slow(medians, {**medians, (1, 3): 50.0}) == []
    assert slow(medians, {**medians, (1, 3): 49.9}) == [(1, 3)]


def test_two_pairs_cannot_judge_each_other_three_can() -> None:
    assert slow({(0, 1): 100, (0, 2): 1}) == []
    assert slow({(0, 1): 100, (0, 2): 1, (1, 2): 100}) == [(0, 2)]
