"""The catalogue: names find the right product, tables are complete and consistent."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from pytest_gpucluster.expectations.catalogue import (
    GpuModel,
    clock_event,
    compute_capability_needs_cuda,
    cuda_needs_driver,
    find_gpu,
    gpu_models,
    link_kind,
    pcie_gbs,
    same_product_name,
    version_key,
    xid_meaning,
)
from pytest_gpucluster.expectations.tables import load_table

WIRINGS = {"none", "bridge", "mesh", "mesh_or_switch", "switch", "chassis"}
NOT_FIELDS = {"nvlink_version", "bandwidth"}  # settled elsewhere, but may be uncertain here
KNOWN_FIELDS = {field.name for field in fields(GpuModel)} | NOT_FIELDS


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96 GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144 GB"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A800-SXM4-80GB", "A800 SXM4 80 GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16 GB"),
    ],
)
def test_a_name_finds_its_product_and_no_namesake(name: str, title: str) -> None:
    model = find_gpu(name)
    assert model is not None
    assert model.title == title


@pytest.mark.parametrize("name", ["A100-SXM4-40GB", "GeForce RTX 3090", " NVIDIA A40 "])
def test_names_of_older_drivers_are_known(name: str) -> None:
    assert find_gpu(name) is not None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA Graphics Device",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA NVIDIA H200",
        "H2",
        "GRID A100-4C",
        "nvidia h200",
        "",
        "NVIDIA ",
        "\x00" * 1000,
    ],
)
def test_parts_of_names_and_generic_names_find_nothing(name: str) -> None:
    assert find_gpu(name) is None


def test_every_name_belongs_to_one_product() -> None:
    names = [name for model in gpu_models() for name in model.names]
    assert len(names) == len(set(names)) >= 45
    for model in gpu_models():
        assert all(find_gpu(name) is model for name in model.names)


@pytest.mark.parametrize("model", gpu_models(), ids=lambda model: model.key)
def test_an_entry_is_consistent(model: GpuModel) -> None:
    assert model.nvlink_wiring in WIRINGS
    assert (model.nvlink is None) == (model.nvlink_links == 0) == (model.nvlink_wiring == "none")
    assert model.confidence in ("high", "medium", "low")
    assert set(model.uncertain) <= KNOWN_FIELDS
    assert model.ecc in (True, False, "optional")
    assert re.fullmatch(r"\d+\.\d", model.compute_capability)
    assert all(4 <= gb <= 300 for gb in model.memory_gb)
    assert model.memory_gb or model.confidence == "low"
    assert model.pcie_width in (8, 16)
    assert all(1 <= size <= 16 for size in model.node_sizes)
    assert model.power_w is None or 50 <= model.power_w <= 1500
    assert compute_capability_needs_cuda(model.compute_capability) is not None
    if model.memory_type.startswith("HBM"):
        assert model.ecc is True
    if model.title.startswith("GeForce"):
        assert model.ecc is False
    # A value that nothing was opened for cannot be certain.
    assert model.sources or model.confidence != "high"


def test_sources_are_public_and_of_this_world() -> None:
    text = " ".join(s for model in gpu_models() for s in (*model.sources, model.note or ""))
    assert not re.search(r"find_string|/work|shared/|\bid \d{6,}", text)


@pytest.mark.parametrize(
    ("name", "gb"),
    [
        ("Tesla P100-PCIE-12GB", 12),
        ("Tesla P100-PCIE-16GB", 16),
        ("NVIDIA A100-SXM-64GB", 64),
        ("NVIDIA GH200 480GB", 96),  # 480 is the CPU's memory
        ("NVIDIA A10G", 24),
    ],
)
def test_memory_is_the_parts_own(name: str, gb: float) -> None:
    model = find_gpu(name)
    assert model is not None
    assert model.memory_gb == (gb,)


def test_uncertain_fields_and_low_confidence_are_not_certain() -> None:
    a800, b100, h100 = (
        find_gpu(n) for n in ("NVIDIA A800-SXM4-80GB", "NVIDIA B100", "NVIDIA H100 80GB HBM3")
    )
    assert a800 is not None
    assert b100 is not None
    assert h100 is not None
    assert a800.nvlink_links == 8
    assert not a800.is_certain("nvlink_links")
    assert a800.is_certain("memory_gb")
    assert not b100.is_certain("ecc")
    assert h100.is_certain("nvlink_links", "memory_gb", "pcie_width")


def test_cloud_cards_with_eight_lanes_are_known() -> None:
    a10g = find_gpu("NVIDIA A10G")
    assert a10g is not None
    assert (a10g.pcie_width, a10g.is_certain("pcie_width")) == (8, False)


@pytest.mark.parametrize("key", load_table("links.toml")["nvlink"])
def test_links_carry_less_for_nccl_than_on_the_wire(key: str) -> None:
    link = link_kind(key)
    assert 0 < link.nccl_gbs < link.payload_gbs
    assert link.version.startswith(f"{link.generation}.")
    assert (link.nvls_share is None) == (link.nvls_min_ranks is None) == (link.generation < 4)
    assert link.sources


@pytest.mark.parametrize(
    ("generation", "width", "gbs"), [(3, 16, 15.75), (4, 8, 15.75), (5, 16, 63.0), (9, 16, None)]
)
def test_pcie_line_rate(generation: int, width: int, gbs: float | None) -> None:
    assert pcie_gbs(generation, width) == gbs


@pytest.mark.parametrize(
    ("number", "gate", "code"),
    [
        (79, "fail", "gpu.off_bus"),
        (74, "fail", "nvlink.errors"),
        (48, "fail", "memory.ecc_uncorrectable"),
        (95, "fail", "memory.ecc_uncorrectable"),
        (94, "warn", "memory.ecc_uncorrectable"),
        (63, "warn", "memory.row_remap_pending"),
        (64, "fail", "memory.row_remap_failed"),
        (119, "fail", "gpu.gsp_timeout"),
        (120, "fail", "gpu.gsp_timeout"),
        (143, "fail", "gpu.fatal_xid"),
        (31, "warn", "gpu.xid"),
        (43, "info", "gpu.xid"),
        (45, "info", "gpu.xid"),  # cleanup after another
        (154, "info", "gpu.xid"),  # restates another
    ],
)
def test_xid_gates_and_codes(number: int, gate: str, code: str) -> None:
    meaning = xid_meaning(number)
    assert meaning is not None
    assert (meaning.number, meaning.gate, meaning.code) == (number, gate, code)
    assert meaning.mnemonic.isupper()
    assert meaning.meaning


@pytest.mark.parametrize("number", [1, 0, -1, 9999])
def test_unlisted_xid_numbers_mean_nothing(number: int) -> None:
    assert xid_meaning(number) is None


@pytest.mark.parametrize("number", load_table("xid.toml")["xid"])
def test_every_xid_entry_is_complete(number: str) -> None:
    meaning = xid_meaning(int(number))
    assert meaning is not None
    assert meaning.gate in ("fail", "warn", "info")
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", meaning.code)
    assert meaning.klass
    assert (meaning.code == "gpu.fatal_xid") <= (meaning.gate == "fail")
    assert (meaning.code == "gpu.xid") <= (meaning.gate != "fail")


def test_nvlink5_errors_are_gated_by_what_the_line_says() -> None:
    meaning = xid_meaning(145)
    assert meaning is not None
    assert meaning.gate_for("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13") == "warn"
    assert meaning.gate_for("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00") == "fail"
    off_bus = xid_meaning(79)
    assert off_bus is not None
    assert off_bus.gate_for("79, a nonfatal word proves nothing here") == "fail"


def test_clock_events() -> None:
    harm = {n: clock_event(n) for n in ("hw_power_brake", "sync_boost", "sw_power_cap", "gpu_idle")}
    assert {n: e.harmful for n, e in harm.items() if e} == {
        "hw_power_brake": True,
        "sync_boost": "warn",
        "sw_power_cap": False,
        "gpu_idle": False,
    }
    assert clock_event("no_such_reason") is None
    bits = [row["bit"] for row in load_table("clock_events.toml")["event"].values()]
    assert len(bits) == len(set(bits))
    assert all(bit & (bit - 1) == 0 for bit in bits)


@pytest.mark.parametrize(
    ("cuda", "minimum", "toolkit"),
    [
        ("12.8", "525.60.13", "570.26"),
        ("12.8.1", "525.60.13", "570.124.06"),
        ("12.6.2", "525.60.13", "560.35.03"),  # not listed: the newest release below it
        ("12.7", "525.60.13", None),  # no such release
        ("11.8", "450.80.02", "520.61.05"),
        ("11.0", "450.51.05", "450.51.05"),  # its own driver is older than the 11.x minimum
        ("13.0", "580", "580.65.06"),
    ],
)
def test_cuda_needs_a_driver(cuda: str, minimum: str, toolkit: str | None) -> None:
    need = cuda_needs_driver(cuda)
    assert need is not None
    assert (need.minimum, need.toolkit) == (minimum, toolkit)
    assert need.source


def test_minor_version_compatibility_accepts_drivers_older_than_the_toolkits() -> None:
    need = cuda_needs_driver("12.8")
    assert need is not None
    assert need.toolkit is not None
    assert version_key(need.minimum) < version_key("550.127.08") < version_key(need.toolkit)
    assert need.certain
    later = cuda_needs_driver("13.0")
    assert later is not None
    assert not later.certain


@pytest.mark.parametrize("cuda", ["10.2", "14.0"])
def test_unknown_cuda_majors_have_no_answer(cuda: str) -> None:
    assert cuda_needs_driver(cuda) is None


def test_compute_capability_needs_cuda() -> None:
    hopper, ada = (compute_capability_needs_cuda(c) for c in ("9.0", "8.9"))
    assert hopper is not None
    assert ada is not None
    assert (hopper.value, hopper.certain, ada.certain) == ("11.8", True, False)
    assert compute_capability_needs_cuda("99.0") is None


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("550.54.15", "550.127.08"),
        ("2.9.1+cu128", "2.10.0"),
        ("9", "12.0"),
        ("2.13.0a0+git1", "2.14"),
        ("v1.0", "v1.0.1"),
    ],
)
def test_versions_compare_by_number(older: str, newer: str) -> None:
    assert version_key(older) < version_key(newer)


def test_trailing_zeros_and_builds_say_nothing() -> None:
    assert version_key("12") == version_key("12.0") == version_key("12.0.0+cpu") == (12,)
    assert version_key("0") == (0,)


@pytest.mark.parametrize("text", ["", "N/A", "unknown", "-1", "." * 10])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        version_key(text)


def test_product_names_compare_without_the_maker() -> None:
    assert same_product_name("NVIDIA A40", "A40")
    assert not same_product_name("NVIDIA H200", "NVIDIA GH200")
