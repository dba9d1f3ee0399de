"""Facts and profile -> what this node should be, each value with its source.

The profile wins over the catalogue. ``None`` means that nothing is expected; where that is so
because something is not known, ``problems`` says it, and a check then has nothing to judge by.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeVar

from pytest_gpucluster.expectations.catalogue import (
    GENERIC_NAME,
    GpuModel,
    bare_name,
    find_gpu,
    same_product_name,
)
from pytest_gpucluster.expectations.model import Expected
from pytest_gpucluster.expectations.profile import Profile
from pytest_gpucluster.facts.model import Gpu, NodeFacts

Presence = Literal["required", "optional", "absent", "unknown"]
T = TypeVar("T")

# Part of the nominal size that the driver must show: some is kept for ECC and firmware.
MEMORY_SHARE = 0.9
# Sizes in which clouds rent out parts of a board.
CLOUD_SIZES = (1, 2, 4)


@dataclass(frozen=True)
class NodeExpectations:
    """What one node should be.

    ``nvlink_present`` says whether NVLink belongs to this node at all; where it is
    ``"optional"``, ``nvlink_links`` holds for those GPUs that have a link up. ``nvlink_links``
    counts per GPU. ``count_problem`` says why the number of GPUs is odd, where only a profile
    could tell whether it is wrong.
    """

    model: GpuModel | None
    problems: tuple[str, ...]
    count_problem: str | None
    gpu_count: Expected[int] | None
    gpu_models: Expected[tuple[str, ...]] | None
    memory_bytes_min: Expected[int] | None
    ecc: Expected[bool] | None
    mig: Expected[bool] | None
    persistence: Expected[bool] | None
    nvlink_present: Presence
    nvlink_source: str
    nvlink_links: Expected[int] | None
    nvlink_version: Expected[str] | None
    nvlink_all_pairs: Expected[bool] | None
    fabric_completed: Expected[bool] | None
    pcie_generation: Expected[int] | None
    pcie_width: Expected[int] | None
    p2p_required: Expected[bool] | None
    network_required: Expected[bool] | None
    network_ports: Expected[int] | None
    network_kind: Expected[str] | None
    network_rate_gbps: Expected[float] | None
    driver: Expected[str] | None
    cuda: Expected[str] | None
    nccl: Expected[str] | None
    torch: Expected[str] | None
    power_limit_w: Expected[float] | None
    memlock_unlimited: Expected[bool] | None
    shm_gb: Expected[float] | None


def expect(facts: NodeFacts, profile: Profile | None = None) -> NodeExpectations:
    """Everything expected of a node, from the catalogue entry of its GPUs and the profile."""
    gpus = facts.gpus or ()
    want = profile or Profile(name="", source="")
    model = node_model(facts)

    def given(value: T | None, fallback: Expected[T] | None = None) -> Expected[T] | None:
        return fallback if value is None else Expected(value, want.label)

    presence, presence_source = _nvlink_presence(model, gpus, want)
    return NodeExpectations(
        model=model,
        problems=_problems(facts, model, want),
        count_problem=_count_problem(model, len(gpus)) if want.gpus.count is None else None,
        gpu_count=given(want.gpus.count),
        gpu_models=given(want.gpus.model, _same_model(model, gpus)),
        memory_bytes_min=_memory_min(model, want),
        ecc=given(want.gpus.ecc, _ecc(model)),
        mig=given(want.gpus.mig, Expected(False, "default: training uses whole GPUs", False)),
        persistence=given(
            want.gpus.persistence, Expected(True, "default: keeps the driver loaded", False)
        ),
        nvlink_present=presence,
        nvlink_source=presence_source,
        nvlink_links=given(want.nvlink.links, _links(model, gpus, presence)),
        nvlink_version=given(want.nvlink.version, _version(model, presence)),
        nvlink_all_pairs=given(want.nvlink.all_pairs, _all_pairs(model, presence)),
        fabric_completed=given(want.fabric.completed, _fabric(model, gpus)),
        pcie_generation=given(want.pcie.generation, _pcie(model, "pcie_generation")),
        pcie_width=given(want.pcie.width, _pcie(model, "pcie_width")),
        p2p_required=given(want.p2p.required, _p2p(model, gpus)),
        network_required=given(want.network.required),
        network_ports=given(want.network.ports),
        network_kind=given(want.network.kind),
        network_rate_gbps=given(want.network.rate_gbps),
        driver=given(want.software.driver),
        cuda=given(want.software.cuda),
        nccl=given(want.software.nccl),
        torch=given(want.software.torch),
        power_limit_w=given(want.power.limit_w),
        memlock_unlimited=given(want.host.memlock_unlimited),
        shm_gb=given(want.host.shm_gb),
    )


def node_model(facts: NodeFacts) -> GpuModel | None:
    """The catalogue entry of most of the node's GPUs; ``None`` if unknown or evenly mixed."""
    names = Counter(bare_name(gpu.name) for gpu in facts.gpus or () if gpu.name)
    ranked = Counter[GpuModel | str]()
    for name, count in names.items():
        ranked[find_gpu(name) or name] += count
    first = ranked.most_common(2)
    if not first or (len(first) == 2 and first[0][1] == first[1][1]):
        return None
    return first[0][0] if isinstance(first[0][0], GpuModel) else None


