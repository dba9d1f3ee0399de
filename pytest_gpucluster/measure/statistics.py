"""Median and a distribution-free interval for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
METHOD = "median of batches, order-statistic interval"


@dataclass(frozen=True)
class Interval:
    """A median with the bounds between which the true one lies with ``confidence``."""

    median: float
    low: float
    high: float
    confidence: float
    batches: int


def summarise(samples: Sequence[float]) -> Interval:
    """The median of ``samples`` and the narrowest pair of order statistics around it.

    The j-th smallest and j-th largest of n samples enclose the median with probability
    1 - 2 P(X < j), X ~ Binomial(n, 1/2), whatever the distribution (David and Nagaraja,
    Order Statistics, 3rd ed., section 7.1). Fewer than 6 samples cannot reach 95 %: then the
    extremes are returned with the confidence they have.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    count = len(ordered)
    rank = 1
    while rank < (count + 1) // 2 and _coverage(count, rank + 1) >= CONFIDENCE:
        rank += 1
    return Interval(
        statistics.median(ordered),
        ordered[rank - 1],
        ordered[count - rank],
        max(0.0, _coverage(count, rank)),
        count,
    )


def _coverage(count: int, rank: int) -> float:
    below: float = sum(math.comb(count, k) for k in range(rank)) / 2.0**count
    return 1 - 2 * below
