"""Schedules of disjoint pairs, so that many are measured at once and none disturbs another."""

from __future__ import annotations

from collections.abc import Sequence


def rounds(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Every pair of ``members`` once, in rounds in which nobody plays twice.

    The circle method of round-robin tournaments: n - 1 rounds for an even number of members,
    n for an odd one (one member rests in each).
    """
    seats: list[int | None] = [*members]
    if len(seats) % 2:
        seats.append(None)
    schedule = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        schedule.append(
            [(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None]
        )
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in schedule if pairs]
