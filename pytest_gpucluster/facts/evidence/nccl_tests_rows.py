"""One row of an nccl-tests table, whatever its version left out."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:e[+-]?[0-9]{1,3})?")
_TYPES = frozenset(
    [
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "half",
        "float",
        "double",
        "bfloat16",
        "f8e4m3",
        "f8e5m2",
        "fp8_e4m3",
        "fp8_e5m2",
        "char",
    ]
)
_OPERATIONS = frozenset(["sum", "prod", "max", "min", "avg", "none", "mulsum", "all"])
_UNCHECKED = ("N/A", "n/a")


@dataclass(frozen=True)
class Half:
    """Out-of-place or in-place half: microseconds, GB/s, GB/s; ``wrong``: values that differ,
    ``None`` if they were not checked."""

    time_us: float
    algbw: float
    busbw: float
    wrong: float | None


@dataclass(frozen=True)
class Row:
    """One size. ``complete``: both halves are there, with their count of wrong values."""

    line: int
    size: int
    count: int
    dtype: str
    operation: str | None
    halves: tuple[Half, ...]
    complete: bool


def parse_row(line: int, text: str) -> Row | None:
    """The row in ``text``, or ``None``; a row that stops inside a half is incomplete."""
    words = text.split()
    if len(words) < 6 or not words[0].isdecimal() or not words[1].isdecimal():
        return None
    if words[2] not in _TYPES or len(words[0]) > 16 or len(words[1]) > 16:
        return None
    place, operation = 3, None
    if words[place] in _OPERATIONS:
        operation = words[place]
        place += 1
    rest = words[place:]
    if len(rest) in (5, 9) and re.fullmatch(r"-?[0-9]{1,6}", rest[0]) and _fits(rest[1:]):
        rest = rest[1:]  # the root's column
    elif (rest and rest[0].startswith("-")) or (
        len(rest) == 4 and operation and not _fits(rest) and _plain(rest)
    ):
        rest = rest[1:]
    if len(rest) > 2 and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", rest[-2]):
        rest = rest[:-2]  # -T: the time of day
    if len(rest) == 16:
        rest = [*rest[:4], *rest[8:12]]  # per-iteration times stand behind each half
    if not _plain(rest) or len(rest) < 3 or len(rest) > 8:
        return None
    halves = tuple(_half(part) for start in (0, 4) if len(part := rest[start : start + 4]) >= 3)
    return Row(
        line, int(words[0]), int(words[1]), words[2], operation, halves, complete=len(rest) == 8
    )


def _plain(words: list[str]) -> bool:
    return all(_NUMBER.fullmatch(w) or w in _UNCHECKED for w in words) and not any(
        w in _UNCHECKED for w in (*words[:3], *words[4:7])
    )


def _fits(words: list[str]) -> bool:
    """Whether these may be one or two halves: bandwidths have two decimals."""
    return len(words) in (4, 8) and "." in words[1] and "." in words[2]


def _half(words: list[str]) -> Half:
    wrong = None
    if len(words) == 4 and words[3] not in _UNCHECKED:
        value = float(words[3])
        wrong = int(value) if re.fullmatch(r"[0-9]+", words[3]) or value == 0 else value
    return Half(float(words[0]), float(words[1]), float(words[2]), wrong)
