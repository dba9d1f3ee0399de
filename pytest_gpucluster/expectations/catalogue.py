"""GPUs, links, drivers and Xid numbers: what is known of them, with its source.

The tables are the ``data/*.toml`` files; each is read once, on first use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pytest_gpucluster.expectations.model import Expected
from pytest_gpucluster.expectations.tables import load_table

Wiring = Literal["none", "bridge", "mesh", "mesh_or_switch", "switch", "chassis"]
Gate = Literal["fail", "warn", "info"]
Confidence = Literal["high", "medium", "low"]

# What a driver prints for a part that it is too old to know, GB200 among others.
GENERIC_NAME = "NVIDIA Graphics Device"


@dataclass(frozen=True)
class LinkKind:
    """A kind of NVLink. Rates are GB/s per link and direction."""

    generation: int
    version: str
    payload_gbs: float
    nccl_gbs: float
    half_size_mib: float
    confidence: Confidence
    sources: tuple[str, ...]
    nvls_share: float | None = None  # of the payload rate, for all-reduce in the switch
    nvls_min_ranks: int | None = None
    uncertain: tuple[str, ...] = ()
    note: str | None = None


@dataclass(frozen=True)
class GpuModel:
    """One product. GB and GB/s are decimal, TFLOPS dense; ``None`` is not known."""

    key: str
    title: str
    names: tuple[str, ...]
    compute_capability: str
    memory_gb: tuple[float, ...]
    memory_type: str
    ecc: bool | Literal["optional"]
    nvlink_wiring: Wiring
    nvlink_links: int
    confidence: Confidence
    uncertain: tuple[str, ...]
    sources: tuple[str, ...]
    datasheets: tuple[str, ...]
    nvlink: LinkKind | None = None
    mig: bool | None = None
    power_w: float | None = None
    memory_bandwidth_gbs: float | None = None
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    tf32_tflops: float | None = None
    fp8_tflops: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    node_sizes: tuple[int, ...] = ()  # (): any number is built
    note: str | None = None

    @property
    def source(self) -> str:
        """How reports name this entry: ``catalogue: H100 SXM``."""
        return f"catalogue: {self.title}"

    def is_certain(self, *fields: str) -> bool:
        """Whether opened sources settle all these fields."""
        return self.confidence != "low" and not set(fields) & set(self.uncertain)


@dataclass(frozen=True)
class XidMeaning:
    """What an Xid number says. ``code`` is the finding it becomes (``gpu.off_bus``)."""

    number: int
    mnemonic: str
    meaning: str
    immediate: str
    klass: str
    gate: Gate
    code: str
    by_text: bool = False

    def gate_for(self, text: str) -> Gate:
        """The gate for one log line: NVLink 5 errors print Fatal or Nonfatal themselves."""
        if self.by_text and re.search(r"\bnon-?fatal\b", text, re.IGNORECASE):
            return "warn"
        return self.gate


@dataclass(frozen=True)
class ClockEvent:
    """A reason for the present clocks, and whether it harms training."""

    name: str
    bit: int
    harmful: bool | Literal["warn"]
    meaning: str


@dataclass(frozen=True)
class DriverNeed:
    """The driver a CUDA release needs.

    From ``minimum`` on it runs (minor-version compatibility), from ``toolkit`` on every feature
    works; ``toolkit`` is ``None`` for a release that the table does not list.
    """

    cuda: str
    minimum: str
    toolkit: str | None
    source: str
    certain: bool


def version_key(text: str) -> tuple[int, ...]:
    """A version as a tuple to compare: ``"2.13.0+cpu"`` -> ``(2, 13)``.

    Trailing zeros say nothing and are dropped, so ``"12"``, ``"12.0"`` and ``"12.0.0"`` are
    equal. What follows the leading numbers is ignored. Raises ValueError if there are none.
    """
    match = re.match(r"\s*v?(\d{1,9}(?:\.\d{1,9})*)", text)
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    parts = [int(part) for part in match[1].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def bare_name(name: str) -> str:
    """A product name without the maker's, which older drivers leave out."""
    return name.strip().removeprefix("NVIDIA ")


