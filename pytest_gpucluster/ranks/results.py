"""What the leader knows about each rank after a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_gpucluster.ranks.differences import Difference
from pytest_gpucluster.ranks.progress import Standing

RankState = Literal["done", "died", "hung", "unknown_test"]


@dataclass
class RankResult:
    """One rank's share of a test, filled while its messages arrive.

    ``failed_at`` is when the leader first heard of a failure, on the leader's clock.
    ``ended`` says how a dead rank ended; ``stack`` is the Python stack of one that died or was
    cut off, ``activity`` what its process did then, ``told`` what it answered when it was asked.
    """

    rank: int
    state: RankState = "hung"
    reports: list[dict[str, Any]] = field(default_factory=list)
    digest: dict[str, list[Any]] = field(default_factory=dict)
    broken: bool = False  # it can join no further group
    failed_at: float | None = None
    ended: str | None = None
    stack: str | None = None
    activity: str | None = None
    standing: Standing | None = None
    told: dict[str, Any] = field(default_factory=dict)
    last_output: list[tuple[str, str]] = field(default_factory=list)
    pid: int | None = None  # of the process that ran the test


@dataclass(frozen=True)
class GroupResult:
    """All ranks' results of one test. ``cut_off_s`` is set when the deadline ended it."""

    ranks: tuple[RankResult, ...]
    cut_off_s: float | None = None
    waited_for_peers: bool = False  # cut off early because a peer had already failed
    difference: Difference | None = None
    died_before: tuple[str, ...] = ()  # ranks that died idle, after a test that had passed

    @property
    def complete(self) -> bool:
        """Every rank finished the test and said so."""
        return all(result.state == "done" for result in self.ranks)

    @property
    def clean(self) -> bool:
        """Complete, and no rank reported a failure: the ranks can be used again."""
        return (
            self.complete
            and self.difference is None
            and all(result.failed_at is None for result in self.ranks)
        )
