"""Collectives that differ between ranks: which number, who called what, who is the odd one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpucluster.ranks.naming import rank_list
from pytest_gpucluster.ranks.progress import Standing

NOTHING = "nothing more"


@dataclass(frozen=True)
class Difference:
    """The first collective of a group on which its ranks do not agree.

    ``said`` maps what was called to the ranks that called it. ``odd`` are the ranks that
    differ from most; all of them where there is no majority, as between two.
    """

    number: int
    said: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def odd(self) -> tuple[int, ...]:
        sizes = sorted(len(ranks) for _, ranks in self.said)
        most = sizes[-1] if sizes.count(sizes[-1]) == 1 else None
        return tuple(sorted(rank for _, ranks in self.said if len(ranks) != most for rank in ranks))

    @property
    def is_clash(self) -> bool:
        """Two ranks called different things; not merely one of them fewer."""
        return sum(1 for what, _ in self.said if what != NOTHING) > 1

    def describe(self) -> str:
        parts = "; ".join(f"{rank_list(ranks)}: {what}" for what, ranks in self.said)
        return f"the ranks called different collectives. Number {self.number} is {parts}"


def digests_agree(digests: Mapping[int, Mapping[str, Sequence[Any]]]) -> bool:
    """Whether every member of every group made the same calls.

    ``digests``: rank → group → (members, count, checksum), see `observe.Observer.digest`.
    """
    for digest in digests.values():
        for group, (members, *calls) in digest.items():
            for member in members:
                other = digests.get(member, {}).get(group)
                if other is None or list(other[1:]) != calls:
                    return False
    return True


def first_difference(
    signatures: Mapping[int, Mapping[str, Mapping[str, Any]]],
    members: Mapping[str, Sequence[int]],
) -> Difference | None:
    """Where the ranks' calls part, from `observe.Observer.signatures` of each rank.

    A rank that made no call in a group has no entry there. Groups are looked at in the order
    of their names; within one the lowest number counts.
    """
    for group in sorted(members):
        calls = {
            rank: signatures.get(rank, {}).get(group, {"first": 0, "calls": []})
            for rank in members[group]
        }
        found = _in_group(calls)
        if found is not None:
            return found
    return None


def _in_group(calls: Mapping[int, Mapping[str, Any]]) -> Difference | None:
    start = max(int(entry["first"]) for entry in calls.values())
    end = max(int(entry["first"]) + len(entry["calls"]) for entry in calls.values())
    for position in range(start, end):
        keys = set()
        said: dict[str, list[int]] = {}
        for rank, entry in calls.items():
            index = position - int(entry["first"])
            key, text = entry["calls"][index] if index < len(entry["calls"]) else ("", NOTHING)
            keys.add(key)
            said.setdefault(text, []).append(rank)
        if len(keys) > 1:
            return difference(position + 1, said)
    return None


def clash_of_standings(standings: Mapping[int, Standing]) -> Difference | None:
    """The same, from what dead and living ranks were doing when one of them died."""
    called = {rank: standing for rank, standing in standings.items() if standing.key}
    for number in sorted({standing.number for standing in called.values()}):
        for group in sorted({standing.group for standing in called.values()}):
            here = {
                rank: standing
                for rank, standing in called.items()
                if (standing.number, standing.group) == (number, group)
            }
            if len({standing.key for standing in here.values()}) > 1:
                said: dict[str, list[int]] = {}
                for rank, standing in here.items():
                    said.setdefault(standing.collective, []).append(rank)
                return difference(number, said)
    return None


def difference(number: int, said: Mapping[str, Sequence[int]]) -> Difference:
    """``said``: what was called → the ranks that called it under ``number``."""
    ordered = sorted(said.items(), key=lambda entry: (-len(entry[1]), entry[1]))
    return Difference(number, tuple((what, tuple(ranks)) for what, ranks in ordered))
