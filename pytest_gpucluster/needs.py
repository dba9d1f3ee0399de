"""What each ``requires_*`` mark asks of a node.

Every function checks its arguments (TypeError, ValueError) and returns a `Need`; asking it
compares facts with expectations. Their docstrings are what ``pytest --markers`` prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucluster.expectations.expect import NodeExpectations
    from pytest_gpucluster.facts.model import Gpu, NodeFacts


@dataclass(frozen=True)
class Answer:
    """``met``: ``None`` if the facts do not tell. ``supposed``: whether the node should have
    what is missing, ``None`` if nobody knows."""

    met: bool | None
    reason: str = ""
    supposed: bool | None = None


@dataclass(frozen=True)
class Need:
    """A requirement ready to be asked. ``hardware``: cannot be judged in a rehearsal."""

    ask: Callable[[NodeFacts, NodeExpectations], Answer]
    hardware: bool = True


MET = Answer(True)


def gpus(n: int) -> Need:
    """the node has at least n working GPUs"""
    _positive("n", n)

    def ask(facts: NodeFacts, expected: NodeExpectations) -> Answer:
        if facts.gpus is None:
            reason = facts.why_unreadable("nvml") or "the GPUs could not be counted"
            return Answer(None, reason)
        working = sum(1 for gpu in facts.gpus if gpu.lost is None)
        if working >= n:
            return MET
        count = expected.gpu_count
        supposed = None if count is None else count.value >= n
        return Answer(False, f"{working} of {n} GPUs", supposed)

    return Need(ask)


def nvlink(min_links: int = 1, all_pairs: bool = False) -> Need:
    """every GPU has at least min_links active NVLinks; all_pairs: between all GPUs"""
    _positive("min_links", min_links)
    if not isinstance(all_pairs, bool):
        raise TypeError(f"all_pairs={all_pairs!r} is neither True nor False")

    def ask(facts: NodeFacts, expected: NodeExpectations) -> Answer:
        found = _working(facts)
        if not found:
            return Answer(None, _no_gpu(facts))
        supposed = {"required": True, "absent": False, "optional": False}.get(
            expected.nvlink_present
        )
        if any(gpu.nvlinks is None or gpu.active_links is None for gpu in found):
            return Answer(None, "the NVLinks could not be read")
        short = [gpu for gpu in found if (gpu.active_links or 0) < min_links]
        if short:
            gpu = short[0]
            return Answer(
                False, f"{gpu.label} has {gpu.active_links} of {min_links} NVLinks up", supposed
            )
        if all_pairs:
            unlinked = [pair for pair in facts.pairs or () if pair.nvlink != "ok"]
            if facts.pairs is None or any(pair.nvlink == "unknown" for pair in unlinked):
                return Answer(None, "the NVLinks between GPUs could not be read")
            if unlinked:
                return Answer(False, f"{unlinked[0].label} has no NVLink", supposed)
        return MET

    return Need(ask)


def nvswitch() -> Need:
    """the GPUs are connected through NVSwitch"""

    def ask(facts: NodeFacts, expected: NodeExpectations) -> Answer:
        found = _working(facts)
        if not found:
            return Answer(None, _no_gpu(facts))
        if all(any(link.remote_type == "switch" for link in gpu.nvlinks or ()) for gpu in found):
            return MET
        if any(gpu.nvlinks is None or _ends_nowhere(gpu) for gpu in found):
            return Answer(None, "where the NVLinks lead could not be read")
        wiring = expected.model.nvlink_wiring if expected.model else None
        # "mesh_or_switch" and "chassis" boards are built both ways.
        supposed = {"switch": True, "mesh": False, "bridge": False, "none": False}.get(wiring or "")
        return Answer(False, "no NVSwitch behind the NVLinks", supposed)

    return Need(ask)


def infiniband(min_rate_gbps: float = 0) -> Need:
    """the node has an active InfiniBand port of at least min_rate_gbps"""
    return _network(("infiniband",), "InfiniBand", min_rate_gbps)


def rdma(min_rate_gbps: float = 0) -> Need:
    """the node has an active RDMA port (InfiniBand, RoCE, EFA) of at least min_rate_gbps"""
    return _network(("infiniband", "roce", "efa"), "RDMA", min_rate_gbps)


def driver(versions: str) -> Need:
    """the NVIDIA driver satisfies a version specifier such as '>=535'"""
    return _version("driver", versions, hardware=True)


def cuda(versions: str) -> Need:
    """the CUDA that torch was built for satisfies a specifier such as '>=12'"""
    return _version("torch_cuda", versions, hardware=True)


def nccl(versions: str) -> Need:
    """the NCCL that torch loads satisfies a specifier such as '>=2.18'"""
    return _version("torch_nccl", versions, hardware=True)


def torch(versions: str) -> Need:
    """torch satisfies a specifier such as '>=2.4'"""
    return _version("torch", versions, hardware=False)


def compute_capability(minimum: str) -> Need:
    """every GPU has at least this compute capability, such as '9.0'"""
    wanted = _capability(minimum)

    def ask(facts: NodeFacts, expected: NodeExpectations) -> Answer:
        found = _working(facts)
        if not found:
            return Answer(None, _no_gpu(facts))
        if any(gpu.compute_capability is None for gpu in found):
            return Answer(None, "the compute capability could not be read")
        for gpu in found:
            if _capability(gpu.compute_capability or "") < wanted:
                return Answer(
                    False, f"{gpu.label} ({gpu.name}) has {gpu.compute_capability}", supposed=False
                )
        return MET

    return Need(ask)


def gpu_memory(gb: float) -> Need:
    """every GPU has at least gb x 1e9 bytes of memory"""
    _not_negative("gb", gb)

    def ask(facts: NodeFacts, expected: NodeExpectations) -> Answer:
        found = _working(facts)
        if not found:
            return Answer(None, _no_gpu(facts))
        if any(gpu.memory_bytes is None for gpu in found):
            return Answer(None, "the GPU memory could not be read")
        least = min(found, key=lambda gpu: gpu.memory_bytes or 0)
        if (least.memory_bytes or 0) >= gb * 1e9:
            return MET
        floor = expected.memory_bytes_min
        supposed = floor is not None and floor.value >= gb * 1e9
        found_gb = (least.memory_bytes or 0) / 1e9
        return Answer(False, f"{least.label} has {found_gb:.1f} of {gb:g} GB", supposed)

    return Need(ask)


def nodes(n: int) -> Need:
    """the run spans at least n nodes"""
    _positive("n", n)

    def ask(facts: NodeFacts, expected: NodeExpectations) -> Answer:
        return MET if n == 1 else Answer(False, f"1 of {n} nodes in this run", supposed=False)

    return Need(ask, hardware=False)


def _network(kinds: tuple[str, ...], name: str, min_rate_gbps: float) -> Need:
    _not_negative("min_rate_gbps", min_rate_gbps)

    def ask(facts: NodeFacts, expected: NodeExpectations) -> Answer:
        if facts.network is None:
            return Answer(None, facts.why_unreadable("network") or "the network was not read")
        kind = expected.network_kind
        supposed = None if kind is None else kind.value in kinds
        ports = [port for port in facts.network if port.kind in kinds]
        active = [port for port in ports if port.state == "ACTIVE"]
        if not active and any(port.state is None for port in ports):
            return Answer(None, f"the state of the {name} ports could not be read")
        if not active:
            return Answer(False, f"no active {name} port (found {len(ports)})", supposed)
        best = max(active, key=lambda port: port.rate_gbps or 0)
        if (best.rate_gbps or 0) >= min_rate_gbps:
            return MET
        if best.rate_gbps is None:
            return Answer(None, f"the rate of {best.label} could not be read")
        return Answer(
            False, f"{best.label} runs at {best.rate_gbps} of {min_rate_gbps:g} Gb/s", supposed
        )

    return Need(ask)


def _version(subject: str, versions: str, hardware: bool) -> Need:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    if not isinstance(versions, str):
        raise TypeError(f"{versions!r} is not a text such as '>=1.0'")
    try:
        specifier = SpecifierSet(versions)
    except InvalidSpecifier:
        raise ValueError(f"{versions!r} is not a version specifier such as '>=1.0'") from None

    def ask(facts: NodeFacts, expected: NodeExpectations) -> Answer:
        found = getattr(facts.software, subject)
        label = subject.replace("torch_", "")
        if found is None:
            return Answer(None, f"the {label} version is not known")
        try:
            Version(found)
        except InvalidVersion:
            return Answer(None, f"{label} {found} is not a version")
        if specifier.contains(found, prereleases=True):
            return MET
        demanded = getattr(expected, label)
        supposed = None
        if demanded is not None:
            supposed = not SpecifierSet(demanded.value).contains(found, prereleases=True)
        return Answer(False, f"{label} is {found}, the test needs {versions}", supposed)

    return Need(ask, hardware)


def _working(facts: NodeFacts) -> list[Gpu]:
    return [gpu for gpu in facts.gpus or () if gpu.lost is None]


def _ends_nowhere(gpu: Gpu) -> bool:
    return any(link.active and link.remote_type is None for link in gpu.nvlinks or ())


def _no_gpu(facts: NodeFacts) -> str:
    return facts.why_unreadable("nvml") or "no NVIDIA GPU on this node"


def _positive(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} is not a positive whole number")


def _not_negative(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise ValueError(f"{name}={value!r} is not a number of at least 0")


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = str(text).partition(".")
    if not (isinstance(text, str) and major.isdecimal() and minor.isdecimal()):
        raise ValueError(f"{text!r} is not a compute capability such as '9.0'")
    return int(major), int(minor)
