"""Small comparisons the checks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpucluster.expectations.model import Expected
    from pytest_gpucluster.facts.model import Gpu
    from pytest_gpucluster.ranks.group import ProcessGroup
    from pytest_gpucluster.verdict.findings import Severity
    from pytest_gpucluster.verdict.recorder import Findings


def skip_if_alone(group: ProcessGroup, findings: Findings) -> None:
    """Nothing can be compared or moved between the ranks of a node with one GPU.

    A rehearsal on one rank has rehearsed nothing.
    """
    if group.world_size < 2 and group.backend == "gloo":
        findings.unverified("one rank has no peers: rehearse with --gpucluster-ranks=2 or more")
        pytest.skip("unverified: one rank has no peers")
    if group.world_size < 2:
        findings.not_applicable("a node with one GPU has no peers")
        pytest.skip("a node with one GPU has no peers")


def on_off(value: bool | None) -> str:
    """A mode as people say it."""
    return {True: "on", False: "off", None: "unknown"}[value]


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