def remote_types(gpus: tuple[Gpu, ...]) -> set[str]:
    """What the active NVLinks lead to: ``{"switch"}`` behind NVSwitch, ``{"gpu"}`` in a mesh."""
    return {
        link.remote_type
        for gpu in gpus
        for link in gpu.nvlinks or ()
        if link.active and link.remote_type in ("gpu", "switch")
    }


def _problems(facts: NodeFacts, model: GpuModel | None, profile: Profile) -> tuple[str, ...]:
    if facts.gpus is None:
        reason = facts.why_unreadable("nvml") or "NVML did not answer"
        return (f"The GPUs could not be read ({reason}), so nothing is known of their model.",)
    problems = [
        f"{gpu.label} has no readable name, so its model is unknown."
        for gpu in facts.gpus
        if not gpu.name and gpu.lost is None
    ]
    named = profile.gpus.model or ()
    for name in sorted({gpu.name for gpu in facts.gpus if gpu.name}):
        if find_gpu(name) or any(same_product_name(name, known) for known in named):
            continue
        if name == GENERIC_NAME:
            problems.append(
                f"{name} is what a driver prints for a GPU newer than itself: update the driver."
            )
        else:
            problems.append(f"{name} is not in the catalogue: add it to a profile (gpus.model).")
    if model and not model.memory_gb and profile.gpus.memory_gb is None:
        problems.append(
            f"The memory of {model.title} is not known: add gpus.memory_gb to a profile."
        )
    if model is None and not problems and not named and any(gpu.name for gpu in facts.gpus):
        problems.append(
            "The GPU models are mixed evenly, so none of them is the rule: say which is right "
            "in a profile (gpus.model)."
        )
    return tuple(problems)


def _count_problem(model: GpuModel | None, count: int) -> str | None:
    if model is None or not model.node_sizes or count == 0:
        return None
    if count in model.node_sizes or count in CLOUD_SIZES:
        return None
    boards = " or ".join(str(size) for size in model.node_sizes)
    return (
        f"{count} GPUs, but {model.title} comes as {boards} on a board and clouds rent out 1, 2 or "
        "4 of them: one may be missing. Settle it with gpus.count in a profile."
    )


def _same_model(model: GpuModel | None, gpus: tuple[Gpu, ...]) -> Expected[tuple[str, ...]] | None:
    if model is None:
        return None
    return Expected(model.names, "the other GPUs of this node", len(gpus) > 1)


