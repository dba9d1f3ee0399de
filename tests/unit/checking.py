"""Run one built-in check on made-up facts, without pytest around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_gpucluster.expectations.expect import expect
from pytest_gpucluster.expectations.profile import Profile, parse_profile
from pytest_gpucluster.facts.model import Gpu, Host, NodeFacts
from pytest_gpucluster.verdict.findings import (
    MEASUREMENT,
    NOT_APPLICABLE,
    UNVERIFIED,
    Finding,
    Measurement,
    NotChecked,
    decode,
)
from pytest_gpucluster.verdict.recorder import Findings

H100, L40S, RTX_3090 = "NVIDIA H100 80GB HBM3", "NVIDIA L40S", "NVIDIA GeForce RTX 3090"


@dataclass
class Found:
    """What a check said."""

    recorder: Findings
    properties: list[tuple[str, object]] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        return self.recorder.found

    @property
    def short(self) -> list[tuple[str, str, str]]:
        """Severity, code and component of each finding."""
        return [(f.severity, f.code, f.component) for f in self.findings]

    @property
    def unverified(self) -> list[str]:
        return [entry.reason for entry in decode(self.properties, UNVERIFIED, NotChecked)]

    @property
    def not_applicable(self) -> list[str]:
        return [entry.reason for entry in decode(self.properties, NOT_APPLICABLE, NotChecked)]

    @property
    def measurements(self) -> list[Measurement]:
        return decode(self.properties, MEASUREMENT, Measurement)

    @property
    def quiet(self) -> bool:
        """It checked, and all was well."""
        return not (self.findings or self.unverified or self.not_applicable)


def recorder() -> Found:
    properties: list[tuple[str, object]] = []
    return Found(Findings("node-1", "a_check", properties), properties)


def node(*gpus: Gpu, host: Host | None = None, **more: Any) -> NodeFacts:
    return NodeFacts(host or Host("node-1"), gpus=gpus, **more)


def gpus(count: int, name: str = H100, odd: dict[int, Any] | None = None, **same: Any) -> list[Gpu]:
    """``count`` equal GPUs; ``odd`` says what is different about some of them."""
    odd = odd or {}
    return [Gpu(i, **{"name": name, **same, **odd.get(i, {})}) for i in range(count)]


def profile(text: str) -> Profile:
    return parse_profile(text, source="site.toml", name="site", origin="site.toml")


def check(
    function: Callable[..., object], facts: NodeFacts, by: Profile | None = None, **more: Any
) -> Found:
    """Call a check with what its arguments ask for; a skip must have said why it does not apply."""
    found = recorder()
    working: Sequence[Gpu] = tuple(gpu for gpu in facts.gpus or () if gpu.lost is None)
    available = {
        "findings": found.recorder,
        "node_facts": facts,
        "node_hardware": facts,
        "node_gpus": working,
        "node_expectations": expect(facts, by),
        "node_profile": by,
        **more,
    }
    try:
        function(**{name: available[name] for name in inspect.signature(function).parameters})
    except pytest.skip.Exception as skip:
        if found.not_applicable != [skip.msg]:
            raise
    for finding in found.findings:
        assert finding.message
        assert finding.next_step
    return found


class Group:
    """Rank 0 of a group whose other ranks answer what the test says."""

    rank = 0

    def __init__(self, world_size: int, others: Callable[[Any], list[Any]] | None = None) -> None:
        self.world_size = world_size
        self.backend = "gloo"
        self.device = "cpu"
        self._others = others

    def exchange(self, value: Any) -> list[Any]:
        others = self._others(value) if self._others else [value] * (self.world_size - 1)
        return [value, *others]
