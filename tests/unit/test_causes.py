"""One root cause, one finding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.verdict.causes import ORDER, fold
from pytest_gpucluster.verdict.findings import Evidence, Finding, Scalar, Severity


def found(
    code: str,
    component: str,
    severity: Severity = "fail",
    *,
    node: str = "n",
    measured: Scalar = None,
    expected: Scalar = None,
    message: str = "it is so",
    next_step: str = "Do this.",
) -> Finding:
    return Finding(
        severity,
        code,
        component,
        message,
        next_step,
        node,
        f"gpucluster/test_x.py::test_{code}",
        measured,
        expected,
        evidence=(Evidence("dmesg", text=component),),
    )


def told(*findings: Finding) -> list[tuple[str, str]]:
    return [(finding.code, finding.component) for finding in fold(findings)]


PEERS_OF_2 = [
    found("p2p.unsupported", f"GPU{min(2, n)}-GPU{max(2, n)}") for n in range(8) if n != 2
]


@pytest.mark.parametrize(
    ("root", "follows"),
    [
        (("gpu.off_bus", "GPU2"), ("clocks.thermal", "GPU2")),
        (("gpu.off_bus", "GPU2"), ("p2p.unsupported", "GPU2-GPU5")),
        (("gpu.off_bus", "GPU2"), ("collective.bandwidth_low", "all ranks")),
        (("memory.row_remap_failed", "GPU2"), ("memory.ecc_uncorrectable", "GPU2")),
        (("memory.row_remap_failed", "GPU2"), ("gpu.recovery_needed", "GPU2")),
        (("memory.ecc_uncorrectable", "GPU2"), ("memory.row_remap_pending", "GPU2")),
        (("nvlink.links_down", "GPU2"), ("p2p.unsupported", "GPU2-GPU5")),
        (("nvlink.links_down", "GPU2"), ("fabric.not_ready", "GPU2")),
        (("nvlink.links_missing", "GPU2"), ("nvlink.errors", "GPU2")),
        (("nvlink.links_down", "GPU2"), ("collective.bandwidth_low", "all ranks")),
        (("fabric.not_ready", "GPU2"), ("p2p.unsupported", "GPU2-GPU5")),
        (("fabric.manager", "node"), ("fabric.not_ready", "GPU2")),
        (("pcie.downgraded", "GPU2"), ("collective.bandwidth_low", "all ranks")),
    ],
)
def test_what_follows_is_named_under_its_root(
    root: tuple[str, str], follows: tuple[str, str]
) -> None:
    first, second = found(*root), found(*follows)
    for order in ([first, second], [second, first]):
        (kept,) = fold(order)
        assert (kept.code, kept.component) == root
        assert kept.consequences == (" ".join(follows),)


@pytest.mark.parametrize(
    ("root", "other"),
    [
        (("nvlink.links_down", "GPU2"), ("p2p.unsupported", "GPU3-GPU5")),
        (("nvlink.links_down", "GPU2"), ("memory.ecc_uncorrectable", "GPU2")),
        (("gpu.off_bus", "GPU2"), ("clocks.thermal", "GPU20")),
        (("gpu.off_bus", "GPU2"), ("software.driver", "node")),
        (("gpu.off_bus", "GPU2"), ("mig.enabled", "GPU2,GPU3")),
        (("memory.row_remap_failed", "GPU2"), ("memory.ecc_mode", "GPU2")),
        (("persistence.off", "GPU2"), ("collective.bandwidth_low", "all ranks")),
        (("gpu.off_bus", "node"), ("software.driver", "node")),
    ],
)
def test_another_part_or_another_matter_stays(
    root: tuple[str, str], other: tuple[str, str]
) -> None:
    assert told(found(*root), found(*other)) == [root, other]


def test_a_warning_never_swallows_a_failure() -> None:
    root = found("nvlink.links_down", "GPU2", "warn")
    failure = found("p2p.unsupported", "GPU2-GPU5", "fail")
    assert told(root, failure) == [("p2p.unsupported", "GPU2-GPU5"), ("nvlink.links_down", "GPU2")]


def test_another_node_is_another_matter() -> None:
    assert len(fold([found("gpu.off_bus", "GPU2"), found("gpu.xid", "GPU2", node="m")])) == 2


def test_one_gpu_without_links_is_one_finding_that_names_its_seven_pairs() -> None:
    (kept,) = fold([*PEERS_OF_2, found("nvlink.links_down", "GPU2")])
    assert kept.component == "GPU2"
    assert len(kept.consequences) == 7


def test_a_chain_ends_at_the_first_cause_and_names_all_of_it() -> None:
    chain = [
        *PEERS_OF_2[:1],
        found("fabric.not_ready", "GPU2"),
        found("nvlink.links_down", "GPU2"),
        found("gpu.off_bus", "GPU2"),
    ]
    (kept,) = fold(chain)
    assert kept.code == "gpu.off_bus"
    assert set(kept.consequences) == {
        "p2p.unsupported GPU0-GPU2",
        "fabric.not_ready GPU2",
        "nvlink.links_down GPU2",
    }


def test_links_wait_for_a_fabric_that_is_missing_everywhere() -> None:
    everywhere = [
        found(code, f"GPU{n}")
        for n in range(8)
        for code in ("nvlink.links_down", "fabric.not_ready")
    ]
    (kept,) = fold(everywhere)
    assert kept.code == "fabric.not_ready"
    assert kept.component == ",".join(f"GPU{n}" for n in range(8))
    assert len(kept.consequences) == 8


def test_a_wrong_fabric_manager_explains_fabric_and_links() -> None:
    everywhere = [
        found(code, f"GPU{n}")
        for n in range(4)
        for code in ("nvlink.links_down", "fabric.not_ready")
    ]
    assert told(*everywhere, found("fabric.manager", "node")) == [("fabric.manager", "node")]


def test_a_gpu_off_the_bus_explains_a_count_that_is_one_short() -> None:
    lost = found("gpu.off_bus", "0000:3b:00.0")
    assert told(lost, found("gpu.missing", "node", measured=7, expected=8)) == [
        ("gpu.off_bus", "0000:3b:00.0")
    ]
    assert len(told(lost, found("gpu.missing", "node", measured=6, expected=8))) == 2


def test_equal_findings_count_once_and_the_failure_wins() -> None:
    twice = [found("gpu.xid", "GPU1", "warn"), found("gpu.xid", "GPU1", "fail")]
    (kept,) = fold(twice)
    assert kept.severity == "fail"


def test_different_failures_of_one_code_both_stay() -> None:
    findings = [found("check.failed", "node", message=m) for m in ("one", "two")]
    assert len(fold(findings)) == 2


def test_the_same_setting_on_many_gpus_is_said_once() -> None:
    off = [found("persistence.off", f"GPU{n}", "warn", measured="off") for n in range(8)]
    (kept,) = fold(off)
    assert kept.component == ",".join(f"GPU{n}" for n in range(8))
    assert kept.message == "it is so"
    assert len(kept.evidence) == 8


def test_different_figures_are_different_findings() -> None:
    low = [found("power.limit_low", f"GPU{n}", measured=300.0 + n) for n in range(4)]
    assert len(fold(low)) == 4


def test_a_joined_finding_does_not_pass_one_gpu_s_text_for_all() -> None:
    down = [found("nvlink.version", f"GPU{n}", next_step=f"Look at bus {n}.") for n in range(3)]
    (kept,) = fold(down)
    assert kept.next_step == "GPU0, for example: Look at bus 0."


def test_failures_come_first() -> None:
    assert told(found("a.b", "GPU0", "warn"), found("c.d", "GPU1")) == [
        ("c.d", "GPU1"),
        ("a.b", "GPU0"),
    ]


codes = st.sampled_from(
    ["gpu.off_bus", "nvlink.links_down", "fabric.not_ready", "p2p.unsupported", "fabric.manager",
     "memory.row_remap_failed", "memory.ecc_uncorrectable", "collective.bandwidth_low", "x.y"]
)  # fmt: skip
parts = st.sampled_from(["GPU0", "GPU1", "GPU2", "GPU0-GPU1", "GPU1-GPU2", "GPU0,GPU2", "node"])
some = st.lists(st.builds(found, codes, parts, st.sampled_from(["fail", "warn"])), max_size=14)


@given(some)
def test_nothing_is_lost_and_nothing_gets_better(findings: list[Finding]) -> None:
    kept = fold(findings)
    assert bool(kept) == bool(findings)
    worst = min((ORDER[finding.severity] for finding in findings), default=None)
    assert min((ORDER[finding.severity] for finding in kept), default=None) == worst
    named = {f"{finding.code} {part}" for finding in kept for part in finding.component.split(",")}
    named |= {f"{finding.code} {finding.component}" for finding in kept}
    named |= {consequence for finding in kept for consequence in finding.consequences}
    assert {f"{finding.code} {finding.component}" for finding in findings} <= named
