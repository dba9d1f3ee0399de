"""Measurements of pairs → the member or the pair to blame."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping

Pair = tuple[int, int]


def blame(bad: Iterable[Pair], pairs: Iterable[Pair]) -> tuple[list[int], list[Pair]]:
    """The members whose every pair is bad, and the bad pairs that remain without them.

    With two members a bad pair stays a pair: nothing tells which of the two it is.
    """
    members = {member for pair in pairs for member in pair}
    guilty: list[int] = []
    rest = list(bad)
    while rest and len(members) > 2:
        member, count = Counter(m for pair in rest for m in pair).most_common(1)[0]
        partners = len(members) - 1 - len(guilty)
        if count < partners or partners < 2:
            break
        guilty.append(member)
        rest = [pair for pair in rest if member not in pair]
    return sorted(guilty), rest


def slow_pairs(
    medians: Mapping[Pair, float], highs: Mapping[Pair, float], ratio: float
) -> list[Pair]:
    """Pairs whose whole interval lies under ``ratio`` x the median of all pairs.

    ``medians`` and upper ends of the intervals (``highs``) in one unit. Needs three pairs: with
    fewer nothing says which one is right.
    """
    if len(medians) < 3:
        return []
    usual = statistics.median(medians.values())
    return [pair for pair in medians if highs[pair] < ratio * usual]
