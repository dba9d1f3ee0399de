"""The median and its interval: what they promise, they keep."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from pytest_gpucluster.measure.statistics import CONFIDENCE, summarise

MEDIAN_ONE: dict[str, Callable[[random.Random], float]] = {
    "skewed": lambda source: source.lognormvariate(0, 1),
    "flat": lambda source: source.uniform(0, 2),
    "wide": lambda source: 1 + source.gauss(0, 1) / max(1e-9, abs(source.gauss(0, 1))),
}


@pytest.mark.parametrize("count", [2, 5, 6, 7, 9, 12, 25])
@pytest.mark.parametrize("shape", MEDIAN_ONE)
def test_the_interval_holds_the_true_median_as_often_as_it_says(shape: str, count: int) -> None:
    source = random.Random(count)
    trials = 1500
    hits = 0
    for _ in range(trials):
        found = summarise([MEDIAN_ONE[shape](source) for _ in range(count)])
        hits += found.low <= 1 <= found.high
    assert hits / trials == pytest.approx(found.confidence, abs=0.04)


@pytest.mark.parametrize("count", range(6, 70))
def test_from_six_samples_on_it_is_the_narrowest_that_reaches_the_confidence(count: int) -> None:
    found = summarise(range(count))
    left_out = int(found.low)
    assert found.high == count - 1 - left_out, "as many above as below"
    assert found.confidence >= CONFIDENCE
    narrower = 1 - 2 * sum(math.comb(count, k) for k in range(left_out + 2)) / 2**count
    assert narrower < CONFIDENCE


@pytest.mark.parametrize(
    ("count", "low", "confidence"),
    # 1 - 2 P(X < j), X ~ Binomial(n, 1/2)
    [(6, 0, 31 / 32), (7, 0, 63 / 64), (8, 0, 127 / 128), (9, 1, 492 / 512), (12, 2, 3938 / 4096)],
)
def test_known_intervals(count: int, low: int, confidence: float) -> None:
    found = summarise(range(count))
    assert (found.low, found.high) == (low, count - 1 - low)
    assert found.confidence == pytest.approx(confidence)


@pytest.mark.parametrize(
    ("count", "confidence"), [(1, 0), (2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375)]
)
def test_few_samples_give_their_extremes_and_less_confidence(count: int, confidence: float) -> None:
    found = summarise(range(count))
    assert (found.low, found.high) == (0, count - 1)
    assert found.confidence == pytest.approx(confidence)


def test_the_order_of_the_samples_does_not_matter() -> None:
    assert summarise([3, 1, 2]) == summarise([1, 2, 3])
    assert summarise([3, 1, 2]).median == 2
    assert summarise([4, 1, 2, 3]).median == 2.5
    assert summarise([1, 2, 3]).batches == 3


def test_without_samples_there_is_nothing_to_say() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarise([])
