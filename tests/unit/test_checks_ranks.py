"""What the checks on ranks make of measurements: which rank, pair or product is to blame."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpucluster.checks import test_collectives as collectives
from pytest_gpucluster.checks import test_compute as compute
from pytest_gpucluster.checks import test_pairs as pairs
from pytest_gpucluster.checks import test_soak as soak
from pytest_gpucluster.checks import test_storage as storage
from pytest_gpucluster.measure import collectives as measured
from pytest_gpucluster.measure.collectives import AllReduceSpeed, WrongValues, largest_exact_term
from pytest_gpucluster.measure.compute import Product
from pytest_gpucluster.measure.statistics import Interval
from pytest_gpucluster.measure.storage import WriteResult, write_and_read
from tests.unit.checking import Found, Group, check, node

FACTS = node()


def interval(median: float, spread: float = 0.01) -> Interval:
    return Interval(median, median * (1 - spread), median * (1 + spread), 0.98, 7)


# Pairs


def look_at_pairs(
    monkeypatch: pytest.MonkeyPatch,
    count: int = 4,
    slow: Any = (),
    wrong: Any = (),
    speed: float = 10.0,
) -> Found:
    every = list(combinations(range(count), 2))
    speeds = {pair: interval(speed if pair in slow else 100.0) for pair in every}
    answer = (speeds, dict.fromkeys(wrong, 5))
    monkeypatch.setattr(
        "pytest_gpucluster.measure.point_to_point.measure_pairs", lambda *given: answer
    )
    return check(pairs.test_pair_bandwidth, FACTS, process_group=Group(count))


def test_pairs_that_are_equally_fast_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look_at_pairs(monkeypatch)
    assert found.quiet
    assert len(found.measurements) == 6


def test_a_slow_pair_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look_at_pairs(monkeypatch, slow=[(1, 3)])
    assert found.short == [("fail", "p2p.slow", "rank 1-rank 3")]
    assert found.findings[0].measured == 10


def test_a_rank_slow_with_everybody_is_named_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found = look_at_pairs(
        monkeypatch, 8, slow=[pair for pair in combinations(range(8), 2) if 5 in pair]
    )
    assert found.short == [("fail", "p2p.slow", "rank 5")]


def test_a_pair_that_may_be_fast_enough_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_at_pairs(monkeypatch, slow=[(1, 3)], speed=49.9).quiet


def test_two_ranks_have_nobody_to_be_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look_at_pairs(monkeypatch, 2, slow=[(0, 1)]).quiet


def test_changed_data_is_blamed_on_the_pair_or_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = look_at_pairs(monkeypatch, wrong=[(0, 2)])
    assert pair.short == [("fail", "p2p.data_wrong", "rank 0-rank 2")]
    rank = look_at_pairs(monkeypatch, wrong=[(0, 2), (1, 2), (2, 3)])
    assert rank.short == [("fail", "p2p.data_wrong", "rank 2")]


# Matrix products


def products(monkeypatch: pytest.MonkeyPatch, *others: Any, count: int = 4) -> Found:
    mine = Product(interval(50), "same", 0)
    monkeypatch.setattr("pytest_gpucluster.measure.compute.multiply", lambda *given: mine)

    def answers(value: list[Any]) -> list[Any]:
        return [*others, *([value] * (count - 1 - len(others)))]

    return check(compute.test_matrix_products, FACTS, process_group=Group(count, answers))


def test_equal_products_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = products(monkeypatch)
    assert found.quiet
    assert len(found.measurements) == 4


@pytest.mark.parametrize(
    "answer", [["other", 0, 50, 49, 51], ["same", 3, 50, 49, 51]], ids=["bits", "checksum"]
)
def test_a_rank_that_computes_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, answer: list[Any]
) -> None:
    assert products(monkeypatch, answer).short == [("fail", "compute.wrong", "rank 1")]


@pytest.mark.parametrize(("high", "slow"), [(24.9, True), (25.1, False)])
def test_a_rank_slower_than_its_peers_is_named(
    monkeypatch: pytest.MonkeyPatch, high: float, slow: bool
) -> None:
    found = products(monkeypatch, ["same", 0, 20, 19, high])
    assert found.short == ([("fail", "compute.slow", "rank 1")] if slow else [])


def test_of_two_ranks_none_is_called_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert products(monkeypatch, ["same", 0, 5, 4, 6], count=2).quiet


# All-reduce values


def values(monkeypatch: pytest.MonkeyPatch, *wrong: int, count: int = 4) -> Found:
    entries = [WrongValues(rank, 1, 1023, 7, 4.0, 3.0) for rank in wrong]
    monkeypatch.setattr(measured, "verify_all_reduce", lambda *given: entries)
    return check(collectives.test_all_reduce_values, FACTS, process_group=Group(count))


def test_right_values_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert values(monkeypatch).quiet


def test_the_rank_that_receives_wrong_values_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = values(monkeypatch, 2)
    assert found.short == [("fail", "collective.data_wrong", "rank 2")]
    assert "first at index 7: found 4, expected 3" in found.findings[0].message


def test_values_wrong_everywhere_are_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = values(monkeypatch, 0, 1, 2, 3)
    assert found.short == [("fail", "collective.data_wrong", "all ranks")]


@pytest.mark.parametrize("world_size", [2, 8, 1024])
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int32"])
def test_sums_of_the_largest_terms_are_exact_in_the_type(name: str, world_size: int) -> None:
    import torch

    dtype = getattr(torch, name)
    term = largest_exact_term(dtype, world_size)
    assert term >= 1
    if term > 1:
        exact = torch.tensor(term * world_size, dtype=torch.float64).to(dtype)
        below = torch.tensor(term * world_size - 1, dtype=torch.float64).to(dtype)
        assert int(exact) == term * world_size
        assert int(below) == term * world_size - 1


# Sustained load


def sustained(monkeypatch: pytest.MonkeyPatch, series: list[float], wrong: Any = ()) -> Found:
    speeds = iter(series)
    clock = iter(range(1000))
    monkeypatch.setattr(soak, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(measured, "verify_all_reduce", lambda *given, **named: list(wrong))
    monkeypatch.setattr(
        measured,
        "measure_all_reduce",
        lambda *given: AllReduceSpeed(1, "float32", 4, 1, interval(next(speeds)), 1.0, 0, 1.0),
    )
    settings = {"soak": len(series) + 1}
    return check(
        soak.test_sustained_load, FACTS, process_group=Group(4), gpucluster_settings=settings
    )


def test_steady_bandwidth_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sustained(monkeypatch, [100.0] * 9)
    assert found.quiet
    (measurement,) = found.measurements
    assert measurement.conditions["cycles"] == 9


def test_bandwidth_that_falls_under_load_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sustained(monkeypatch, [100.0] * 3 + [95.0] * 3 + [89.0] * 3)
    assert found.short == [("warn", "collective.bandwidth_drift", "all ranks")]
    assert sustained(monkeypatch, [100.0] * 3 + [95.0] * 3 + [91.0] * 3).quiet


def test_too_short_a_series_shows_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sustained(monkeypatch, [100.0, 50.0, 20.0]).quiet


def test_a_wrong_value_under_load_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sustained(monkeypatch, [100.0] * 9, [WrongValues(1, 1, 9, 7, 4.0, 3.0)])
    assert found.short == [("fail", "collective.data_wrong", "rank 1")]


# Storage


def stored(monkeypatch: pytest.MonkeyPatch, folder: Path, write: Any) -> Found:
    monkeypatch.setattr("pytest_gpucluster.measure.storage.write_and_read", write)
    config = SimpleNamespace(invocation_params=SimpleNamespace(dir=folder))
    return check(
        storage.test_write_and_read,
        FACTS,
        gpucluster_settings={"report": Path("report"), "evidence": None},
        pytestconfig=config,
    )


def test_a_folder_that_keeps_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = stored(monkeypatch, tmp_path, lambda path, blocks: write_and_read(path, 2))
    assert found.quiet
    assert [measurement.name for measurement in found.measurements] == [
        "storage write",
        "storage read",
    ]
    assert not list((tmp_path / "report").iterdir()), "nothing is left behind"


def test_a_folder_that_changes_it_or_cannot_take_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed = stored(monkeypatch, tmp_path, lambda *given: WriteResult(1, 1, intact=False))
    assert changed.short == [("fail", "storage.data_wrong", "node")]

    def full(*given: Any) -> WriteResult:
        raise OSError(28, "No space left on device")

    found = stored(monkeypatch, tmp_path, full)
    assert found.short == [("fail", "storage.unusable", "node")]
    assert "No space left on device" in found.findings[0].message
