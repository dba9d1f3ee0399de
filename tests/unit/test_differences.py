"""Which collective the ranks disagree on, and who is the odd one."""

from __future__ import annotations

from typing import Any

from pytest_gpucluster.ranks.differences import (
    Difference,
    clash_of_standings,
    digests_agree,
    first_difference,
)
from pytest_gpucluster.ranks.progress import Standing

SUM = ("all_reduce 4 float32 sum;", "all_reduce [4] float32 sum")
SUM_2D = ("all_reduce 4 float32 sum;", "all_reduce [2, 2] float32 sum")
MAX = ("all_reduce 4 float32 max;", "all_reduce [4] float32 max")


def calls(*signatures: tuple[str, str], first: int = 0) -> dict[str, Any]:
    return {"0": {"first": first, "calls": [list(signature) for signature in signatures]}}


def difference(*ranks: dict[str, Any]) -> Difference | None:
    return first_difference(dict(enumerate(ranks)), {"0": range(len(ranks))})


def test_equal_calls_do_not_differ() -> None:
    assert difference(calls(SUM, MAX), calls(SUM, MAX)) is None


def test_another_shape_of_the_same_size_is_no_difference() -> None:
    assert difference(calls(SUM), calls(SUM_2D)) is None


def test_the_first_call_that_differs_is_told_with_both_signatures() -> None:
    found = difference(calls(SUM, SUM), calls(SUM, MAX), calls(SUM, SUM))
    assert found is not None
    assert found.describe() == (
        "the ranks called different collectives. Number 2 is ranks 0,2: all_reduce [4] float32 "
        "sum; rank 1: all_reduce [4] float32 max"
    )
    assert found.odd == (1,)
    assert found.is_clash


def test_one_call_too_many_is_a_difference_but_no_clash() -> None:
    found = difference(calls(SUM), calls(SUM, SUM), calls(SUM), {})
    assert found is not None
    assert found.number == 1
    found = difference(calls(SUM), calls(SUM, SUM), calls(SUM))
    assert found is not None
    assert (found.number, found.odd, found.is_clash) == (2, (1,), False)
    assert "ranks 0,2: nothing more" in found.describe()


def test_between_two_ranks_both_are_odd() -> None:
    found = difference(calls(SUM), calls(MAX))
    assert found is not None
    assert found.odd == (0, 1)


def test_a_long_test_is_compared_where_both_remember() -> None:
    found = difference(calls(SUM, first=1000), calls(SUM, MAX, SUM, first=999))
    assert found is not None
    assert found.number == 1001


def test_digests_agree_only_if_every_member_of_a_group_made_the_same_calls() -> None:
    both = {"0": [[0, 1], 2, 77]}
    assert digests_agree({0: both, 1: both})
    assert not digests_agree({0: both, 1: {"0": [[0, 1], 3, 77]}})
    assert not digests_agree({0: both, 1: {"0": [[0, 1], 2, 78]}})
    assert not digests_agree({0: both, 1: {}})
    assert digests_agree({0: {"row": [[0], 1, 5]}, 1: {"column": [[1], 9, 6]}})


def test_where_dead_and_living_ranks_stood_shows_a_clash() -> None:
    def at(signature: tuple[str, str], number: int = 1, group: str = "0") -> Standing:
        return Standing("call", number, False, group, *signature)

    found = clash_of_standings({0: at(SUM), 1: at(MAX), 2: at(SUM)})
    assert found is not None
    assert found.odd == (1,)
    assert clash_of_standings({0: at(SUM), 1: at(SUM_2D)}) is None
    assert clash_of_standings({0: at(SUM), 1: at(MAX, number=2)}) is None
    assert clash_of_standings({0: at(SUM), 1: at(MAX, group="1")}) is None
    assert clash_of_standings({0: at(SUM), 1: Standing()}) is None
