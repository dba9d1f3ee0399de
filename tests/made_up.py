"""Verdicts and facts that no machine ever gave, for the tests of the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_gpucluster.facts.model import (
    Clocks,
    Ecc,
    Gpu,
    GpuPair,
    Host,
    NetworkPort,
    NodeFacts,
    NvLink,
    Pcie,
    Power,
    Software,
    Unreadable,
)
from pytest_gpucluster.verdict.findings import Evidence, Finding, Measurement, NotChecked
from pytest_gpucluster.verdict.verdict import (
    CheckResult,
    Mode,
    NodeVerdict,
    Verdict,
    judge,
    judge_node,
)

NVLINK = "gpucluster/test_nvlink.py::test_links_up"
P2P = "gpucluster/test_p2p.py::test_peer_access"
ALL_REDUCE = "gpucluster/test_collectives.py::test_all_reduce_bandwidth"
CHECKS = (
    "gpucluster/test_software.py::test_driver",
    "gpucluster/test_gpus.py::test_count",
    NVLINK,
    P2P,
    ALL_REDUCE,
)
SCRIPT = "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"


def h100_node(name: str = "node-003", down: Sequence[int] = ()) -> NodeFacts:
    """Eight H100 behind NVSwitch; the GPUs in ``down`` have no link up."""
    buses = (0x1B, 0x2A, 0x3B, 0x4C, 0x9B, 0xAB, 0xBB, 0xDB)
    gpus = tuple(_h100(index, bus, up=index not in down) for index, bus in enumerate(buses))
    pairs = tuple(
        GpuPair(a, b, "ok", "ok", "ok", "node" if a // 4 == b // 4 else "system")
        for a in range(8)
        for b in range(a + 1, 8)
    )
    ports = tuple(
        NetworkPort(f"mlx5_{n}", 1, "infiniband", "ACTIVE", "LinkUp", 400.0, firmware="28.39.1002")
        for n in range(8)
    )
    return NodeFacts(
        Host(name, 192, "Intel Xeon Platinum 8468", 2**41, 2),
        Software(
            "3.11.7", "580.95.05", "13.0", torch="2.13.0", torch_cuda="13.0", torch_nccl="2.29.7",
            kernel="6.8.0-79-generic", os="Ubuntu 24.04.3 LTS", fabric_manager="580.95.05",
        ),
        gpus,
        pairs,
        ports,
        taken="2026-11-30T08:15:02+00:00",
    )  # fmt: skip


def _h100(index: int, bus: int, *, up: bool) -> Gpu:
    links = tuple(NvLink(n, up, "4.0", 26.562, "switch") for n in range(18))
    return Gpu(
        index,
        "NVIDIA H100 80GB HBM3",
        f"GPU-{index}",
        f"0000:{bus:02x}:00.0",
        compute_capability="9.0",
        memory_bytes=81559 * 2**20,
        ecc=Ecc(enabled=True),
        power=Power(71.0, 700.0, 700.0, 700.0),
        clocks=Clocks(345, 2619, 1980, 2619),
        temperature=31.0,
        pcie=Pcie(1, 16, 5, 16, 5),
        nvlinks=links,
    )


def links_down(gpu: int, node: str = "node-003") -> Finding:
    label = f"GPU{gpu}"
    return Finding(
        "fail",
        "nvlink.links_down",
        label,
        f"0 of 18 NVLinks are up. The other 7 GPUs are complete, so look at {label}, not at the "
        "switches.",
        f"Check Xid 74/149 for the bus id of {label}, then reseat or replace the module.",
        node,
        NVLINK,
        0,
        18,
        "links",
        "catalogue: NVIDIA H100 SXM",
        (Evidence("dmesg", 812, "NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal"),),
    )


def no_peer(a: int, b: int, node: str = "node-003") -> Finding:
    """What follows from links that are down."""
    return Finding(
        "fail", "p2p.unsupported", f"GPU{a}-GPU{b}", "no peer access", "Check the links.", node, P2P
    )


def busbw(size: str = "1 GiB", value: float = 478.1, **changes: Any) -> Measurement:
    measurement = Measurement(
        f"all_reduce busbw {size}", value, "GB/s", "node-003", ALL_REDUCE, value - 2, value + 2,
        480.4, 408.3, 843.8, "derived: H100 SXM, NVSwitch with NVLS",
        "18 links x 25 GB/s x 0.92 x 1.16",
        {"collective": "all_reduce", "dtype": "bfloat16", "bytes": 2**30, "ranks": 8,
         "iterations": 20},
    )  # fmt: skip
    return replace(measurement, **changes)


def results(node: str = "node-003", **outcomes: Any) -> list[CheckResult]:
    """One result per check of `CHECKS`; ``outcomes`` by the name of the test function."""
    return [
        CheckResult(
            check,
            node,
            outcomes.get(check.split("::")[1], "passed"),
            duration_s=0.25,
            distributed=check == ALL_REDUCE,
            ranks=8 if check == ALL_REDUCE else None,
        )
        for check in CHECKS
    ]


def verdict_of(*nodes: NodeVerdict, mode: Mode = "live", **changes: Any) -> Verdict:
    """The verdict over ``nodes``; ``changes`` to its other fields."""
    fields: dict[str, Any] = {
        "started": "2026-11-30T08:15:00+00:00",
        "duration_s": 41.2,
        "level": "standard",
        "profile": {"name": "hgx-h100", "source": "option"},
        "versions": {"pytest-gpucluster": "0.1.0", "torch": "2.13.0", "driver": "580.95.05"},
        "measurements": (),
        "options": {"gpucluster_level": {"value": "standard", "source": "default"}},
        "pytest_status": 0,
    }
    return judge(nodes, mode=mode, **{**fields, **changes})


def healthy(name: str = "node-003") -> tuple[Verdict, dict[str, NodeFacts]]:
    node = judge_node(name, results(name), [], [], [], CHECKS)
    sizes = (busbw("16 MiB", 310.2, floor=None), busbw("256 MiB", 452.9), busbw())
    return verdict_of(node, measurements=sizes), {name: h100_node(name)}


def rejected() -> tuple[Verdict, dict[str, NodeFacts]]:
    """GPU2's links are down, which also costs peer access and speed."""
    pairs = [no_peer(min(2, n), max(2, n)) for n in range(8) if n != 2]
    warning = Finding(
        "warn", "persistence.off", ",".join(f"GPU{n}" for n in range(8)),
        "persistence mode is off: the driver unloads when idle.", "nvidia-smi -pm 1", "node-003",
        "gpucluster/test_gpu_state.py::test_persistence", "off", "on",
    )  # fmt: skip
    failed = {"test_links_up": "failed", "test_peer_access": "failed"}
    node = judge_node(
        "node-003",
        results(**failed, test_driver="skipped"),
        [warning, links_down(2), *pairs],
        [],
        [NotChecked("gpucluster/test_network.py::test_ports", "no adapters in the profile")],
        CHECKS,
    )
    slow = busbw(value=201.0)
    return (
        verdict_of(node, measurements=(slow,), pytest_status=1),
        {"node-003": h100_node(down=[2])},
    )


