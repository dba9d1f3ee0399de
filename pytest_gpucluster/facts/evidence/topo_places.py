"""CPU and NUMA affinity behind the cells of ``nvidia-smi topo -m``, blanks and all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_CPUS = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")
_NUMBER = re.compile(r"[0-9]{1,3}(?:[-,][0-9]{1,3})*|N/A")
_GLUED_NA = re.compile(r"([0-9]{1,3})(N/A)")


@dataclass(frozen=True)
class Place:
    """Affinities of one GPU as printed; ``None`` where the cell is blank or N/A."""

    cpus: str | None = None
    numa: str | None = None
    problem: str | None = None


def places(tails: Sequence[str], columns: Sequence[str]) -> list[Place]:
    """What stands behind the cells of each row.

    ``columns``: names of the trailing columns as far as a header tells. Cells may be blank, or
    glued to their neighbour: ``168-2231`` is 168-223 and NUMA node 1 where ranges are 56 wide.
    """
    split = [_words(tail) for tail in tails]
    width = len(columns) or max((len(words) for words in split), default=0)
    widths = Counter(length for words in split if words for length in _lengths(words[0])[:-1])
    return [_place(words, width, widths) for words in split]


def _words(tail: str) -> list[str]:
    words: list[str] = []
    for word in tail.split():
        glued = _GLUED_NA.fullmatch(word)
        words += glued.groups() if glued else [word]
    return words


def _place(split: list[str], width: int, widths: Counter[int]) -> Place:
    if not split:
        return Place()
    if not _CPUS.fullmatch(split[0]):
        if all(_NUMBER.fullmatch(word) for word in split):
            return Place()  # blank affinity: what is left belongs to columns further right
        return Place(problem=f"{' '.join(split)[:40]!r} is no affinity")
    cpus, rest = split[0], split[1:]
    numbers = [word for word in rest if _NUMBER.fullmatch(word)]
    if len(numbers) != len(rest) or len(rest) > 2:
        return Place(cpus, problem=f"{' '.join(rest)[:40]!r} is no NUMA node")
    if len(rest) < min(width - 1, 2) or (not width and rest == ["N/A"]):
        whole, numa = _unglued(cpus, widths)
        if numa is not None:
            return Place(whole, numa)
        if len(rest) == 1 and rest[0] == "N/A":
            return Place(cpus)
    return Place(cpus, _known(rest[0]) if rest else None)


def _unglued(cpus: str, widths: Counter[int]) -> tuple[str, str | None]:
    """Split a NUMA number from the end of a range that is wider than all others."""
    lengths = _lengths(cpus)
    usual = widths.most_common(1)[0][0] if widths else None
    if usual is None or lengths[-1] == usual:
        return cpus, None
    for digits in (1, 2):
        head, tail = cpus[:-digits], cpus[-digits:]
        if _CPUS.fullmatch(head) and tail.isdecimal() and _lengths(head)[-1] == usual:
            return head, tail
    return cpus, None


def _lengths(cpus: str) -> list[int]:
    if not _CPUS.fullmatch(cpus):
        return []
    ends = [part.split("-") for part in cpus.split(",")]
    return [int(pair[-1]) - int(pair[0]) + 1 for pair in ends]


def _known(word: str) -> str | None:
    return None if word == "N/A" else word
