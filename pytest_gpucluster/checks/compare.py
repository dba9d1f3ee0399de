"""Small comparisons the checks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpucluster.expectations.model import Expected
    from pytest_gpucluster.facts.model import Gpu
    from pytest_gpucluster.verdict.findings import Severity


def severity(expected: Expected[Any]) -> Severity:
    """A value no opened source settles warns; it never rejects."""
    return "fail" if expected.certain else "warn"


def common_value(gpus: Sequence[Gpu], value: Callable[[Gpu], Hashable]) -> Hashable | None:
    """What most GPUs show, if more than half of at least three agree; else ``None``."""
    known = [value(gpu) for gpu in gpus if value(gpu) is not None]
    if len(known) < 3:
        return None
    most, count = Counter(known).most_common(1)[0]
    return most if count * 2 > len(known) else None
