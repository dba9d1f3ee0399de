"""Thresholds of a profile that this hardware can never reach or never miss are refused."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpucluster.expectations.bandwidth import NoExpectation, peak
from pytest_gpucluster.expectations.catalogue import GpuModel, find_gpu
from pytest_gpucluster.expectations.expect import MEMORY_SHARE, node_model
from pytest_gpucluster.expectations.profile import Profile, ProfileError
from pytest_gpucluster.facts.model import NodeFacts

# A floor under this share of the expectation accepts a broken node.
ABSURD_SHARE = 0.1
# Nominal GB are often GiB: an "80 GB" part shows 85.9e9 bytes.
GIB_PER_GB = 1.074


def check_thresholds(facts: NodeFacts, profile: Profile) -> None:
    """Raise `ProfileError` naming each absurd threshold, its bound and the reason.

    Nothing is refused on a node of another model than the profile's: that is a finding.
    """
    if not _is_profiles_hardware(facts, profile):
        return
    model = node_model(facts)
    reasons = [*_bandwidth(facts, profile), *(_hardware(model, profile) if model else ())]
    if reasons:
        where = profile.name if profile.source == "built-in" else profile.source
        raise ProfileError("\n".join(f"{where}: {reason}" for reason in reasons))


def _is_profiles_hardware(facts: NodeFacts, profile: Profile) -> bool:
    if profile.gpus.model is None:
        return True
    return node_model(facts) in {find_gpu(name) for name in profile.gpus.model}


def _bandwidth(facts: NodeFacts, profile: Profile) -> Iterator[str]:
    floor = profile.bandwidth.all_reduce_gbs
    gpus = facts.gpus or ()
    if floor is None or len(gpus) < 2:
        return
    top = peak(facts, len(gpus), "float32", 1, profile)
    given = f"bandwidth.all_reduce_gbs = {floor:g}"
    if isinstance(top, NoExpectation):
        if top.ceiling_gbs is not None and floor > top.ceiling_gbs:
            yield f"{given}: can never pass. A GPU's PCIe link carries {top.ceiling_gbs:g} GB/s."
        return
    if floor > top.ceiling:
        yield (
            f"{given}: can never pass. The physical ceiling is {top.ceiling:.1f} GB/s, expected "
            f"{top.expected:.1f} ({top.derivation}). Leave the key out to use the derived floor."
        )
    elif floor < ABSURD_SHARE * top.expected:
        yield (
            f"{given}: can hardly fail. Expected are {top.expected:.1f} GB/s ({top.derivation}); "
            f"allowed from {ABSURD_SHARE * top.expected:.1f}. Leave the key out to use the derived "
            "floor."
        )


def _hardware(model: GpuModel, profile: Profile) -> Iterator[str]:
    memory = profile.gpus.memory_gb
    if memory is not None and model.memory_gb and model.is_certain("memory_gb"):
        most, least = max(model.memory_gb), ABSURD_SHARE * min(model.memory_gb)
        if MEMORY_SHARE * memory > GIB_PER_GB * most:
            yield f"gpus.memory_gb = {memory:g}: can never pass, {model.title} has {most:g} GB."
        elif memory < least:
            yield (
                f"gpus.memory_gb = {memory:g}: can hardly fail, {model.title} has {most:g} GB; "
                f"allowed from {least:g}."
            )
    for key, wanted, has, field in (
        ("nvlink.links", profile.nvlink.links, model.nvlink_links, "nvlink_links"),
        ("pcie.generation", profile.pcie.generation, model.pcie_generation, "pcie_generation"),
    ):
        if wanted is not None and has is not None and wanted > has and model.is_certain(field):
            yield f"{key} = {wanted}: can never pass, {model.title} has {has}."
