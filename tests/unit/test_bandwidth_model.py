"""The bandwidth model agrees with published healthy runs and knows where it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucluster.expectations.bandwidth import (
    FLOOR_RATIO,
    BandwidthExpectation,
    NoExpectation,
    all_reduce,
)
from pytest_gpucluster.expectations.profile import Profile, ProfileError, parse_profile
from pytest_gpucluster.expectations.thresholds import check_thresholds
from pytest_gpucluster.facts.model import Gpu, Host, NodeFacts, NvLink, Pcie, Software

GIB = 2**30
H100, H200, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200"
A100, A40 = "NVIDIA A100-SXM4-80GB", "NVIDIA A40"
STAS = "stas00/ml-engineering: network/README.md@744d01e1"
AZURE = "Azure/AI-benchmarking-guide: Azure_Results/ND_A100_v4_results.md@8fd0c6e1"

# id, product, GPUs of the node, ranks, GiB, dtype, busbw in GB/s, source
PUBLISHED = [
    ("az_a100", A100, 8, 8, 8, 231.58, AZURE),
    ("st_a100", A100, 8, 8, 16, 234.89, STAS),
    ("a100_4", A100, 8, 4, 8, 234.72, "public NCCL 2.16.2 measurements of A40 and A100 nodes"),
    ("a40_pair", A40, 2, 2, 8, 47.49, "public NCCL 2.16.2 measurements of A40 and A100 nodes"),
    ("dgxc_h100", H100, 8, 8, 8, 480.16, "NVIDIA/dgxc-benchmarking: microbenchmarks/nccl"),
    ("t290_h100_1n", H100, 8, 8, 4, 473.6, "NVIDIA/nccl-tests#290"),
    ("st_h200_nvls", H200, 8, 8, 16, 480.0, STAS),
    ("st_h200_n4", H200, 8, 4, 8, 363.3, STAS),
    ("st_h200_n5", H200, 8, 5, 8, 414.2, STAS),
    ("st_h200_n6", H200, 8, 6, 8, 435.6, STAS),
    ("st_h200_n7", H200, 8, 7, 8, 460.0, STAS),
    ("st_h200_n8", H200, 8, 8, 8, 473.1, STAS),
    ("st_b200_n4", B200, 8, 4, 8, 673.2, STAS),
    ("st_b200_n5", B200, 8, 5, 8, 677.8, STAS),
    ("st_b200_n6", B200, 8, 6, 8, 778.2, STAS),
    ("st_b200_n7", B200, 8, 7, 8, 811.2, STAS),
    ("st_b200_n8", B200, 8, 8, 8, 838.0, STAS),
    ("vu_b200_8_all_reduce", B200, 8, 8, 16, 842.91, "public summary of an 8x B200 trial"),
    ("oci_gb300_4_ar", "NVIDIA GB300", 4, 4, 16, 685.19, "OCI guide to BM.GPU.GB300.4"),
]
LINKS = {A100: 12, A40: 4, "NVIDIA GeForce RTX 3090": 4, "NVIDIA H100 PCIe": 12}


def node(name: str | None, count: int, remote: str | None = "switch", links_up: int | None = None):
    up = LINKS.get(name or "", 18) if links_up is None else links_up
    links = tuple(NvLink(i, active=True, remote_type=remote) for i in range(up))
    return NodeFacts(Host("n"), gpus=tuple(Gpu(i, name=name, nvlinks=links) for i in range(count)))


def derived(facts: NodeFacts, ranks: int, size: int = 8 * GIB, dtype: str = "float32"):
    outcome = all_reduce(facts, ranks, size_bytes=size, dtype=dtype)
    assert isinstance(outcome, BandwidthExpectation), outcome
    return outcome


def profile(text: str) -> Profile:
    return parse_profile(text, source="site.toml", name="site", origin="site.toml")


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
def test_published_healthy_runs_are_near_the_expectation_and_pass(row) -> None:
    _, name, count, ranks, gib, busbw, _ = row
    outcome = derived(node(name, count), ranks, gib * GIB)
    assert outcome.gated
    assert busbw == pytest.approx(outcome.expected_gbs, rel=0.075)
    assert outcome.ceiling_gbs is not None
    assert outcome.floor_gbs < busbw < outcome.ceiling_gbs
    assert outcome.floor_gbs == pytest.approx(FLOOR_RATIO * outcome.expected_gbs)


def test_degraded_runs_fall_below_the_floor() -> None:
    # Peer access off: 5.2 GB/s on four A100. NVLS lost on eight H200: 367.2 GB/s.
    assert derived(node(A100, 8), 4).floor_gbs > 5.2
    assert derived(node(H200, 8), 8).floor_gbs > 367.2


def test_the_derivation_can_be_followed_by_hand() -> None:
    outcome = derived(node(H100, 8), 8)
    assert outcome.derivation.startswith(
        "18 links x 20.6 GB/s = 370.8 ring; NVLS 0.61 x 450 x 1.75 = 480.4 -> 480.4; x 0.996"
    )
    assert outcome.source == "catalogue: H100 SXM"
    assert outcome.certain
    assert outcome.ceiling_gbs == pytest.approx(450 * 1.75)


def test_a_ring_cannot_exceed_the_line_rate() -> None:
    assert derived(node(A100, 8), 8).ceiling_gbs == 300
    assert derived(node(H200, 8), 4).ceiling_gbs == 450


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2"])
def test_types_the_switch_cannot_add_go_around_the_ring(dtype: str) -> None:
    facts = node(H200, 8)
    assert derived(facts, 8, dtype=dtype).expected_gbs < 371
    assert derived(facts, 8, dtype="bfloat16").expected_gbs > 470


def test_nccl_before_nvls_goes_around_the_ring() -> None:
    old = replace(node(H100, 8), software=Software(torch_nccl="2.14.3"))
    new = replace(old, software=Software(torch_nccl="2.18.1"))
    odd = replace(old, software=Software(torch_nccl="?"))
    assert derived(old, 8).expected_gbs < 371
    assert derived(new, 8).expected_gbs == derived(odd, 8).expected_gbs > 470


def test_small_sizes_are_not_gated() -> None:
    facts = node(H100, 8)
    small, large = derived(facts, 8, 16 * 2**20), derived(facts, 8, GIB)
    assert (small.gated, large.gated) == (False, True)
    # dgxc_h100_256m and _16m of the same public table: 422.25 and 237.21 GB/s
    assert derived(facts, 8, 2**28).expected_gbs == pytest.approx(422.25, rel=0.05)
    assert small.expected_gbs < 237.21
    assert derived(node(B200, 8), 8, 2**28).gated is False


@pytest.mark.parametrize(
    ("facts", "ranks", "reason"),
    [
        (node(H100, 8), 1, "one rank"),
        (node(H100, 8), 9, "9 ranks share 8 GPUs"),
        (node("NVIDIA X9000", 8), 8, "NVIDIA X9000 is not in the catalogue"),
        (node(None, 8), 8, "not in the catalogue"),
        (node("NVIDIA L40S", 8, links_up=0), 8, "no NVLink"),
        (node(A40, 4), 4, "no NVLink bridge joins these 4"),
        (node(A40, 2, links_up=0), 2, "no NVLink bridge"),
        (node("NVIDIA GH200 480GB", 2), 2, "chassis"),
        (node(A100, 4, remote="gpu"), 2, "part of a mesh"),
        (NodeFacts(Host("n")), 2, "no GPU"),
        (NodeFacts(Host("n"), gpus=()), 2, "no GPU"),
    ],
)
def test_what_cannot_be_derived_says_why(facts: NodeFacts, ranks: int, reason: str) -> None:
    outcome = all_reduce(facts, ranks, size_bytes=GIB)
    assert isinstance(outcome, NoExpectation)
    assert reason in outcome.reason


def test_several_nodes_mixed_models_and_mig_are_not_derived() -> None:
    facts = node(H100, 8)
    assert facts.gpus
    mixed = replace(facts, gpus=(replace(facts.gpus[0], name=H200), *facts.gpus[1:]))
    mig = replace(facts, gpus=(replace(facts.gpus[0], mig_enabled=True), *facts.gpus[1:]))
    for outcome, reason in (
        (all_reduce(facts, 8, size_bytes=GIB, nodes=2), "more than one node"),
        (all_reduce(mixed, 8, size_bytes=GIB), "different models"),
        (all_reduce(mig, 8, size_bytes=GIB), "MIG"),
    ):
        assert isinstance(outcome, NoExpectation)
        assert reason in outcome.reason


def test_a_bridge_must_join_the_two_gpus_that_are_used() -> None:
    def gpu(index: int, remote: str) -> Gpu:
        links = tuple(NvLink(i, active=True, remote_bus_id=remote) for i in range(4))
        return Gpu(index, name=A40, bus_id=f"0000:0{index}:00.0", nvlinks=links)

    partners = NodeFacts(Host("n"), gpus=(gpu(0, "0000:01:00.0"), gpu(1, "0000:00:00.0")))
    strangers = NodeFacts(Host("n"), gpus=(gpu(0, "0000:07:00.0"), gpu(1, "0000:06:00.0")))
    assert derived(partners, 2).expected_gbs == pytest.approx(48, rel=0.01)
    assert isinstance(all_reduce(strangers, 2, size_bytes=GIB), NoExpectation)


def test_doubtful_hardware_gives_doubtful_expectations() -> None:
    assert not derived(node("NVIDIA H100 PCIe", 2), 2).certain
    assert not derived(node("NVIDIA A800-SXM4-80GB", 8), 8).certain
    assert not derived(node("Tesla V100-SXM2-32GB", 8, links_up=6), 8).certain
    assert not derived(node(A100, 4, remote=None), 4).certain
    assert derived(node(A100, 8, remote=None), 8).certain


def test_over_pcie_only_the_ceiling_is_known() -> None:
    outcome = all_reduce(node("NVIDIA L40S", 8, links_up=0), 8, size_bytes=GIB)
    assert isinstance(outcome, NoExpectation)
    assert outcome.ceiling_gbs == 31.5
    facts = NodeFacts(
        Host("n"),
        gpus=tuple(
            Gpu(i, name="NVIDIA L40S", pcie=Pcie(device_generation=5), nvlinks=()) for i in (0, 1)
        ),
    )
    faster = all_reduce(facts, 2, size_bytes=GIB)
    assert isinstance(faster, NoExpectation)
    assert faster.ceiling_gbs == 63.0


def test_a_profiles_floor_replaces_the_derived_one_on_the_whole_node() -> None:
    site = profile("[bandwidth]\nall_reduce_gbs = 430")
    whole = all_reduce(node(H100, 8), 8, size_bytes=GIB, profile=site)
    part = all_reduce(node(H100, 8), 4, size_bytes=GIB, profile=site)
    assert isinstance(whole, BandwidthExpectation)
    assert isinstance(part, BandwidthExpectation)
    assert (whole.floor_gbs, whole.source) == (430, "profile site (floor), catalogue: H100 SXM")
    assert part.floor_gbs == pytest.approx(FLOOR_RATIO * part.expected_gbs)


def test_a_profiles_floor_serves_where_nothing_is_derived() -> None:
    site = profile("[bandwidth]\nall_reduce_gbs = 18")
    facts = node("NVIDIA L40S", 8, links_up=0)
    outcome = all_reduce(facts, 8, size_bytes=GIB, profile=site)
    assert isinstance(outcome, BandwidthExpectation)
    assert (outcome.floor_gbs, outcome.ceiling_gbs, outcome.gated) == (18, 31.5, True)
    assert "no NVLink" in outcome.derivation
    small = all_reduce(facts, 8, size_bytes=2**20, profile=site)
    assert isinstance(small, BandwidthExpectation)
    assert not small.gated


@pytest.mark.parametrize(
    ("name", "toml", "reasons"),
    [
        (H100, "bandwidth.all_reduce_gbs = 800", ["can never pass", "787.5", "480.4"]),
        (H100, "bandwidth.all_reduce_gbs = 2.333", ["can hardly fail", "allowed from 48.0"]),
        ("NVIDIA L40S", "bandwidth.all_reduce_gbs = 40", ["can never pass", "31.5"]),
        (H100, "gpus.memory_gb = 141", ["can never pass", "has 80 GB"]),
        (H100, "gpus.memory_gb = 2.3", ["can hardly fail", "allowed from 8"]),
        (A100, "nvlink.links = 18", ["can never pass", "has 12"]),
        (A100, "pcie.generation = 5", ["can never pass", "has 4"]),
    ],
)
def test_absurd_thresholds_are_refused(name: str, toml: str, reasons: list[str]) -> None:
    facts = node(name, 8, links_up=0 if name.endswith("L40S") else None)
    with pytest.raises(ProfileError) as caught:
        check_thresholds(facts, profile(toml))
    message = str(caught.value)
    assert message.startswith(f"site.toml: {toml}")
    assert all(reason in message for reason in reasons), message


@pytest.mark.parametrize(
    "toml",
    [
        "bandwidth.all_reduce_gbs = 430",
        "bandwidth.all_reduce_gbs = 787",
        "bandwidth.all_reduce_gbs = 49",
        "gpus.memory_gb = 85.8",  # what NVML shows of 80 GiB
        "nvlink.links = 18",
        "",
    ],
)
def test_sensible_thresholds_are_taken(toml: str) -> None:
    check_thresholds(node(H100, 8), profile(toml))


def test_another_model_than_the_profiles_is_a_finding_not_a_wrong_profile() -> None:
    check_thresholds(
        node(A100, 8), profile(f'gpus.model = ["{H200}"]\nbandwidth.all_reduce_gbs = 430')
    )
    check_thresholds(NodeFacts(Host("n")), profile("bandwidth.all_reduce_gbs = 99999"))