def rehearsal() -> tuple[Verdict, dict[str, NodeFacts]]:
    nvlink = [NotChecked(NVLINK, "rehearsal: CPU ranks have no NVLink", "build-box")]
    outcomes = {"test_links_up": "skipped"}
    node = judge_node(
        "build-box", results("build-box", **outcomes), [], [], nvlink, CHECKS, mode="rehearsal"
    )
    measured = busbw(
        "16 MiB", 0.51, expected=None, floor=None, ceiling=None, source=None,
        derivation="CPU ranks: a rehearsal expects no bandwidth",
    )  # fmt: skip
    return (
        verdict_of(node, mode="rehearsal", profile=None, measurements=(measured,)),
        {"build-box": no_gpu("build-box")},
    )


def without_gpu() -> tuple[Verdict, dict[str, NodeFacts]]:
    missing = Finding(
        "fail", "gpu.missing", "node", "no NVIDIA GPU was found.",
        "Check lspci for vendor 10de; rehearse with --gpucluster-rehearse.", "build-box",
        "gpucluster/test_gpus.py::test_present", 0, 1, "GPUs",
    )  # fmt: skip
    gaps = [NotChecked(check, "there is no GPU to check", "build-box") for check in CHECKS[2:]]
    node = judge_node("build-box", results("build-box"), [missing], gaps, [], CHECKS)
    return verdict_of(node, profile=None, pytest_status=1), {"build-box": no_gpu("build-box")}


