"""GPUs there, all of them, the right ones, in the state a job expects."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.checks import test_gpu_state as state
from pytest_gpucluster.checks import test_gpus as there
from pytest_gpucluster.facts.model import (
    Clocks,
    Gpu,
    GpuProcess,
    Host,
    NodeFacts,
    Power,
    Unreadable,
)
from tests.unit.checking import H100, L40S, RTX_3090, check, gpus, node, profile

NVML_DOWN = (Unreadable("nvml", "NVML did not answer in 20 s"),)


# Presence and count


def test_a_driver_that_answers_is_present() -> None:
    assert check(there.test_present, node(*gpus(8))).quiet


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (node(), "gpu.missing"),
        (NodeFacts(Host("n"), unreadable=(Unreadable("nvml", "no driver"),)), "gpu.missing"),
        (NodeFacts(Host("n"), unreadable=NVML_DOWN), "gpu.driver"),
        (NodeFacts(Host("n", nvidia_pci_devices=8)), "gpu.driver"),
    ],
    ids=["no GPU", "no driver", "a hung driver", "a broken driver"],
)
def test_a_node_without_usable_gpus_fails_once(facts: NodeFacts, code: str) -> None:
    assert check(there.test_present, facts).short == [("fail", code, "node")]


def test_a_gpu_that_fell_off_the_bus_is_named() -> None:
    facts = node(*gpus(8, odd={3: {"lost": "GPU is lost"}}))
    assert check(there.test_present, facts).short == [("fail", "gpu.off_bus", "GPU3")]
    assert check(there.test_count, facts, profile("[gpus]\ncount = 8")).quiet, "told once"


@pytest.mark.parametrize(
    ("count", "short"),
    [(8, []), (7, [("fail", "gpu.missing", "node")]), (9, [("fail", "gpu.unexpected", "node")])],
)
def test_the_profile_says_how_many(count: int, short: list[Any]) -> None:
    found = check(there.test_count, node(*gpus(count)), profile("[gpus]\ncount = 8"))
    assert found.short == short
    for finding in found.findings:
        assert (finding.measured, finding.expected) == (count, 8)
        assert "site" in str(finding.source)


def test_without_a_profile_a_number_that_no_board_has_is_unverified() -> None:
    assert check(there.test_count, node(*gpus(8))).quiet
    odd = check(there.test_count, node(*gpus(7)))
    assert not odd.findings
    assert len(odd.unverified) == 1


def test_one_gpu_is_too_few_unless_the_profile_says_so() -> None:
    one = node(*gpus(1, L40S))
    assert check(there.test_count, one).short == [("fail", "gpu.missing", "node")]
    assert check(there.test_count, one, profile("[gpus]\ncount = 1")).quiet


def test_a_gpu_on_the_bus_that_the_driver_does_not_show_is_unverified() -> None:
    facts = node(*gpus(4, L40S), host=Host("n", nvidia_pci_devices=5))
    assert len(check(there.test_count, facts).unverified) == 1


# Model, firmware, memory


def test_the_odd_model_is_blamed_and_not_its_peers() -> None:
    facts = node(*gpus(4, odd={2: {"name": L40S}}))
    found = check(there.test_model, facts, profile(f'[gpus]\nmodel = ["{H100}"]'))
    assert ("fail", "gpu.wrong_model", "GPU2") in found.short
    assert {component for _, _, component in found.short} == {"GPU2"}


def test_a_gpu_the_catalogue_does_not_know_is_unverified() -> None:
    found = check(there.test_model, node(*gpus(2, "NVIDIA X9000")))
    assert not found.findings
    assert "X9000" in found.unverified[0]


def test_the_one_firmware_that_differs_warns() -> None:
    facts = node(*gpus(4, vbios="96.00.89", odd={1: {"vbios": "96.00.74"}}))
    assert check(there.test_model, facts).short == [("warn", "gpu.firmware_differs", "GPU1")]
    assert check(there.test_model, node(*gpus(4, vbios="96.00.89"))).quiet


GB = 10**9


def test_memory_below_the_products_size_fails() -> None:
    facts = node(*gpus(8, memory_bytes=85 * GB, odd={5: {"memory_bytes": 40 * GB}}))
    found = check(there.test_memory, facts)
    assert found.short == [("fail", "memory.size", "GPU5")]
    assert found.findings[0].measured == 40
    assert check(there.test_memory, node(*gpus(8, memory_bytes=85 * GB))).quiet


def test_memory_a_little_below_the_peers_fails() -> None:
    facts = node(*gpus(8, memory_bytes=85 * GB, odd={5: {"memory_bytes": 82 * GB}}))
    assert check(there.test_memory, facts).short == [("fail", "memory.size", "GPU5")]


def test_memory_that_is_not_known_is_unverified() -> None:
    assert check(there.test_memory, node(*gpus(8))).unverified
    unknown = check(there.test_memory, node(*gpus(2, "NVIDIA X9000", memory_bytes=GB)))
    assert unknown.unverified


# State


def test_mig_must_be_off() -> None:
    on = node(*gpus(8, mig_enabled=False, odd={6: {"mig_enabled": True}}))
    assert check(state.test_mig_off, on).short == [("warn", "mig.enabled", "GPU6")]
    by = profile("[gpus]\nmig = false")
    assert check(state.test_mig_off, on, by).short == [("fail", "mig.enabled", "GPU6")]
    assert check(state.test_mig_off, node(*gpus(8, mig_enabled=False))).quiet
    assert check(state.test_mig_off, node(*gpus(2, RTX_3090))).not_applicable


def test_a_profile_may_ask_for_mig() -> None:
    off = node(*gpus(2, mig_enabled=False))
    found = check(state.test_mig_off, off, profile("[gpus]\nmig = true"))
    assert found.short == [("fail", "mig.disabled", f"GPU{i}") for i in range(2)]


def test_a_foreign_process_is_named() -> None:
    busy = (GpuProcess(4711, "python"), GpuProcess(4712))
    facts = node(*gpus(2, processes=(), odd={1: {"processes": busy}}))
    found = check(state.test_idle, facts)
    assert found.short == [("fail", "gpu.busy", "GPU1")]
    assert "4711 (python), 4712 (unknown)" in found.findings[0].message
    assert check(state.test_idle, node(*gpus(2, processes=()))).quiet
    assert len(check(state.test_idle, node(*gpus(2))).unverified) == 2


@pytest.mark.parametrize(
    ("mode", "severity"), [("prohibited", "fail"), ("exclusive_process", "warn"), ("default", None)]
)
def test_compute_modes(mode: str, severity: str | None) -> None:
    found = check(state.test_compute_mode, node(*gpus(2, odd={1: {"compute_mode": mode}})))
    assert found.short == ([(severity, "gpu.compute_mode", "GPU1")] if severity else [])


def test_persistence_warns_unless_a_profile_asks_for_it() -> None:
    off = node(*gpus(2, persistence=True, odd={1: {"persistence": False}}))
    assert check(state.test_persistence, off).short == [("warn", "persistence.off", "GPU1")]
    by = profile("[gpus]\npersistence = true")
    assert check(state.test_persistence, off, by).short == [("fail", "persistence.off", "GPU1")]


def powered(*limits: float | None, default: float | None = 700) -> NodeFacts:
    return node(
        *(
            Gpu(i, name=H100, power=Power(limit=limit, default_limit=default))
            for i, limit in enumerate(limits)
        )
    )


def test_one_gpu_with_a_lower_power_limit_fails() -> None:
    found = check(state.test_power_limit, powered(700, 700, 500, 700))
    assert found.short == [("fail", "power.limit_low", "GPU2")]
    assert (found.findings[0].measured, found.findings[0].expected) == (500, 700)


def test_a_lower_power_limit_on_all_gpus_may_be_meant_and_warns() -> None:
    found = check(state.test_power_limit, powered(500, 500, 500))
    assert found.short == [("warn", "power.limit_low", f"GPU{i}") for i in range(3)]
    by = profile("[power]\nlimit_w = 500")
    assert check(state.test_power_limit, powered(500, 500, 500), by).quiet


def test_a_power_limit_below_the_profiles_fails_and_an_unknown_one_is_unverified() -> None:
    by = profile("[power]\nlimit_w = 700")
    found = check(state.test_power_limit, powered(500, None, 696), by)
    assert found.short == [("fail", "power.limit_low", "GPU0")], "696 W is rounding"
    assert found.unverified == ["the power limit of GPU1 could not be read"]


def clocked(*reasons: str) -> NodeFacts:
    return node(
        *gpus(
            2, clocks=Clocks(event_reasons=()), odd={1: {"clocks": Clocks(event_reasons=reasons)}}
        )
    )


@pytest.mark.parametrize(
    ("reasons", "short"),
    [
        (("hw_slowdown", "hw_thermal"), [("fail", "clocks.thermal", "GPU1")]),
        (("sw_thermal",), [("fail", "clocks.thermal", "GPU1")]),
        (("hw_slowdown", "hw_power_brake"), [("fail", "clocks.power_brake", "GPU1")]),
        (("hw_slowdown",), [("warn", "clocks.slowdown", "GPU1")]),
        (("gpu_idle", "sw_power_cap"), []),
        ((), []),
    ],
)
def test_reasons_for_low_clocks(reasons: tuple[str, ...], short: list[Any]) -> None:
    assert check(state.test_clock_events, clocked(*reasons)).short == short


def test_clock_reasons_that_could_not_be_read_are_unverified() -> None:
    assert len(check(state.test_clock_events, node(*gpus(2))).unverified) == 2


def test_a_driver_that_asks_for_a_reset_is_heard() -> None:
    facts = node(*gpus(2, recovery_action="none", odd={1: {"recovery_action": "gpu_reset"}}))
    found = check(state.test_recovery_action, facts)
    assert found.short == [("fail", "gpu.recovery_needed", "GPU1")]
    assert "gpu reset" in found.findings[0].message
    assert check(state.test_recovery_action, node(*gpus(2))).not_applicable