def same_product_name(a: str, b: str) -> bool:
    """Whether two NVML names are the same product, with or without the maker's name."""
    return bare_name(a) == bare_name(b)


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    """All products, in the order of the table."""
    return tuple(_gpu_model(key, row) for key, row in load_table("gpus.toml").items())


def find_gpu(name: str) -> GpuModel | None:
    """The product NVML calls ``name``, or ``None``.

    Names are compared as a whole: ``GH200`` contains ``H200``, ``H200 NVL`` begins with it.
    """
    return _by_name().get(bare_name(name))


@cache
def link_kind(key: str) -> LinkKind:
    """A kind of NVLink by its key in ``links.toml``."""
    return LinkKind(**_frozen(_links()["nvlink"][key]))


def pcie_gbs(generation: int, width: int) -> float | None:
    """Line rate of a PCIe link, GB/s per direction; ``None`` for an unknown generation."""
    full = _pcie_x16().get(generation)
    return None if full is None else full * width / 16


def xid_meaning(number: int) -> XidMeaning | None:
    """What an Xid number means; ``None`` for one that the catalogue does not list."""
    return _xids().get(number)


def clock_event(name: str) -> ClockEvent | None:
    """A clock-event reason by its name in the facts (``"hw_thermal"``)."""
    return _clock_events().get(name)


def cuda_needs_driver(cuda: str) -> DriverNeed | None:
    """The driver that CUDA ``"12.8"`` needs; ``None`` for an unknown major.

    Raises ValueError if ``cuda`` is not a version.
    """
    asked = version_key(cuda)
    table = _compat()
    major = str(asked[0])
    if major not in table["major_minimum"]:
        return None
    release = _listed_release(asked, table["toolkit_driver"])
    toolkit = table["toolkit_driver"][release] if release else None
    minimum = table["major_minimum"][major]
    if toolkit is not None and version_key(toolkit) < version_key(minimum):
        minimum = toolkit  # CUDA 11.0 came before minor-version compatibility
    certain = (
        major not in table["major_minimum_source"]["uncertain"]
        and release not in table["toolkit_driver_source"]["uncertain"]
    )
    return DriverNeed(cuda, minimum, toolkit, table["major_minimum_source"]["text"], certain)


def compute_capability_needs_cuda(capability: str) -> Expected[str] | None:
    """The first CUDA release for a compute capability (``"9.0"`` -> ``"11.8"``), or ``None``."""
    table = _compat()
    cuda = table["compute_capability_cuda"].get(capability)
    if cuda is None:
        return None
    source = table["compute_capability_cuda_source"]
    return Expected(cuda, source["text"], capability not in source["uncertain"])


def _listed_release(asked: tuple[int, ...], releases: dict[str, str]) -> str | None:
    """The listed release of the same minor: the newest not above ``asked``, else the oldest."""
    minor = (*asked, 0)[:2]
    same = [r for r in releases if (*version_key(r), 0)[:2] == minor]
    below = [r for r in same if version_key(r) <= asked]
    return max(below, key=version_key) if below else min(same, key=version_key, default=None)


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}


def _gpu_model(key: str, row: dict[str, Any]) -> GpuModel:
    fields = _frozen(row)
    if "nvlink" in fields:
        fields["nvlink"] = link_kind(fields["nvlink"])
    return GpuModel(key=key, **fields)


@cache
def _by_name() -> dict[str, GpuModel]:
    return {bare_name(name): model for model in gpu_models() for name in model.names}


@cache
def _links() -> dict[str, Any]:
    return load_table("links.toml")


@cache
def _pcie_x16() -> dict[int, float]:
    return {int(g): row["x16_gbs"] for g, row in _links()["pcie"].items()}


@cache
def _xids() -> dict[int, XidMeaning]:
    rows = load_table("xid.toml")["xid"]
    return {int(number): XidMeaning(int(number), **row) for number, row in rows.items()}


@cache
def _clock_events() -> dict[str, ClockEvent]:
    rows = load_table("clock_events.toml")["event"]
    return {name: ClockEvent(name, **row) for name, row in rows.items()}


@cache
def _compat() -> dict[str, Any]:
    return load_table("compat.toml")
