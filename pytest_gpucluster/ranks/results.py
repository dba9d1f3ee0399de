"""What the leader knows about each rank after a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

RankState = Literal["done", "died", "hung", "unknown_test"]


@dataclass
class RankResult:
    """One rank's share of a test, filled while its messages arrive.

    ``failed_at`` is when the leader first heard of a failure, on the leader's clock.
    ``ended`` says how a dead rank ended. ``stack`` is its Python stack if it was cut off.
    """

    rank: int
    state: RankState = "hung"
    reports: list[dict[str, Any]] = field(default_factory=list)
    failed_at: float | None = None
    ended: str | None = None
    stack: str | None = None
    flight_recorder: str | None = None


@dataclass(frozen=True)
class GroupResult:
    """All ranks' results of one test. ``cut_off_s`` is set when the deadline ended it."""

    ranks: tuple[RankResult, ...]
    cut_off_s: float | None = None
    waited_for_peers: bool = False  # cut off early because a peer had already failed

    @property
    def complete(self) -> bool:
        """Every rank finished the test and said so."""
        return all(result.state == "done" for result in self.ranks)

    @property
    def clean(self) -> bool:
        """Complete, and no rank reported a failure: the ranks can be used again."""
        return self.complete and all(result.failed_at is None for result in self.ranks)