def no_gpu(name: str) -> NodeFacts:
    return NodeFacts(
        Host(name, 2),
        Software("3.11.7", torch="2.13.0+cpu"),
        (),
        unreadable=(Unreadable("nvml", "NVML library not found"),),
    )


def hostile() -> tuple[Verdict, dict[str, NodeFacts]]:
    """Every string a machine can set, set by someone who means harm."""
    name = f"{SCRIPT}\x1b[2J\u202e\udcff"
    facts = h100_node(name)
    gpus = tuple(
        replace(gpu, name=SCRIPT, bus_id=SCRIPT, lost="x" * 3000) for gpu in facts.gpus or ()
    )
    evil = Finding(
        "fail", SCRIPT, SCRIPT, SCRIPT + "y" * 5000, SCRIPT, name, f"t.py::t[{SCRIPT}]", SCRIPT,
        SCRIPT, SCRIPT, SCRIPT, (Evidence(SCRIPT, 1, SCRIPT),), (SCRIPT,),
    )  # fmt: skip
    entry = NotChecked(SCRIPT, SCRIPT, name)
    check = CheckResult(SCRIPT, name, "failed", SCRIPT)
    node = judge_node(name, [check], [evil], [entry], [entry], ())
    measured = busbw(
        SCRIPT, unit=SCRIPT, source=SCRIPT, derivation=SCRIPT, conditions={SCRIPT: SCRIPT}
    )
    verdict = verdict_of(
        node,
        level=SCRIPT,
        profile={"name": SCRIPT, "source": SCRIPT},
        versions={"pytest-gpucluster": SCRIPT, SCRIPT: SCRIPT},
        measurements=(measured,),
        options={SCRIPT: {"value": SCRIPT, "source": SCRIPT}},
        remarks=(SCRIPT,),
        pytest_status=1,
    )
    port = NetworkPort(SCRIPT, state=SCRIPT, netdev=SCRIPT, firmware=SCRIPT)
    unreadable = (Unreadable(SCRIPT, SCRIPT),)
    return verdict, {name: replace(facts, gpus=gpus, network=(port,), unreadable=unreadable)}


def cluster() -> tuple[Verdict, dict[str, NodeFacts]]:
    """Four nodes: accepted, with warnings, rejected, lost."""
    warning = Finding(
        "warn", "nvlink.errors", "GPU6", "12 replays on link 3.", "Watch them.", "node-002", NVLINK
    )
    nodes = (
        judge_node("node-001", results("node-001"), [], [], [], CHECKS),
        judge_node("node-002", results("node-002"), [warning], [], [], CHECKS),
        judge_node("node-003", results(test_links_up="failed"), [links_down(2)], [], [], CHECKS),
        judge_node("node-004", [], [], [], [], CHECKS, lost="no answer for 30 s"),
    )
    facts = {name: h100_node(name) for name in ("node-001", "node-002")}
    return verdict_of(*nodes, pytest_status=1), {**facts, "node-003": h100_node(down=[2])}


ALL = {
    "healthy": healthy,
    "rejected": rejected,
    "rehearsal": rehearsal,
    "without_gpu": without_gpu,
    "hostile": hostile,
    "cluster": cluster,
}
