"""What a check found: findings, measurements, and what could not be checked.

All values are frozen and travel between processes as JSON inside pytest's own
``report.user_properties``, which survives xdist workers and ranks alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Severity = Literal["fail", "warn"]
Scalar = int | float | str | None


@dataclass(frozen=True)
class Evidence:
    """A line of an artefact that proves a finding."""

    file: str
    line: int | None = None
    text: str | None = None


@dataclass(frozen=True)
class Finding:
    """One root cause on one component. ``code`` is stable: ``nvlink.links_down``."""

    severity: Severity
    code: str
    component: str
    message: str
    next_step: str
    node: str = ""
    check: str = ""
    measured: Scalar = None
    expected: Scalar = None
    unit: str | None = None
    source: str | None = None
    evidence: tuple[Evidence, ...] = ()
    consequences: tuple[str, ...] = ()  # "p2p.unsupported GPU2-GPU5": same root cause


@dataclass(frozen=True)
class NotChecked:
    """A check (or a part of one) that did not judge, and why."""

    check: str
    reason: str
    node: str = ""


@dataclass(frozen=True)
class Measurement:
    """A number with everything needed to read it again. Bandwidths in GB/s."""

    name: str
    value: float
    unit: str
    node: str = ""
    check: str = ""
    low: float | None = None
    high: float | None = None
    expected: float | None = None
    floor: float | None = None
    ceiling: float | None = None
    source: str | None = None
    derivation: str | None = None
    conditions: dict[str, Any] = field(default_factory=dict)


Record = Finding | NotChecked | Measurement
R = TypeVar("R", Finding, NotChecked, Measurement)

FINDING = "gpucluster.finding"
MEASUREMENT = "gpucluster.measurement"
UNVERIFIED = "gpucluster.unverified"
NOT_APPLICABLE = "gpucluster.not_applicable"


def encode(record: Record) -> str:
    """One-line JSON of a record."""
    import msgspec

    return msgspec.json.encode(record).decode()


def decode(properties: Iterable[tuple[str, object]], name: str, kind: type[R]) -> list[R]:
    """The records of one kind among a report's ``user_properties``."""
    import msgspec

    return [msgspec.json.decode(str(value), type=kind) for key, value in properties if key == name]
