"""The requires_* needs of hardware: met, missing though it should be there, or unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpucluster import needs
from pytest_gpucluster.expectations.expect import expect
from pytest_gpucluster.facts.model import (
    Gpu,
    GpuPair,
    Host,
    NetworkPort,
    NodeFacts,
    NvLink,
    Unreadable,
)
from pytest_gpucluster.needs import Need
from tests.unit.asking import (
    DEAD_DRIVER,
    MISSING_AS_IT_SHOULD,
    MISSING_BUT_SUPPOSED,
    MISSING_WHO_KNOWS,
    UNKNOWN,
    ask,
    gpu,
    node,
    supposed,
    unmet,
)

# GPUs


def test_enough_gpus() -> None:
    assert ask(needs.gpus(2), node(gpu(0), gpu(1))).met is True


def test_too_few_gpus() -> None:
    facts = node(gpu(0))
    assert unmet(ask(needs.gpus(2), facts, supposed(gpu_count=8))) == MISSING_BUT_SUPPOSED
    assert unmet(ask(needs.gpus(2), facts, supposed(gpu_count=1))) == MISSING_AS_IT_SHOULD
    assert unmet(ask(needs.gpus(2), facts)) == MISSING_WHO_KNOWS
    assert "1 of 2 GPUs" in ask(needs.gpus(2), facts).reason


def test_a_lost_gpu_does_not_count() -> None:
    facts = node(gpu(0), gpu(1, lost="GPU is lost"))
    assert unmet(ask(needs.gpus(2), facts, supposed(gpu_count=2))) == MISSING_BUT_SUPPOSED


def test_gpus_that_could_not_be_counted_are_unknown() -> None:
    answer = ask(needs.gpus(1), DEAD_DRIVER, supposed(gpu_count=8))
    assert unmet(answer) == UNKNOWN
    assert "driver not loaded" in answer.reason


# NVLink


def test_nvlink_on_every_gpu() -> None:
    facts = node(gpu(0, links=4), gpu(1, links=4))
    assert ask(needs.nvlink(), facts).met is True
    assert ask(needs.nvlink(min_links=4), facts).met is True
    assert unmet(ask(needs.nvlink(min_links=5), facts))[0] is False


def test_a_lost_gpu_is_not_asked_for_its_nvlinks() -> None:
    facts = node(gpu(0, links=4), gpu(1, links=None, lost="GPU is lost"))
    assert ask(needs.nvlink(), facts).met is True


def test_one_gpu_with_a_link_down_is_named() -> None:
    facts = node(gpu(0, links=4), gpu(1, links=4, down=3))
    answer = ask(needs.nvlink(min_links=2), facts)
    assert answer.reason == "GPU1 has 1 of 2 NVLinks up"


@pytest.mark.parametrize(
    ("presence", "meaning"),
    [("required", True), ("absent", False), ("optional", False), ("unknown", None)],
)
def test_missing_nvlink_counts_by_what_the_product_has(presence: str, meaning: bool | None) -> None:
    facts = node(gpu(0), gpu(1))
    assert unmet(ask(needs.nvlink(), facts, supposed(nvlink_present=presence))) == (False, meaning)


@pytest.mark.parametrize(
    "facts",
    [
        DEAD_DRIVER,
        node(),
        node(gpu(0, links=4), gpu(1, links=None)),
        node(Gpu(0, nvlinks=(NvLink(0, active=None),))),
    ],
    ids=["no driver", "no GPU", "links unreadable", "state unreadable"],
)
def test_nvlinks_that_could_not_be_read_are_unknown(facts: NodeFacts) -> None:
    assert unmet(ask(needs.nvlink(), facts, supposed(nvlink_present="required"))) == UNKNOWN


def linked(*states: str) -> NodeFacts:
    pairs = tuple(
        GpuPair(a, b, nvlink=state)  # type: ignore[arg-type]
        for (a, b), state in zip([(0, 1), (0, 2), (1, 2)], states, strict=True)
    )
    return node(*(gpu(index, links=2) for index in range(3)), pairs=pairs)


def test_nvlink_between_all_pairs() -> None:
    need = needs.nvlink(all_pairs=True)
    expected = supposed(nvlink_present="required")
    assert ask(need, linked("ok", "ok", "ok")).met is True
    broken = ask(need, linked("ok", "not_supported", "ok"), expected)
    assert unmet(broken) == MISSING_BUT_SUPPOSED
    assert "GPU0-GPU2" in broken.reason
    assert unmet(ask(need, linked("ok", "ok", "unknown"), expected)) == UNKNOWN
    assert unmet(ask(need, replace(linked("ok", "ok", "ok"), pairs=None), expected)) == UNKNOWN


def test_pairs_matter_only_if_asked_for() -> None:
    assert ask(needs.nvlink(), linked("ok", "not_supported", "unknown")).met is True


# NVSwitch


def test_nvswitch_behind_every_gpu() -> None:
    switched = node(gpu(0, links=2, remote="switch"), gpu(1, links=2, remote="switch"))
    assert ask(needs.nvswitch(), switched).met is True


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("NVIDIA B200", True),
        ("NVIDIA L40S", False),
        ("Tesla V100-SXM2-32GB", False),
        ("NVIDIA H100 80GB HBM3", None),  # four-GPU boards have none
        ("NVIDIA X9000", None),
    ],
)
def test_missing_nvswitch_counts_by_what_the_product_has(name: str, meaning: bool | None) -> None:
    facts = node(*(gpu(index, links=2, remote="gpu", name=name) for index in range(8)))
    assert unmet(ask(needs.nvswitch(), facts, expect(facts))) == (False, meaning)


def test_one_gpu_without_a_switch_is_one_too_many() -> None:
    facts = node(gpu(0, links=2, remote="switch"), gpu(1, links=2, remote="gpu"))
    assert ask(needs.nvswitch(), facts).met is False


@pytest.mark.parametrize(
    "facts",
    [DEAD_DRIVER, node(gpu(links=None)), node(gpu(links=2, remote=None))],
    ids=["no driver", "links unreadable", "remote end unreadable"],
)
def test_an_nvswitch_that_could_not_be_looked_for_is_unknown(facts: NodeFacts) -> None:
    assert unmet(ask(needs.nvswitch(), facts, expect(node(gpu(name="NVIDIA B200"))))) == UNKNOWN


def test_links_that_are_down_lead_to_no_switch() -> None:
    facts = node(gpu(links=2, down=2, remote=None, name="NVIDIA B200"))
    assert unmet(ask(needs.nvswitch(), facts, expect(facts))) == MISSING_BUT_SUPPOSED


# Network


def port(kind: str = "infiniband", state: str | None = "ACTIVE", rate: float | None = 400) -> Any:
    return NetworkPort("mlx5_0", kind=kind, state=state, rate_gbps=rate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("need", "kind", "met"),
    [
        (needs.infiniband(), "infiniband", True),
        (needs.infiniband(), "roce", False),
        (needs.rdma(), "infiniband", True),
        (needs.rdma(), "roce", True),
        (needs.rdma(), "efa", True),
        (needs.rdma(), "ethernet", False),
    ],
)
def test_the_kind_of_a_port_decides(need: Need, kind: str, met: bool) -> None:
    assert ask(need, node(network=(port(kind),))).met is met


def test_a_port_that_is_down_does_not_count() -> None:
    answer = ask(needs.rdma(), node(network=(port(state="DOWN"),)))
    assert answer.met is False
    assert "found 1" in answer.reason


@pytest.mark.parametrize(("rate", "met"), [(200, False), (None, None)])
def test_the_fastest_port_decides(rate: float | None, met: bool | None) -> None:
    need = needs.infiniband(min_rate_gbps=400)
    assert ask(need, node(network=(port(rate=rate), port()))).met is True
    assert ask(need, node(network=(port(rate=rate),))).met is met


def test_a_port_whose_state_could_not_be_read_is_unknown() -> None:
    facts = node(network=(port(state=None), port(state="DOWN")))
    assert unmet(ask(needs.rdma(), facts, supposed(network_kind="infiniband"))) == UNKNOWN


def test_missing_ports_count_by_what_the_profile_says() -> None:
    facts = node(network=())
    need = needs.infiniband()
    assert unmet(ask(need, facts, supposed(network_kind="infiniband"))) == MISSING_BUT_SUPPOSED
    assert unmet(ask(need, facts, supposed(network_kind="roce"))) == MISSING_AS_IT_SHOULD
    assert unmet(ask(needs.rdma(), facts, supposed(network_kind="roce"))) == MISSING_BUT_SUPPOSED
    assert unmet(ask(need, facts)) == MISSING_WHO_KNOWS


def test_a_network_that_was_not_read_is_unknown() -> None:
    facts = NodeFacts(Host("n"), unreadable=(Unreadable("network", "no sysfs here"),))
    answer = ask(needs.rdma(), facts, supposed(network_kind="roce"))
    assert unmet(answer) == UNKNOWN
    assert "no sysfs here" in answer.reason
