"""``TORCH_DISTRIBUTED_DEBUG=DETAIL``: two ranks in different collectives."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucluster.facts.sysfs import printable

_PAIR = re.compile(
    r"Rank ([0-9]{1,7}) is running (?:collective|inconsistent collective): "
    r"(?:CollectiveFingerPrint\()?(.{1,3000}?),? but Rank ([0-9]{1,7}) is running "
    r"(?:collective|inconsistent collective): (?:CollectiveFingerPrint\()?(.{1,3000})"
)
# "SequenceNumber=1OpType=BARRIER": some releases print no separator.
_SEQ = re.compile(r"SequenceNumber ?= ?([0-9]{1,15}?)(?=,|O|\)|\s|$)")
_OP = re.compile(r"OpType ?= ?(\w{1,40})")
_SHAPE = re.compile(r"TensorShape ?= ?\[([0-9, ]{0,200})\]")
_DTYPE = re.compile(r"TensorDtypes ?= ?(\w{1,30})")


@dataclass(frozen=True)
class Fingerprint:
    """What one rank runs."""

    rank: int
    seq: int | None
    op: str | None
    shape: tuple[int, ...] = ()
    dtype: str | None = None

    @property
    def call(self) -> tuple[object, ...]:
        """Everything but the number: equal calls with different numbers may be a false alarm."""
        return self.op, self.shape, self.dtype


@dataclass(frozen=True)
class Mismatch:
    """Two ranks that do not run the same collective."""

    line: int
    first: Fingerprint
    second: Fingerprint
    text: str


def mismatch_in(line: str, number: int) -> Mismatch | None:
    """The pair that a message names, or ``None``."""
    match = _PAIR.search(line)
    if match is None:
        return None
    first, second = _print(match[1], match[2]), _print(match[3], match[4])
    if first.op is None or second.op is None:
        return None
    return Mismatch(number, first, second, printable(match[0], 400))


def _print(rank: str, text: str) -> Fingerprint:
    seq, op = _SEQ.search(text), _OP.search(text)
    shape, dtype = _SHAPE.search(text), _DTYPE.search(text)
    numbers = re.findall(r"[0-9]{1,15}", shape[1]) if shape else []
    return Fingerprint(
        int(rank),
        int(seq[1]) if seq else None,
        op[1] if op else None,
        tuple(map(int, numbers)),
        dtype[1] if dtype else None,
    )
