"""Small comparisons the checks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pytest_gpucluster.expectations.model import Expected
    from pytest_gpucluster.facts.model import Gpu, GpuPair
    from pytest_gpucluster.verdict.findings import Severity

T = TypeVar("T")


def severity(expected: Expected[T]) -> Severity:
    """A value no opened source settles warns; it never rejects."""
    return "fail" if expected.certain else "warn"


def common_value(gpus: Sequence[Gpu], value: Callable[[Gpu], Hashable]) -> Hashable | None:
    """What most GPUs show, if more than half of at least three agree; else ``None``."""
    known = [value(gpu) for gpu in gpus if value(gpu) is not None]
    if len(known) < 3:
        return None
    most, count = Counter(known).most_common(1)[0]
    return most if count * 2 > len(known) else None


def unread(gpus: Iterable[Gpu], value: Callable[[Gpu], object]) -> list[str]:
    """Labels of the GPUs for which a value is not known."""
    return [gpu.label for gpu in gpus if value(gpu) is None]


def blame(bad: Sequence[GpuPair], pairs: Sequence[GpuPair]) -> tuple[list[int], list[GpuPair]]:
    """The GPUs whose every pair is bad, and the bad pairs that remain without them.

    With two GPUs a bad pair stays a pair: nothing tells which of the two it is.
    """
    members = {gpu for pair in pairs for gpu in (pair.a, pair.b)}
    guilty: list[int] = []
    rest = list(bad)
    while rest and len(members) > 2:
        counts = Counter(gpu for pair in rest for gpu in (pair.a, pair.b))
        gpu, count = counts.most_common(1)[0]
        partners = len(members) - 1 - len(guilty)
        if count < partners or partners < 2:
            break
        guilty.append(gpu)
        rest = [pair for pair in rest if gpu not in (pair.a, pair.b)]
    return guilty, rest
