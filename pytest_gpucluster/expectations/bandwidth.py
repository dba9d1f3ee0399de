"""The all-reduce bandwidth a node should reach, and the most it could.

All figures are bus bandwidth in GB/s as nccl-tests defines it (algbw x 2(n-1)/n). The model
follows NCCL: a ring moves ``links x per-link rate``; behind NVSwitch, Hopper and Blackwell also
reduce inside the switch (NVLS), where each GPU sends and receives the data once, so busbw is
``share x line rate x 2(n-1)/n`` and can exceed the ring. Per-link rates are NCCL's own
(NVIDIA/nccl: src/graph/topo.h@5067397c); the NVLS shares 0.61 and 0.53 were read off published
healthy runs, so agreement with those runs proves consistency, not prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_gpucluster.expectations.catalogue import (
    GpuModel,
    LinkKind,
    find_gpu,
    pcie_gbs,
    version_key,
)
from pytest_gpucluster.expectations.expect import remote_types
from pytest_gpucluster.expectations.profile import Profile
from pytest_gpucluster.facts.model import Gpu, NodeFacts

FLOOR_RATIO = 0.85
# Below this share of the peak, latency decides and varies with the NCCL release.
GATED_SHARE = 0.85
# From here on a floor of the profile's own is judged where nothing can be derived.
GATED_BYTES = 512 * 2**20
MIB = 2**20

# ncclNvlsSupported for a sum (NVIDIA/nccl: src/include/device.h@5067397c)
NVLS_DTYPES = frozenset(
    {"float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint64"}
)
NVLS_FIRST_NCCL = (2, 17)


@dataclass(frozen=True)
class BandwidthExpectation:
    """Bus bandwidth in GB/s for one size.

    ``floor_gbs`` is judged only where ``gated``; above ``ceiling_gbs`` the measurement itself is
    wrong. ``ceiling_gbs`` is ``None`` where the hardware is not known well enough.
    """

    expected_gbs: float
    floor_gbs: float
    ceiling_gbs: float | None
    derivation: str
    source: str
    certain: bool
    gated: bool


@dataclass(frozen=True)
class NoExpectation:
    """Why no bandwidth can be derived; a ceiling may still be known."""

    reason: str
    ceiling_gbs: float | None = None


@dataclass(frozen=True)
class Peak:
    """Bus bandwidth for endless sizes, GB/s; ``half_size`` bytes reach half of it."""

    expected: float
    ceiling: float
    derivation: str
    source: str
    certain: bool
    half_size: float


def all_reduce(
    facts: NodeFacts,
    ranks: int,
    *,
    size_bytes: int,
    dtype: str = "float32",
    nodes: int = 1,
    profile: Profile | None = None,
) -> BandwidthExpectation | NoExpectation:
    """What a sum over the first ``ranks`` GPUs of the node should reach.

    ``dtype`` is torch's name without the module (``"bfloat16"``). A floor in the profile replaces
    the derived one for runs over all GPUs of the node.
    """
    top = peak(facts, ranks, dtype, nodes, profile)
    floor = profile.bandwidth.all_reduce_gbs if profile and nodes == 1 else None
    if facts.gpus is None or ranks != len(facts.gpus) or ranks < 2:
        floor = None
    if isinstance(top, NoExpectation):
        if floor is None or profile is None:
            return top
        derivation = f"{top.reason}; the floor is the profile's"
        gated = size_bytes >= GATED_BYTES
        return BandwidthExpectation(
            floor, floor, top.ceiling_gbs, derivation, profile.label, True, gated
        )
    share = size_bytes / (size_bytes + top.half_size)
    expected = top.expected * share
    derived = BandwidthExpectation(
        expected_gbs=expected,
        floor_gbs=FLOOR_RATIO * expected,
        ceiling_gbs=top.ceiling,
        derivation=f"{top.derivation}; x {share:.3f} at {_size(size_bytes)} = {expected:.1f}",
        source=top.source,
        certain=top.certain,
        gated=share >= GATED_SHARE,
    )
    if floor is None or profile is None:
        return derived
    return replace(
        derived,
        floor_gbs=floor,
        certain=True,
        source=f"{profile.label} (floor), {top.source}",
    )


def peak(
    facts: NodeFacts, ranks: int, dtype: str, nodes: int, profile: Profile | None
) -> Peak | NoExpectation:
    """The rates for endless sizes over the first ``ranks`` GPUs; see `all_reduce`."""
    gpus = facts.gpus
    if nodes > 1:
        return NoExpectation("more than one node: the network is not modelled yet")
    if not gpus:
        return NoExpectation("no GPU was read on this node")
    if ranks < 2:
        return NoExpectation("one rank moves no data over a link")
    if ranks > len(gpus):
        return NoExpectation(f"{ranks} ranks share {len(gpus)} GPUs")
    used = gpus[:ranks]
    models = {find_gpu(gpu.name) if gpu.name else None for gpu in used}
    model = models.pop()
    if models:
        return NoExpectation("the GPUs are of different models")
    if model is None:
        return NoExpectation(f"{used[0].name or 'this GPU'} is not in the catalogue")
    if any(gpu.mig_enabled for gpu in used):
        return NoExpectation("MIG is on: a part of a GPU has no link of its own")
    return _peak_of(model, used, gpus, dtype, facts.software.torch_nccl, profile)


def _peak_of(
    model: GpuModel,
    used: tuple[Gpu, ...],
    gpus: tuple[Gpu, ...],
    dtype: str,
    nccl: str | None,
    profile: Profile | None,
) -> Peak | NoExpectation:
    links = model.nvlink_links
    if profile and profile.nvlink.links is not None:
        links = profile.nvlink.links
    link = model.nvlink
    if link is None or links == 0:
        return NoExpectation(
            f"{model.title} has no NVLink; rates over PCIe depend on the board and the CPU",
            _pcie_ceiling(model, used),
        )
    certain = model.is_certain("nvlink_links", "nvlink_wiring", "bandwidth")
    if model.nvlink_wiring == "chassis":
        return NoExpectation(f"{model.title}: the NVLink chassis is not known")
    if model.nvlink_wiring == "bridge":
        if len(used) != 2 or not all(gpu.active_links for gpu in used) or not _are_joined(used):
            return NoExpectation(f"{model.title}: no NVLink bridge joins these {len(used)} GPUs")
        return _ring(model, link, links, certain)
    meshed = model.nvlink_wiring == "mesh" or remote_types(gpus) == {"gpu"}
    if meshed:
        if len(used) != len(gpus) or len(gpus) < 4:
            return NoExpectation(f"{model.title}: a part of a mesh; its links are not all usable")
        return _ring(model, link, links, certain=False)
    if model.nvlink_wiring == "mesh_or_switch" and "switch" not in remote_types(gpus):
        certain = certain and len(gpus) >= 8
    ring = _ring(model, link, links, certain)
    if link.nvls_share is None or not _nvls_applies(link, len(used), dtype, nccl):
        return ring
    return _with_nvls(ring, link, link.nvls_share, links, len(used))


def _ring(model: GpuModel, link: LinkKind, links: int, certain: bool) -> Peak:
    rate = links * link.nccl_gbs
    return Peak(
        expected=rate,
        ceiling=links * link.payload_gbs,
        derivation=f"{links} links x {link.nccl_gbs:g} GB/s = {rate:.1f} ring",
        source=model.source,
        certain=certain,
        half_size=link.half_size_mib * MIB,
    )


def _with_nvls(ring: Peak, link: LinkKind, share: float, links: int, ranks: int) -> Peak:
    line = links * link.payload_gbs
    factor = 2 * (ranks - 1) / ranks
    nvls = share * line * factor
    best = max(ring.expected, nvls)
    return replace(
        ring,
        expected=best,
        ceiling=line * factor,
        derivation=(
            f"{ring.derivation}; NVLS {share:g} x {line:g} x {factor:.4g} = {nvls:.1f}"
            f" -> {best:.1f}"
        ),
    )


def _nvls_applies(link: LinkKind, ranks: int, dtype: str, nccl: str | None) -> bool:
    if link.nvls_min_ranks is None or ranks < link.nvls_min_ranks or dtype not in NVLS_DTYPES:
        return False
    try:
        return nccl is None or version_key(nccl) >= NVLS_FIRST_NCCL
    except ValueError:
        return True


def _are_joined(pair: tuple[Gpu, ...]) -> bool:
    """Whether the links of a bridged GPU lead to the other; true where NVML does not tell."""
    first, second = pair
    remotes = {link.remote_bus_id for link in first.nvlinks or () if link.active}
    return None in remotes or second.bus_id is None or second.bus_id in remotes


def _pcie_ceiling(model: GpuModel, used: tuple[Gpu, ...]) -> float | None:
    """The line rate of the best PCIe link these GPUs could have."""
    generations = [model.pcie_generation, *(gpu.pcie.device_generation for gpu in used)]
    known = [generation for generation in generations if generation is not None]
    return pcie_gbs(max(known), 16) if known else None


def _size(size_bytes: int) -> str:
    if size_bytes >= 1024 * MIB:
        return f"{size_bytes / (1024 * MIB):.4g} GiB"
    return f"{size_bytes / MIB:.4g} MiB"
