"""A site's own rules, reported like the built-in checks: component, figures, next step."""

from __future__ import annotations

from pytest_gpucluster import Findings
from pytest_gpucluster.facts.model import Gpu

HOTTEST_AT_IDLE = 60.0


def test_cool_at_idle(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    for gpu in node_gpus:
        if gpu.temperature is None:
            findings.unverified(f"the temperature of {gpu.label} could not be read")
        elif gpu.temperature > HOTTEST_AT_IDLE:
            findings.report(
                "fail",
                "cooling.hot_at_idle",
                gpu.label,
                f"is at {gpu.temperature:g} C, expected at most {HOTTEST_AT_IDLE:g} C at idle.",
                next_step="Check fans, airflow and coolant.",
                measured=gpu.temperature,
                expected=HOTTEST_AT_IDLE,
                unit="C",
                source="site rule",
            )