def _memory_min(model: GpuModel | None, profile: Profile) -> Expected[int] | None:
    if profile.gpus.memory_gb is not None:
        return Expected(int(MEMORY_SHARE * profile.gpus.memory_gb * 1e9), profile.label)
    if model is None or not model.memory_gb:
        return None
    least = int(MEMORY_SHARE * min(model.memory_gb) * 1e9)
    return Expected(least, model.source, model.is_certain("memory_gb"))


def _ecc(model: GpuModel | None) -> Expected[bool] | None:
    if model is None or model.ecc is not True:
        return None  # none on the part, or the owner's choice
    return Expected(True, model.source, model.is_certain("ecc"))


def _nvlink_presence(
    model: GpuModel | None, gpus: tuple[Gpu, ...], profile: Profile
) -> tuple[Presence, str]:
    if profile.nvlink.links is not None or profile.nvlink.all_pairs:
        return "absent" if profile.nvlink.links == 0 else "required", profile.label
    if model is None:
        return "unknown", "the model is unknown"
    source = model.source
    if not model.is_certain("nvlink_wiring"):
        return "unknown", f"{source} (uncertain)"
    if model.nvlink_wiring == "none":
        return "absent", source
    if model.nvlink_wiring == "bridge":
        return "optional", f"{source}: only where bridges are mounted"
    if model.nvlink_wiring == "chassis":
        alone = len(gpus) == 1 and not any(gpu.active_links for gpu in gpus)
        return ("absent" if alone else "optional"), f"{source}: links lead to a chassis, if any"
    if len(gpus) < 2:
        return "unknown", f"{source}: with one GPU visible its links may lead out of a VM"
    return "required", source


def _links(
    model: GpuModel | None, gpus: tuple[Gpu, ...], presence: Presence
) -> Expected[int] | None:
    if model is None or presence == "unknown":
        return None
    if presence == "absent":
        return Expected(0, model.source)
    if presence == "optional" and not any(gpu.active_links for gpu in gpus):
        return None
    certain = model.is_certain("nvlink_links") and model.nvlink_wiring != "chassis"
    return Expected(model.nvlink_links, model.source, certain)


def _version(model: GpuModel | None, presence: Presence) -> Expected[str] | None:
    if model is None or model.nvlink is None or presence == "absent":
        return None
    return Expected(model.nvlink.version, model.source, model.is_certain("nvlink_version"))


def _all_pairs(model: GpuModel | None, presence: Presence) -> Expected[bool] | None:
    if model is None or presence != "required":
        return None
    if model.nvlink_wiring not in ("switch", "mesh_or_switch"):
        return None
    return Expected(True, model.source)


def _fabric(model: GpuModel | None, gpus: tuple[Gpu, ...]) -> Expected[bool] | None:
    """NVML reports the fabric from Hopper on, and only behind NVSwitches."""
    if model is None or model.nvlink_wiring not in ("switch", "mesh_or_switch"):
        return None
    if int(model.compute_capability.split(".")[0]) < 9 or len(gpus) < 2:
        return None
    remotes = remote_types(gpus)
    if remotes == {"gpu"}:
        return None
    switched = model.nvlink_wiring == "switch" or "switch" in remotes or len(gpus) >= 8
    return Expected(True, model.source, switched and model.is_certain("nvlink_wiring"))


def _pcie(
    model: GpuModel | None, field: Literal["pcie_generation", "pcie_width"]
) -> Expected[int] | None:
    value: int | None = getattr(model, field) if model else None
    if model is None or value is None:
        return None
    # The slot of a card is the server's choice; a board's is part of the product.
    board = model.nvlink_wiring in ("switch", "mesh_or_switch", "mesh")
    return Expected(value, model.source, board and model.is_certain(field))


def _p2p(model: GpuModel | None, gpus: tuple[Gpu, ...]) -> Expected[bool] | None:
    if model is None or len(gpus) < 2:
        return None
    if model.nvlink_wiring not in ("switch", "mesh_or_switch"):
        return None
    return Expected(True, model.source, model.is_certain("nvlink_wiring"))
