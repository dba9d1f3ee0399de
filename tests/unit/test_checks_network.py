"""Network ports and PCIe links: what is down, slow, narrow or flapping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpucluster.checks import test_network as network
from pytest_gpucluster.checks import test_pcie as pcie
from pytest_gpucluster.facts.model import Host, NetworkPort, NodeFacts, Pcie, Unreadable
from tests.unit.checking import L40S, check, gpus, node, profile

UNREAD = NodeFacts(Host("n"), unreadable=(Unreadable("network", "no /sys here"),))


def port(number: int, **more: Any) -> NetworkPort:
    values = {"kind": "infiniband", "state": "ACTIVE", "rate_gbps": 400.0, **more}
    return NetworkPort(f"mlx5_{number}", **values)


def ports(count: int = 8, odd: dict[int, Any] | None = None, **same: Any) -> NodeFacts:
    odd = odd or {}
    return node(network=tuple(port(i, **{**same, **odd.get(i, {})}) for i in range(count)))


EIGHT = profile('[network]\nports = 8\nkind = "infiniband"\nrate_gbps = 400')


def test_the_ports_a_profile_asks_for_are_there() -> None:
    assert check(network.test_ports, ports(), EIGHT).quiet
    assert check(network.test_ports, ports(9, odd={0: {"state": "DOWN"}}), EIGHT).quiet


def test_a_port_that_is_down_is_named() -> None:
    found = check(network.test_ports, ports(odd={4: {"state": "INIT"}}), EIGHT)
    assert found.short == [("fail", "network.port_down", "mlx5_4 port 1")]
    assert "INIT" in found.findings[0].message


def test_an_adapter_that_is_missing_is_not_a_port_that_is_down() -> None:
    found = check(network.test_ports, ports(7), EIGHT)
    assert found.short == [("fail", "nic.missing", "node")]
    assert (found.findings[0].measured, found.findings[0].expected) == (7, 8)


def test_ports_of_another_kind_do_not_count() -> None:
    found = check(network.test_ports, ports(8, kind="roce"), EIGHT)
    assert found.short == [("fail", "nic.missing", "node")]


def test_without_a_profile_nobody_knows_which_ports_are_meant() -> None:
    assert check(network.test_ports, ports(odd={4: {"state": "DOWN"}})).not_applicable


@pytest.mark.parametrize(
    "function", [network.test_ports, network.test_rates, network.test_link_flaps]
)
def test_a_network_that_was_not_read_is_unverified(function: Any) -> None:
    found = check(function, UNREAD, EIGHT)
    assert not found.findings
    assert found.unverified == ["the network ports are not known: no /sys here"]


def test_a_port_below_the_profiles_rate_fails() -> None:
    found = check(network.test_rates, ports(odd={1: {"rate_gbps": 200.0}}), EIGHT)
    assert found.short == [("fail", "network.rate_low", "mlx5_1 port 1")]
    unread = check(network.test_rates, ports(odd={1: {"rate_gbps": None}}), EIGHT)
    assert unread.unverified == ["the rate of mlx5_1 port 1 could not be read"]


def test_without_a_profile_a_port_slower_than_its_like_warns() -> None:
    found = check(network.test_rates, ports(odd={1: {"rate_gbps": 200.0}}))
    assert found.short == [("warn", "network.rate_low", "mlx5_1 port 1")]
    assert check(network.test_rates, ports(2, odd={1: {"rate_gbps": 200.0}})).quiet
    assert check(network.test_rates, ports(state="DOWN")).not_applicable


@pytest.mark.parametrize(
    ("counts", "flapping"),
    [([0, 0, 11], True), ([0, 0, 10], False), ([6, 6, 11], False), ([40, 1, 1], True)],
)
def test_one_port_that_loses_its_link_far_more_often_warns(
    counts: list[int], flapping: bool
) -> None:
    odd = {i: {"counters": {"link_downed": count}} for i, count in enumerate(counts)}
    found = check(network.test_link_flaps, ports(3, odd=odd))
    worst = counts.index(max(counts))
    expected = [("warn", "network.link_flapping", f"mlx5_{worst} port 1")]
    assert found.short == (expected if flapping else [])


def test_ports_without_counters_are_not_judged() -> None:
    assert check(network.test_link_flaps, ports()).not_applicable


# PCIe

FIVE_BY_16 = Pcie(
    generation=1, width=16, max_generation=5, max_width=16, device_generation=5, replays=0
)


def slots(odd: Pcie, count: int = 8, name: str = "") -> NodeFacts:
    extra = {"name": name} if name else {}
    return node(*gpus(count, pcie=FIVE_BY_16, odd={2: {"pcie": odd}}, **extra))


def test_a_link_that_idles_at_generation_one_is_healthy() -> None:
    for function in (pcie.test_width, pcie.test_generation, pcie.test_replays):
        assert check(function, slots(FIVE_BY_16)).quiet


def test_a_link_narrower_than_its_peers_fails() -> None:
    found = check(pcie.test_width, slots(replace(FIVE_BY_16, width=8)))
    assert found.short == [("fail", "pcie.downgraded", "GPU2")]
    assert (found.findings[0].measured, found.findings[0].expected) == (8, 16)


def test_a_card_in_a_narrow_slot_may_be_meant_and_warns_one_lane_is_not() -> None:
    for width, severity in ((8, "warn"), (1, "fail")):
        narrow = replace(FIVE_BY_16, generation=4, max_generation=4, width=width, max_width=width)
        facts = node(*gpus(2, L40S, pcie=narrow))
        found = check(pcie.test_width, facts)
        assert found.short == [(severity, "pcie.downgraded", f"GPU{i}") for i in range(2)]


def test_a_slot_that_cannot_reach_the_generation_fails() -> None:
    found = check(pcie.test_generation, slots(replace(FIVE_BY_16, max_generation=3)))
    assert found.short == [("fail", "pcie.downgraded", "GPU2")]
    assert "generation 3, expected 5" in found.findings[0].message
    assert found.findings[0].source == "the other GPUs of this node"


def test_pcie_that_could_not_be_read_is_unverified() -> None:
    facts = slots(Pcie())
    assert check(pcie.test_width, facts).unverified == ["the PCIe width of GPU2 could not be read"]
    assert check(pcie.test_generation, facts).unverified == [
        "the PCIe generation of GPU2 could not be read"
    ]


@pytest.mark.parametrize(("replays", "warns"), [(101, True), (100, False), (None, False)])
def test_replays_far_above_the_peers_warn(replays: int | None, warns: bool) -> None:
    found = check(pcie.test_replays, slots(replace(FIVE_BY_16, replays=replays)))
    assert found.short == ([("warn", "pcie.replays", "GPU2")] if warns else [])


def test_replays_that_all_gpus_have_are_usual() -> None:
    facts = node(*gpus(8, pcie=replace(FIVE_BY_16, replays=5000)))
    assert check(pcie.test_replays, facts).quiet
