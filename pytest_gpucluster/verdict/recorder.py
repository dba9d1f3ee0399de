"""What a check reports through: the ``findings`` fixture."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_gpucluster.verdict.findings import (
    FINDING,
    MEASUREMENT,
    NOT_APPLICABLE,
    UNVERIFIED,
    Evidence,
    Finding,
    Measurement,
    NotChecked,
    Scalar,
    Severity,
    encode,
)


class Findings:
    """Collects what one test found on one node.

    A test with a ``fail`` finding fails, one that could not verify something is skipped as
    unverified, whatever its own code does afterwards.
    """

    def __init__(self, node: str, check: str, properties: list[tuple[str, object]]) -> None:
        self.node = node
        self.check = check
        self.found: list[Finding] = []
        self.not_verified: list[str] = []
        self._properties = properties

    def report(
        self,
        severity: Severity,
        code: str,
        component: str,
        message: str,
        *,
        next_step: str,
        measured: Scalar = None,
        expected: Scalar = None,
        unit: str | None = None,
        source: str | None = None,
        evidence: tuple[Evidence, ...] = (),
    ) -> None:
        """Report a fault of ``component`` (``GPU2``, ``mlx5_4 port 1``, ``rank 3``, ``node``)."""
        finding = Finding(
            severity,
            code,
            component,
            message,
            next_step,
            self.node,
            self.check,
            measured,
            expected,
            unit,
            source,
            evidence,
        )
        self.found.append(finding)
        self._properties.append((FINDING, encode(finding)))

    def unverified(self, reason: str) -> None:
        """Say that something which should be verified could not be, and why."""
        self.not_verified.append(reason)
        self._properties.append((UNVERIFIED, encode(NotChecked(self.check, reason, self.node))))

    def not_applicable(self, reason: str) -> None:
        """Say that this node is not supposed to have what the test checks."""
        self._properties.append((NOT_APPLICABLE, encode(NotChecked(self.check, reason, self.node))))

    def measured(self, measurement: Measurement) -> None:
        """Keep a measurement for the report; one that is no number leaves the check unverified."""
        if not math.isfinite(measurement.value):
            self.unverified(f"{measurement.name}: {measurement.value} is not a measurement")
            return
        complete = replace(measurement, node=self.node, check=self.check)
        self._properties.append((MEASUREMENT, encode(complete)))

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.found if finding.severity == "fail"]

    def describe_failures(self) -> str:
        """The text of a test that failed by its findings: found, expected, next step."""
        return "\n\n".join(
            f"{finding.component}: {finding.message}\n  next: {finding.next_step}"
            for finding in self.failures
        )
