"""The state a GPU is left in: whole, idle, unthrottled, at its default limits."""

from __future__ import annotations

import pytest

from pytest_gpucluster.checks.compare import common_value, on_off, severity
from pytest_gpucluster.expectations.catalogue import clock_event
from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import Gpu
from pytest_gpucluster.verdict.recorder import Findings

POWER_TOLERANCE = 0.99  # drivers round limits to whole watts
CLOCK_CODES = {
    "hw_thermal": "clocks.thermal",
    "sw_thermal": "clocks.thermal",
    "hw_power_brake": "clocks.power_brake",
}


def test_mig_off(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """MIG is off: a training job gets whole GPUs.

    Needs: GPUs with MIG. Threshold: off, or the profile's ``gpus.mig`` (without a profile it
    warns). When it fails: ``nvidia-smi -mig 0`` and reset the GPU.
    """
    expected = node_expectations.mig
    if expected is None or all(gpu.mig_enabled is None for gpu in node_gpus):
        findings.not_applicable("these GPUs have no MIG")
        pytest.skip("these GPUs have no MIG")
    for gpu in node_gpus:
        if gpu.mig_enabled is not None and gpu.mig_enabled != expected.value:
            findings.report(
                severity(expected),
                "mig.enabled" if gpu.mig_enabled else "mig.disabled",
                gpu.label,
                f"MIG is {on_off(gpu.mig_enabled)}.",
                next_step=f"nvidia-smi -i {gpu.index} -mig {int(expected.value)}, then reset it.",
                measured=on_off(gpu.mig_enabled),
                expected=on_off(expected.value),
                source=expected.source,
            )


def test_idle(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """No other process computes on a GPU.

    Needs: a GPU. Threshold: no compute process before the checks start. When it fails: end the
    processes; a leftover of an earlier job also holds memory and disturbs what is measured.
    """
    for gpu in node_gpus:
        if gpu.processes is None:
            findings.unverified(f"the processes on {gpu.label} could not be read")
        elif gpu.processes:
            named = ", ".join(
                f"{process.pid} ({process.name or 'unknown'})" for process in gpu.processes[:4]
            )
            findings.report(
                "fail",
                "gpu.busy",
                gpu.label,
                f"{len(gpu.processes)} other process(es) compute here: {named}.",
                next_step="End them (or drain the node), then accept again.",
                measured=len(gpu.processes),
                expected=0,
                unit="processes",
            )


def test_compute_mode(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """The compute mode lets jobs in.

    Needs: a GPU. Threshold: not prohibited; exclusive-process warns, it breaks jobs that share
    a GPU between processes. When it fails: ``nvidia-smi -c DEFAULT``.
    """
    for gpu in node_gpus:
        if gpu.compute_mode in ("prohibited", "exclusive_process"):
            findings.report(
                "fail" if gpu.compute_mode == "prohibited" else "warn",
                "gpu.compute_mode",
                gpu.label,
                f"compute mode is {gpu.compute_mode}.",
                next_step=f"nvidia-smi -i {gpu.index} -c DEFAULT",
                measured=gpu.compute_mode,
                expected="default",
            )


def test_persistence(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """Persistence mode is on, so that the driver stays loaded between jobs.

    Needs: a GPU. Threshold: on, or the profile's ``gpus.persistence`` (without a profile it
    warns). When it fails: enable nvidia-persistenced.
    """
    expected = node_expectations.persistence
    for gpu in node_gpus:
        if expected and gpu.persistence is not None and gpu.persistence != expected.value:
            findings.report(
                severity(expected),
                "persistence.off" if expected.value else "persistence.on",
                gpu.label,
                f"persistence mode is {on_off(gpu.persistence)}.",
                next_step="systemctl enable --now nvidia-persistenced",
                measured=on_off(gpu.persistence),
                expected=on_off(expected.value),
                source=expected.source,
            )


def test_power_limit(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """The power limit is the GPU's default, or the profile's.

    Needs: a GPU. Threshold: the profile's ``power.limit_w`` fails; without one, a limit below
    the default warns if all GPUs have it and fails on a single GPU, which slows down the rest.
    When it fails: ``nvidia-smi -pl``.
    """
    expected = node_expectations.power_limit_w
    usual = common_value(node_gpus, lambda gpu: gpu.power.limit)
    for gpu in node_gpus:
        limit = gpu.power.limit
        target = expected.value if expected else gpu.power.default_limit
        if limit is None or target is None:
            if expected is not None:
                findings.unverified(f"the power limit of {gpu.label} could not be read")
            continue
        if limit < POWER_TOLERANCE * target:
            alone = usual is not None and limit != usual
            findings.report(
                "fail" if expected is not None or alone else "warn",
                "power.limit_low",
                gpu.label,
                f"power limit is {limit:g} W, expected {target:g} W.",
                next_step=f"nvidia-smi -i {gpu.index} -pl {target:g}, or set power.limit_w in a "
                "profile if the limit is meant.",
                measured=limit,
                expected=target,
                unit="W",
                source=expected.source if expected else "the GPU's default limit",
            )


def test_clock_events(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """Nothing slows the clocks down: no heat, no power brake.

    Needs: a GPU. Threshold: no harmful reason (catalogue); a lone "HW slowdown" warns, as it
    also shows for a moment when clocks change. When it fails: check cooling and power supplies.
    """
    for gpu in node_gpus:
        reasons = gpu.clocks.event_reasons
        if reasons is None:
            findings.unverified(f"the clock-event reasons of {gpu.label} could not be read")
            continue
        specific = [name for name in reasons if name in CLOCK_CODES]
        for name in specific or reasons:
            event = clock_event(name)
            if event is None or event.harmful is False:
                continue
            findings.report(
                "fail" if specific else "warn",
                CLOCK_CODES.get(name, "clocks.slowdown"),
                gpu.label,
                f"{event.meaning} ({name}).",
                next_step="Check airflow or coolant, and the power supplies of the chassis.",
                measured=name,
                expected="none",
                source="catalogue: clock-event reasons",
            )
            break


def test_recovery_action(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """The driver asks for no reset, drain or reboot.

    Needs: a driver that reports it. Threshold: none. When it fails: do what it asks.
    """
    if all(gpu.recovery_action is None for gpu in node_gpus):
        findings.not_applicable("this driver reports no recovery action")
        pytest.skip("this driver reports no recovery action")
    for gpu in node_gpus:
        if gpu.recovery_action not in (None, "none"):
            findings.report(
                "fail",
                "gpu.recovery_needed",
                gpu.label,
                f"the driver asks for: {gpu.recovery_action.replace('_', ' ')}.",
                next_step="Do so, then accept again.",
                measured=gpu.recovery_action,
                expected="none",
            )
