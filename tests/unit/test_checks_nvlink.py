"""NVLink, fabric and peer access: the GPU at fault is named once."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from pytest_gpucluster.checks import test_nvlink as nvlink
from pytest_gpucluster.checks import test_p2p as p2p
from pytest_gpucluster.facts.model import Fabric, GpuPair, NodeFacts, NvLink
from tests.unit.checking import L40S, RTX_3090, Found, check, gpus, node, profile


def links(up: int = 18, down: int = 0, version: str | None = "4.0", **more: Any) -> tuple[Any, ...]:
    return tuple(
        NvLink(i, active=i < up, version=version, remote_type="switch", **more)
        for i in range(up + down)
    )


def hopper(odd: dict[int, Any] | None = None, count: int = 8, **same: Any) -> NodeFacts:
    return node(*gpus(count, odd=odd, **{"nvlinks": links(errors={"replay": 0}), **same}))


def test_a_healthy_node_is_quiet() -> None:
    for function in (nvlink.test_links_up, nvlink.test_link_version, nvlink.test_link_errors):
        assert check(function, hopper()).quiet


# Links


def test_the_gpu_whose_links_are_down_is_blamed_not_its_peers() -> None:
    found = check(nvlink.test_links_up, hopper({2: {"nvlinks": links(0, 18)}}))
    assert found.short == [("fail", "nvlink.links_down", "GPU2")]
    (finding,) = found.findings
    assert (finding.measured, finding.expected, finding.unit) == (0, 18, "links")
    assert "The other 7 GPUs are complete, so look at GPU2" in finding.message
    assert "catalogue" in str(finding.source)


def test_the_links_that_are_down_are_named() -> None:
    found = check(nvlink.test_links_up, hopper({2: {"nvlinks": links(16, 2)}}))
    assert "16 of 18 NVLinks are up (down: 16, 17)" in found.findings[0].message


def test_when_several_are_down_the_switches_are_not_acquitted() -> None:
    odd = {i: {"nvlinks": links(0, 18)} for i in (2, 5)}
    found = check(nvlink.test_links_up, hopper(odd))
    assert [component for _, _, component in found.short] == ["GPU2", "GPU5"]
    assert "not at the switches" not in found.findings[0].message


def test_links_that_could_not_be_read_are_unverified() -> None:
    found = check(nvlink.test_links_up, hopper({2: {"nvlinks": None}}))
    assert not found.findings
    assert found.unverified == ["the NVLinks of GPU2 could not be read"]


def test_products_without_nvlink_are_not_judged_and_unknown_ones_are_unverified() -> None:
    assert check(nvlink.test_links_up, node(*gpus(8, L40S, nvlinks=()))).not_applicable
    assert check(nvlink.test_links_up, node(*gpus(2, "NVIDIA X9000"))).unverified


def test_bridged_cards_are_judged_once_a_bridge_is_mounted() -> None:
    bare = node(*gpus(2, RTX_3090, nvlinks=links(0, 4)))
    bridged = node(*gpus(2, RTX_3090, nvlinks=links(4)))
    half = node(*gpus(2, RTX_3090, nvlinks=links(4), odd={1: {"nvlinks": links(3, 1)}}))
    assert check(nvlink.test_links_up, bare).not_applicable
    assert check(nvlink.test_links_up, bridged).quiet
    assert check(nvlink.test_links_up, half).short[0][1:] == ("nvlink.links_down", "GPU1")


def test_a_link_of_an_older_generation_is_a_fault() -> None:
    found = check(nvlink.test_link_version, hopper({4: {"nvlinks": links(version="3.0")}}))
    assert found.short == [("fail", "nvlink.version", "GPU4")]
    assert "18 links run NVLink 3.0, expected 4.0" in found.findings[0].message
    unread = check(nvlink.test_link_version, hopper({4: {"nvlinks": links(version=None)}}))
    assert unread.unverified == ["the NVLink version of GPU4 could not be read"]


def test_counted_errors_warn_and_name_the_worst_link() -> None:
    bad = list(links(errors={"replay": 0}))
    bad[3] = replace(bad[3], errors={"replay": 2})
    bad[7] = replace(bad[7], errors={"replay": 40, "crc": 1, "recovery": 0})
    found = check(nvlink.test_link_errors, hopper({1: {"nvlinks": tuple(bad)}}))
    assert found.short == [("warn", "nvlink.errors", "GPU1")]
    assert "2 links have counted errors, most on link 7: replay 40, crc 1." in (
        found.findings[0].message
    )
    assert found.findings[0].measured == 43


def test_counters_that_could_not_be_read_are_unverified() -> None:
    assert check(nvlink.test_link_errors, node(*gpus(2, nvlinks=links()))).unverified
    assert check(nvlink.test_link_errors, node(*gpus(2, nvlinks=()))).not_applicable


# Fabric

WELL = Fabric("completed", 0, incorrect_configuration="none")


@pytest.mark.parametrize(
    ("fabric", "code"),
    [
        (WELL, None),
        (Fabric("completed", 0, incorrect_configuration="not_supported"), None),
        (Fabric("in_progress"), "fabric.not_ready"),
        (Fabric("not_started"), "fabric.not_ready"),
        (Fabric("completed", 23), "fabric.insufficient_resources"),
        (Fabric("completed", 0, degraded_bandwidth=True), "fabric.unhealthy"),
        (Fabric("completed", 0, route_unhealthy=True), "fabric.unhealthy"),
        (Fabric("completed", 0, route_recovery=True), "fabric.unhealthy"),
        (Fabric("completed", 0, access_timeout=True), "fabric.unhealthy"),
        (Fabric("completed", 0, incorrect_configuration="sysguid"), "fabric.unhealthy"),
    ],
)
def test_fabric_states(fabric: Fabric, code: str | None) -> None:
    found = check(nvlink.test_fabric, hopper({6: {"fabric": fabric}}, fabric=WELL))
    assert [entry[1:] for entry in found.short] == ([(code, "GPU6")] if code else [])


def test_a_fabric_that_could_not_be_read_is_unverified() -> None:
    assert len(check(nvlink.test_fabric, hopper()).unverified) == 8
    assert check(nvlink.test_fabric, node(*gpus(8, L40S))).not_applicable


# Peer access


def peer(a: int, b: int, **status: Any) -> GpuPair:
    return GpuPair(a, b, **{"read": "ok", "write": "ok", "nvlink": "ok", **status})


def peers(bad: Any = (), **status: Any) -> Found:
    pairs = tuple(
        peer(a, b, **(status if (a, b) in bad else {})) for a, b in combinations(range(8), 2)
    )
    return check(p2p.test_peer_access, replace(hopper(), pairs=pairs))


def test_pairs_that_all_reach_each_other_are_quiet() -> None:
    assert peers().quiet


def test_one_pair_without_peer_access_is_named() -> None:
    found = peers([(2, 5)], read="chipset_not_supported")
    assert found.short == [("fail", "p2p.unsupported", "GPU2-GPU5")]


def test_a_pair_that_can_read_but_not_write_is_named() -> None:
    assert len(peers([(2, 5)], write="not_supported").findings) == 1


def test_a_pair_that_lost_its_nvlink_is_named() -> None:
    assert len(peers([(2, 5)], nvlink="not_supported").findings) == 1


def test_a_gpu_that_reaches_nobody_is_blamed_itself() -> None:
    bad = [pair for pair in combinations(range(8), 2) if 3 in pair]
    found = peers(bad, read="not_supported")
    assert found.short == [("fail", "p2p.unsupported", "GPU3")]


def test_peer_access_that_could_not_be_read_is_unverified() -> None:
    found = peers([(2, 5)], read="unknown")
    assert not found.findings
    assert found.unverified == ["peer access of GPU2-GPU5 could not be read"]
    assert check(p2p.test_peer_access, hopper()).unverified == ["peer access could not be read"]


def test_a_lost_gpu_is_not_blamed_for_its_pairs_as_well() -> None:
    dead = {"read": "unknown", "write": "unknown"}
    pairs = tuple(peer(a, b, **(dead if b == 7 else {})) for a, b in combinations(range(8), 2))
    facts = replace(hopper({7: {"lost": "GPU is lost"}}), pairs=pairs)
    assert check(p2p.test_peer_access, facts).quiet


def test_cards_without_peer_access_by_design_are_not_judged() -> None:
    assert check(p2p.test_peer_access, node(*gpus(8, "NVIDIA GeForce RTX 4090"))).not_applicable
    asked = check(p2p.test_peer_access, node(*gpus(2, L40S)), profile("[p2p]\nrequired = true"))
    assert asked.unverified == ["peer access could not be read"]
