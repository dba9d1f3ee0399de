"""What a node should be: the profile over the catalogue, each value with its source."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from pytest_gpucluster.expectations.expect import NodeExpectations, expect, node_model
from pytest_gpucluster.expectations.model import Expected
from pytest_gpucluster.expectations.profile import Profile, load_profile, parse_profile
from pytest_gpucluster.facts.model import Gpu, Host, NodeFacts, NvLink, Unreadable

H100, A100, A40 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA A40"
GH200, RTX_4090, X9000 = "NVIDIA GH200 480GB", "NVIDIA GeForce RTX 4090", "NVIDIA X9000"


def node(*names: str | None, up: int = 0, down: int = 0, remote: str | None = None) -> NodeFacts:
    links = tuple(NvLink(i, active=i < up, remote_type=remote) for i in range(up + down))
    gpus = tuple(Gpu(i, name=name, nvlinks=links) for i, name in enumerate(names))
    return NodeFacts(Host("n"), gpus=gpus)


def profile(text: str) -> Profile:
    return parse_profile(text, source="site.toml", name="site", origin="site.toml")


def values(found: NodeExpectations) -> dict[str, object]:
    return {
        f.name: value.value
        for f in fields(found)
        if isinstance(value := getattr(found, f.name), Expected)
    }


def test_an_hgx_h100_is_known_from_the_catalogue() -> None:
    found = expect(node(*[H100] * 8, up=18))
    assert found.problems == ()
    assert found.count_problem is None
    assert found.nvlink_present == "required"
    assert values(found) == {
        "gpu_models": (H100,),
        "memory_bytes_min": 72_000_000_000,
        "ecc": True,
        "mig": False,
        "persistence": True,
        "nvlink_links": 18,
        "nvlink_version": "4.0",
        "nvlink_all_pairs": True,
        "fabric_completed": True,
        "pcie_generation": 5,
        "pcie_width": 16,
        "p2p_required": True,
    }
    assert found.nvlink_links == Expected(18, "catalogue: H100 SXM", True)


def test_defaults_of_taste_are_never_certain() -> None:
    found = expect(node(*[H100] * 8))
    assert found.mig is not None
    assert found.persistence is not None
    assert (found.mig.certain, found.persistence.certain) == (False, False)


def test_the_profile_overrides_the_catalogue() -> None:
    site = profile(
        "gpus = {count = 8, memory_gb = 40, ecc = false, mig = true, persistence = false}\n"
        'nvlink = {links = 12, version = "3.0", all_pairs = false}\n'
        "fabric.completed = false\np2p.required = false\npcie = {generation = 4, width = 8}"
    )
    found = expect(node(*[H100] * 8), site)
    assert values(found) == {
        "gpu_count": 8,
        "gpu_models": (H100,),
        "memory_bytes_min": 36_000_000_000,
        "ecc": False,
        "mig": True,
        "persistence": False,
        "nvlink_links": 12,
        "nvlink_version": "3.0",
        "nvlink_all_pairs": False,
        "fabric_completed": False,
        "pcie_generation": 4,
        "pcie_width": 8,
        "p2p_required": False,
    }
    assert found.pcie_width == Expected(8, "profile site", True)
    assert found.nvlink_source == "profile site"


def test_the_profile_alone_speaks_of_network_software_host_and_power() -> None:
    site = profile(
        'network = {ports = 8, kind = "roce", rate_gbps = 400, required = true}\n'
        'software = {driver = ">=535", cuda = ">=12", nccl = ">=2.20", torch = ">=2.4"}\n'
        "power.limit_w = 700\nhost = {memlock_unlimited = true, shm_gb = 64}"
    )
    found = values(expect(node(), site))
    assert found == {
        "mig": False,
        "persistence": True,
        "network_ports": 8,
        "network_kind": "roce",
        "network_rate_gbps": 400.0,
        "network_required": True,
        "driver": ">=535",
        "cuda": ">=12",
        "nccl": ">=2.20",
        "torch": ">=2.4",
        "power_limit_w": 700.0,
        "memlock_unlimited": True,
        "shm_gb": 64.0,
    }


def test_an_unknown_gpu_is_a_problem_until_a_profile_names_it() -> None:
    found = expect(node(*[X9000] * 8))
    assert found.model is None
    assert found.problems == (
        f"{X9000} is not in the catalogue: add it to a profile (gpus.model).",
    )
    assert found.nvlink_present == "unknown"
    assert found.memory_bytes_min is None
    known = expect(
        node(*[X9000] * 8), profile(f'gpus = {{model = ["{X9000}"]}}\nnvlink.links = 18')
    )
    assert known.problems == ()
    assert known.nvlink_present == "required"


def test_a_generic_name_asks_for_a_newer_driver() -> None:
    (problem,) = expect(node(*["NVIDIA Graphics Device"] * 4)).problems
    assert "update the driver" in problem


def test_unreadable_gpus_are_a_problem_and_no_gpus_are_not() -> None:
    facts = NodeFacts(Host("n"), unreadable=(Unreadable("nvml", "no answer in 20 s"),))
    assert expect(facts).problems == (
        "The GPUs could not be read (no answer in 20 s), so nothing is known of their model.",
    )
    assert expect(node()).problems == ()
    assert expect(node(None)).problems == ("GPU0 has no readable name, so its model is unknown.",)


def test_a_lost_gpu_without_a_name_hides_nothing_about_the_others() -> None:
    facts = node(*[H100] * 7, None)
    assert facts.gpus
    facts = replace(facts, gpus=(*facts.gpus[:7], replace(facts.gpus[7], lost="off the bus")))
    found = expect(facts)
    assert found.problems == ()
    assert found.model is not None
    assert found.model.title == "H100 SXM"


def test_the_most_frequent_model_is_the_rule() -> None:
    found = expect(node(*[H100] * 7, A100))
    assert found.gpu_models == Expected((H100,), "the other GPUs of this node", True)
    assert found.problems == ()
    even = expect(node(H100, A100))
    assert even.model is None
    assert "mixed evenly" in even.problems[0]
    assert node_model(node(X9000, X9000, H100)) is None


def test_names_with_and_without_the_maker_are_one_model() -> None:
    model = node_model(node("A100-SXM4-80GB", A100))
    assert model is not None
    assert model.title == "A100 SXM4 80 GB"


@pytest.mark.parametrize(
    ("name", "count", "odd"),
    [
        (H100, 8, False),
        (H100, 4, False),
        (H100, 2, False),
        (H100, 1, False),
        (H100, 7, True),
        (H100, 3, True),
        (A100, 16, False),
        ("NVIDIA B200", 6, True),
        ("NVIDIA L40S", 7, False),
        (RTX_4090, 3, False),
    ],
)
def test_an_odd_number_of_gpus_is_told_but_not_judged(name: str, count: int, odd: bool) -> None:
    found = expect(node(*[name] * count))
    assert found.gpu_count is None
    assert bool(found.count_problem) == odd
    if odd:
        assert f"{count} GPUs" in str(found.count_problem)


def test_a_profile_settles_the_count() -> None:
    found = expect(node(*[H100] * 7), load_profile("hgx-h100"))
    assert found.gpu_count == Expected(8, "profile hgx-h100", True)
    assert found.count_problem is None


@pytest.mark.parametrize(
    ("facts", "presence", "links"),
    [
        (node(RTX_4090, RTX_4090), "absent", 0),
        (node(A40, A40, down=4), "optional", None),
        (node(A40, A40, up=4), "optional", 4),
        (node(A40, A40, up=3, down=1), "optional", 4),
        (node(GH200, down=18), "absent", 0),
        (node(GH200, up=18), "optional", 18),
        (node(GH200, GH200, down=18), "optional", None),
        (node(H100, down=18), "unknown", None),
        (node(H100, up=18), "unknown", None),
        (node(H100, H100, down=18), "required", 18),
        (node(*["Tesla V100-SXM2-32GB"] * 8), "required", 6),
        (node("NVIDIA RTX 6000D"), "unknown", None),
    ],
)
def test_whether_nvlink_belongs_to_the_node(
    facts: NodeFacts, presence: str, links: int | None
) -> None:
    found = expect(facts)
    assert found.nvlink_present == presence
    assert (found.nvlink_links.value if found.nvlink_links else None) == links


def test_a_chassis_and_inferred_link_counts_are_not_certain() -> None:
    for facts in (node(GH200, up=18), node(*["NVIDIA A800-SXM4-80GB"] * 8)):
        links = expect(facts).nvlink_links
        assert links is not None
        assert not links.certain


def test_only_switched_boards_join_all_pairs_and_need_peer_access() -> None:
    for name, joined in (
        (H100, True),
        ("Tesla V100-SXM2-32GB", None),
        (A40, None),
        (RTX_4090, None),
    ):
        found = expect(node(*[name] * 8))
        assert (found.nvlink_all_pairs.value if found.nvlink_all_pairs else None) is joined
        assert (found.p2p_required.value if found.p2p_required else None) is joined


@pytest.mark.parametrize(
    ("facts", "certain"),
    [
        (node(*[H100] * 8), True),
        (node(*[H100] * 4, up=18, remote="switch"), True),
        (node(*[H100] * 4, up=18), False),  # a mesh or a part of a switched board
        (node(*[H100] * 4, up=18, remote="gpu"), None),
        (node(H100), None),
        (node(*[A100] * 8), None),  # NVML reports the fabric from Hopper on
        (node(*["NVIDIA GB200"] * 4), True),
        (node(*["NVIDIA L40S"] * 8), None),
    ],
)
def test_the_fabric_is_expected_behind_switches(facts: NodeFacts, certain: bool | None) -> None:
    fabric = expect(facts).fabric_completed
    assert (fabric.certain if fabric else None) is certain


@pytest.mark.parametrize(
    ("name", "generation", "width", "certain"),
    [
        (H100, 5, 16, True),
        ("NVIDIA L40S", 4, 16, False),  # the slot is the server's choice
        ("NVIDIA A10G", 4, 8, False),
        ("NVIDIA GB200", 5, 16, False),
        ("NVIDIA B300 SXM6 AC", None, 16, True),
    ],
)
def test_pcie(name: str, generation: int | None, width: int, certain: bool) -> None:
    found = expect(node(*[name] * 8))
    assert (found.pcie_generation.value if found.pcie_generation else None) == generation
    assert found.pcie_width is not None
    assert (found.pcie_width.value, found.pcie_width.certain) == (width, certain)


@pytest.mark.parametrize(
    ("name", "ecc"),
    [(H100, True), ("NVIDIA A30", True), ("NVIDIA L40S", None), (RTX_4090, None)],
)
def test_ecc_is_expected_of_hbm_parts(name: str, ecc: bool | None) -> None:
    found = expect(node(name)).ecc
    assert (found.value if found else None) is ecc


def test_memory_is_a_share_of_the_nominal_size() -> None:
    memory = expect(node("Tesla P100-PCIE-12GB")).memory_bytes_min
    assert memory is not None
    assert memory.value == 10_800_000_000
    (problem,) = expect(node("NVIDIA RTX 6000D")).problems
    assert "gpus.memory_gb" in problem
    told = expect(node("NVIDIA RTX 6000D"), profile("gpus.memory_gb = 84"))
    assert told.problems == ()


def test_a_profile_can_say_that_there_is_no_nvlink() -> None:
    found = expect(node(H100, H100), profile("nvlink.links = 0"))
    assert found.nvlink_present == "absent"
    assert found.nvlink_links == Expected(0, "profile site", True)
