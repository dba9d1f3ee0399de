"""Peer access between GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from pytest_gpucluster.checks.compare import severity
from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import Gpu, GpuPair, NodeFacts
from pytest_gpucluster.localise.suspects import blame
from pytest_gpucluster.verdict.recorder import Findings


def test_peer_access(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """Every pair of GPUs can read and write each other's memory, over NVLink where built in.

    Needs: two GPUs of a product with NVLink between all of them, or a profile that asks for it.
    GeForce cards have no peer access by design. When it fails: check ``nvidia-smi topo -p2p r``,
    IOMMU and ACS settings, and driver options.
    """
    expected = node_expectations.p2p_required
    if len(node_gpus) < 2 or expected is None or not expected.value:
        findings.not_applicable("peer access is not expected between these GPUs")
        pytest.skip("peer access is not expected between these GPUs")
    if node_facts.pairs is None:
        findings.unverified("peer access could not be read")
        return
    working = {gpu.index for gpu in node_gpus}
    pairs = [pair for pair in node_facts.pairs if {pair.a, pair.b} <= working]
    all_pairs = node_expectations.nvlink_all_pairs
    over_nvlink = all_pairs is not None and all_pairs.value
    if len(pairs) != math.comb(len(working), 2):
        findings.unverified(f"{len(pairs)} of {math.comb(len(working), 2)} pairs could be read")
    unknown = [pair for pair in pairs if "unknown" in _told(pair, over_nvlink)]
    if unknown:
        findings.unverified(f"peer access of {unknown[0].label} could not be read")
    bad = {
        (pair.a, pair.b): pair
        for pair in pairs
        if pair not in unknown and _broken(pair, over_nvlink)
    }
    guilty, rest = blame(bad, [(pair.a, pair.b) for pair in pairs])
    for index in guilty:
        findings.report(
            severity(expected),
            "p2p.unsupported",
            f"GPU{index}",
            f"no peer access to any other GPU ({_why(bad.values(), index)}).",
            next_step="Look at this GPU's NVLinks and fabric state first.",
            source=expected.source,
        )
    for pair in map(bad.__getitem__, rest):
        findings.report(
            severity(expected),
            "p2p.unsupported",
            pair.label,
            f"no peer access: read {pair.read}, write {pair.write}, NVLink {pair.nvlink}.",
            next_step="Check nvidia-smi topo -p2p r, IOMMU, ACS and driver options.",
            measured=pair.read,
            expected="ok",
            source=expected.source,
        )


def _told(pair: GpuPair, over_nvlink: bool) -> tuple[str, ...]:
    return (pair.read, pair.write, pair.nvlink) if over_nvlink else (pair.read, pair.write)


def _broken(pair: GpuPair, over_nvlink: bool) -> bool:
    if pair.read != "ok" or pair.write != "ok":
        return True
    return over_nvlink and pair.nvlink not in ("ok", "unknown")


def _why(bad: Iterable[GpuPair], index: int) -> str:
    pair = next(pair for pair in bad if index in (pair.a, pair.b))
    return f"read {pair.read}, write {pair.write}, NVLink {pair.nvlink}"
