"""The NVML reader on fake machines: healthy, faulty, old, and hostile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.facts.model import (
    Clocks,
    Ecc,
    Fabric,
    Gpu,
    GpuPair,
    GpuProcess,
    NvLink,
    Pcie,
    Power,
    RemappedRows,
    RetiredPages,
)
from pytest_gpucluster.facts.nvml_binding import find_binding
from pytest_gpucluster.testing.machines import FAULTS, MACHINES, fault, machine
from tests.unit.nvml_reading import DEADLINE_S, READ, Reading, environment_of, read_machine

Read = Callable[..., Reading]
MIB = 2**20
H100 = machine("h100x8")
NO_ERROR_FIELDS = "".join(f"gpu.*.error.field.{field} 3\n" for field in (161, 162, 163))
NO_ERRORS = {"replay": 0, "recovery": 0, "crc": 0}
NVLINK5_NO_ERRORS = dict.fromkeys(
    ("malformed", "overrun", "receive", "integrity", "recovery_failed", "recovery"), 0
)
HEALTHY_FABRIC = Fabric(
    state="completed",
    status=0,
    clique_id=0,
    degraded_bandwidth=False,
    route_recovery=False,
    route_unhealthy=False,
    access_timeout=False,
    incorrect_configuration="none",
)
GB200_CLUSTER = "5a1c6e3f-9b02-47d8-a1e4-c02f7b6d9e31"


@pytest.fixture
def read(tmp_path: Path, nvml_library: Path) -> Read:
    """Run the reader on a description, in a process of its own."""

    def run(description: str | bytes, before: str = "", **variables: str) -> Reading:
        return read_machine(description, tmp_path, nvml_library, before, **variables)

    return run


@pytest.fixture(scope="session")
def healthy_h100(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Reading:
    """What the reader says of the healthy machine on which faults are put."""
    return read_machine(H100, tmp_path_factory.mktemp("h100"), nvml_library)


# Healthy machines


@dataclass(frozen=True)
class Expected:
    """What differs between the healthy machines."""

    name: str
    count: int
    mib: int
    capability: str
    watts: float
    mhz: tuple[int, int]  # SM and memory, at most
    pcie: tuple[int, int]  # generation now, at most
    links: tuple[int, str, float] | None  # count, version, GB/s
    margin: float
    mig: bool | None
    fabric: Fabric | None
    datacentre: bool = True


# fmt: off
EXPECTED = {
    "a100x8": Expected("NVIDIA A100-SXM4-80GB", 8, 81920, "8.0", 400, (1410, 1593), (4, 4),
                       (12, "3.0", 25.0), 59, False, None),
    "h100x8": Expected("NVIDIA H100 80GB HBM3", 8, 81559, "9.0", 700, (1980, 2619), (1, 5),
                       (18, "4.0", 26.562), 56, False, HEALTHY_FABRIC),
    "h200x8": Expected("NVIDIA H200", 8, 143771, "9.0", 700, (1980, 3201), (1, 5),
                       (18, "4.0", 26.562), 56, False, HEALTHY_FABRIC),
    "b200x8": Expected("NVIDIA B200", 8, 183359, "10.0", 1000, (1965, 3996), (1, 5),
                       (18, "5.0", 53.125), 56, False, HEALTHY_FABRIC),
    "gb200x4": Expected("NVIDIA GB200", 4, 189471, "10.0", 1200, (2062, 3996), (1, 5),
                        (18, "5.0", 53.125), 56, False,
                        replace(HEALTHY_FABRIC, cluster_uuid=GB200_CLUSTER)),
    "l40sx8": Expected("NVIDIA L40S", 8, 46068, "8.9", 350, (2520, 9001), (1, 4),
                       None, 56, None, None),
    "rtx3090x2": Expected("NVIDIA GeForce RTX 3090", 2, 24576, "8.6", 350, (2100, 9751), (1, 4),
                          (4, "3.1", 14.062), 59, None, None, datacentre=False),
    "rtx4090x8": Expected("NVIDIA GeForce RTX 4090", 8, 24564, "8.9", 450, (3105, 10501), (1, 4),
                          None, 56, None, None, datacentre=False),
}
# fmt: on
HGX_BUSES = ("1b", "2a", "3b", "4c", "9b", "ab", "bb", "db")


def expected_gpu(key: str, index: int) -> Gpu:
    """A healthy GPU, fact by fact."""
    e = EXPECTED[key]
    bus_id = f"0000:{HGX_BUSES[index]}:00.0"
    if key == "gb200x4":
        bus_id = ("0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0")[index]
    no_errors = NVLINK5_NO_ERRORS if e.capability == "10.0" else NO_ERRORS
    count, version, gbs = e.links or (0, "", 0.0)

    def peer(number: int) -> str | None:
        if key == "rtx3090x2":
            return ("0000:2a:00.0", "0000:1b:00.0")[index]
        return None if key == "gb200x4" else f"0000:0{5 + number % 4}:00.0"

    return Gpu(
        index=index,
        name=e.name,
        uuid=f"GPU-{index:08x}-5d3c-4a77-9f10-0123456789ab",
        bus_id=bus_id,
        serial=f"165342300{index:04d}" if e.datacentre else None,
        vbios="96.00.74.00.01",
        compute_capability=e.capability,
        memory_bytes=e.mib * MIB,
        memory_used_bytes=3 * MIB,
        ecc=Ecc(True, True, 0, 0, 0, 0, sram_threshold_exceeded=False) if e.datacentre else None,
        remapped_rows=RemappedRows(0, 0, pending=False, failed=False) if e.datacentre else None,
        retired_pages=None,
        mig_enabled=e.mig,
        compute_mode="default",
        persistence=True,
        power=Power(draw=72.5, limit=e.watts, default_limit=e.watts, max_limit=e.watts),
        clocks=Clocks(345, e.mhz[1], e.mhz[0], e.mhz[1], ("gpu_idle",)),
        temperature=31.0,
        temperature_margin=e.margin,
        recovery_action="none",
        processes=(),
        pcie=Pcie(e.pcie[0], 16, e.pcie[1], 16, e.pcie[1], 0, index // (e.count // 2)),
        nvlinks=tuple(
            NvLink(
                number,
                active=True,
                version=version,
                signalling_gbs=gbs,
                remote_type="gpu" if key == "rtx3090x2" else "switch",
                remote_bus_id=peer(number),
                errors=no_errors,
            )
            for number in range(count)
        ),
        fabric=e.fabric,
    )


def expected_pair(key: str, a: int, b: int) -> GpuPair:
    """Two healthy GPUs."""
    e = EXPECTED[key]
    access: Any = "chipset_not_supported" if key == "rtx4090x8" else "ok"
    nvlink: Any = "ok" if e.links else "not_supported"
    half = e.count // 2
    ancestor: Any = "node" if a // half == b // half else "system"
    return GpuPair(a, b, access, access, nvlink, ancestor)


@pytest.mark.parametrize("key", MACHINES)
def test_healthy_machine_is_read_fact_by_fact(read: Read, key: str) -> None:
    facts = read(machine(key)).facts
    count = EXPECTED[key].count
    assert facts.unreadable == ()
    assert facts.gpus == tuple(expected_gpu(key, index) for index in range(count))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    assert facts.pairs == tuple(expected_pair(key, a, b) for a, b in pairs)
    assert (facts.driver, facts.driver_cuda, facts.nvml) == ("580.95.05", "13.0", "13.580.95.05")
    assert facts.nvml_binding == f"nvidia-ml-py {metadata.version('nvidia-ml-py')}"
    assert facts.nvml_binding_problem is None


# Faults


def changed(gpu: Gpu, **parts: Any) -> Gpu:
    """``gpu`` with some fields replaced; a dict replaces fields of a part."""
    whole = {
        name: replace(getattr(gpu, name), **value) if isinstance(value, dict) else value
        for name, value in parts.items()
    }
    return replace(gpu, **whole)


def links_with(**values: Any) -> Callable[[Gpu], tuple[NvLink, ...]]:
    """All links of a GPU, changed."""
    return lambda gpu: tuple(replace(link, **values) for link in gpu.nvlinks or ())


DOWN: dict[str, Any] = {
    "active": False,
    "version": None,
    "signalling_gbs": None,
    "remote_type": None,
    "remote_bus_id": None,
}


def only_link(number: int, **values: Any) -> Callable[[Gpu], tuple[NvLink, ...]]:
    """One link of a GPU changed, the others kept."""
    return lambda gpu: tuple(
        replace(link, **values) if link.link == number else link for link in gpu.nvlinks or ()
    )


FAULTY_PARTS: dict[str, dict[str, Any]] = {
    "links_down": {"nvlinks": links_with(**DOWN)},
    "one_link_down": {"nvlinks": only_link(1, **DOWN)},
    "link_wrong_version": {"nvlinks": links_with(version="2.0")},
    "link_errors": {"nvlinks": only_link(3, errors={"replay": 412, "recovery": 0, "crc": 9})},
    "remap_failure": {"remapped_rows": RemappedRows(0, 8, pending=False, failed=True)},
    "remap_pending": {"remapped_rows": RemappedRows(0, 1, pending=True, failed=False)},
    "ecc_uncorrected": {"ecc": {"uncorrected_volatile": 2, "uncorrected_aggregate": 2}},
    "ecc_disabled": {"ecc": {"enabled": False, "pending": False}},
    "retired_pages_many": {"retired_pages": RetiredPages(40, 22, pending=False)},
    "odd_gpu_model": {"name": "NVIDIA H100 PCIe"},
    "less_memory": {"memory_bytes": 20 * 1024 * MIB},
    "pcie_width_8": {"pcie": {"width": 8}},
    "pcie_generation_low": {"pcie": {"max_generation": 3}},
    "pcie_replays": {"pcie": {"replays": 48211}},
    "mig_enabled": {"mig_enabled": True},
    "foreign_process": {
        "processes": (GpuProcess(4711, "python3", 12 * 2**30),),
        "memory_used_bytes": 12 * 2**30,
    },
    "power_limit_low": {"power": {"limit": 250.0}},
    "thermal_slowdown": {"clocks": {"event_reasons": ("hw_slowdown", "hw_thermal")}},
    "power_brake": {"clocks": {"event_reasons": ("hw_slowdown", "hw_power_brake")}},
    "fabric_not_started": {"fabric": Fabric("not_started", status=0, clique_id=0)},
    "fabric_degraded": {"fabric": {"degraded_bandwidth": True}},
    "exclusive_compute_mode": {"compute_mode": "exclusive_process"},
    "persistence_off": {"persistence": False},
    "recovery_action": {"recovery_action": "gpu_reset"},
}
# Those that change more than one GPU, or the reading as a whole, each with a test below.
OF_THE_WHOLE = {
    "driver_mismatch",
    "gpu_lost",
    "gpu_missing",
    "hung_call",
    "not_loaded",
    "old_driver",
    "p2p_disabled",
    "unknown_gpu",
}


def test_every_fault_has_its_test() -> None:
    assert set(FAULTY_PARTS) | OF_THE_WHOLE == set(FAULTS)


@pytest.mark.parametrize("name", FAULTY_PARTS)
def test_fault_changes_its_fact_on_its_gpu_and_nothing_else(
    read: Read, healthy_h100: Reading, name: str
) -> None:
    found = read(H100 + fault(name, gpu=5))
    before = healthy_h100.gpus[5]
    parts = {k: v(before) if callable(v) else v for k, v in FAULTY_PARTS[name].items()}
    expected = changed(before, **parts)
    assert expected != before
    assert found.gpus[5] == expected
    assert [g for g in found.gpus if g.index != 5] == [g for g in healthy_h100.gpus if g.index != 5]
    assert found.facts.unreadable == ()


def test_links_down_also_break_peer_access_over_nvlink(read: Read) -> None:
    pairs = read(H100 + fault("links_down", gpu=2)).facts.pairs
    assert pairs is not None
    broken = {pair.label for pair in pairs if pair.nvlink == "not_supported"}
    assert broken == {pair.label for pair in pairs if 2 in (pair.a, pair.b)}
    assert len(broken) == 7


def test_disabled_peer_access_is_one_pair_s(read: Read, healthy_h100: Reading) -> None:
    pairs = read(H100 + fault("p2p_disabled", gpu=2)).facts.pairs
    assert pairs is not None
    assert healthy_h100.facts.pairs is not None
    (odd,) = set(pairs) - set(healthy_h100.facts.pairs)
    assert odd == GpuPair(0, 2, "disabled_by_regkey", "disabled_by_regkey", "ok", "node")


def test_missing_gpu(read: Read, healthy_h100: Reading) -> None:
    found = read(H100 + fault("gpu_missing"))
    assert found.gpus == healthy_h100.gpus[:7]
    assert len(found.facts.pairs or ()) == 21


def test_unknown_gpu_and_old_driver_are_named(read: Read) -> None:
    found = read(H100 + fault("unknown_gpu") + fault("old_driver"))
    assert {gpu.name for gpu in found.gpus} == {"NVIDIA X9000"}
    assert (found.facts.driver, found.facts.driver_cuda) == ("418.87.00", "10.1")


@pytest.mark.parametrize(
    ("description", "code", "next_step"),
    [
        (H100 + fault("driver_mismatch"), 18, "reboot or reload the driver"),
        (H100 + fault("not_loaded"), 9, "modprobe nvidia"),
        (H100 + "error.nvmlInit_v2 999\n", 999, "look for Xid"),
        (H100 + "error.nvmlDeviceGetCount_v2 4\n", 4, "run as a user that may"),
        (H100 + "error.nvmlDeviceGetCount_v2 15\n", 15, "power-cycle the node"),
    ],
)
def test_nvml_that_refuses_is_unreadable_with_a_next_step(
    read: Read, description: str, code: int, next_step: str
) -> None:
    found = read(description)
    assert found.facts.gpus is None
    assert found.facts.pairs is None
    assert [u.subject for u in found.facts.unreadable] == ["nvml"]
    assert f"NVML error {code}" in found.reason("nvml")
    assert next_step in found.reason("nvml")


def test_no_gpu_is_an_answer(read: Read) -> None:
    facts = read("driver 580.95.05\ngpus 0\n").facts
    assert (facts.gpus, facts.pairs, facts.unreadable) == ((), (), ())
    assert facts.driver == "580.95.05"


def test_absent_library_is_unreadable(read: Read, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    found = read(H100, LD_LIBRARY_PATH=str(tmp_path))
    assert found.facts.gpus is None
    assert "NVML error 12" in found.reason("nvml")
    assert "install the NVIDIA driver" in found.reason("nvml")
    assert found.facts.nvml_binding is not None


# GPUs that are lost or cannot be opened


def test_lost_gpu_is_named_and_left_out_of_the_pairs(read: Read, healthy_h100: Reading) -> None:
    found = read(H100 + fault("gpu_lost", gpu=2))
    lost = found.gpus[2].lost
    assert lost is not None
    assert "NVML error 15" in lost
    assert "Xid 79" in lost
    assert found.gpus[2] == Gpu(2, lost=lost)
    assert found.gpus[:2] + found.gpus[3:] == healthy_h100.gpus[:2] + healthy_h100.gpus[3:]
    assert {n for pair in found.facts.pairs or () for n in (pair.a, pair.b)} == {
        0,
        1,
        3,
        4,
        5,
        6,
        7,
    }
    calls = [line for line in found.progress if line.startswith("nvml: GPU2 ")]
    assert len(calls) == 2  # the handle, and the call that failed


def test_what_was_read_before_the_gpu_was_lost_is_kept(read: Read) -> None:
    gpu = read(H100 + "gpu.2.error.nvmlDeviceGetNvLinkVersion 15\n").gpus[2]
    assert gpu.lost is not None
    assert gpu.bus_id == "0000:3b:00.0"
    assert gpu.memory_bytes == 81559 * MIB
    assert gpu.nvlinks is None
    assert gpu.fabric is None


def test_gpu_lost_while_pairs_are_read_leaves_them_unknown(read: Read) -> None:
    found = read(H100 + "gpu.2.error.nvmlDeviceGetTopologyCommonAncestor 15\n")
    (pair,) = [pair for pair in found.facts.pairs or () if (pair.a, pair.b) == (2, 3)]
    assert pair == GpuPair(2, 3)
    assert "NVML error 15" in found.reason("GPU2-GPU3")


@pytest.mark.parametrize(("code", "lost"), [(15, True), (999, True), (8, True), (4, False)])
def test_gpu_without_a_handle(read: Read, code: int, lost: bool) -> None:
    found = read(H100 + f"gpu.2.error.nvmlDeviceGetHandleByIndex_v2 {code}\n")
    reason = found.gpus[2].lost if lost else found.reason("GPU2 handle")
    assert f"NVML error {code}" in str(reason)
    assert found.gpus[2] == Gpu(2, lost=reason if lost else None)
    assert len(found.gpus) == 8


# Calls that hang


def test_last_line_of_progress_names_the_call_that_hangs(
    tmp_path: Path, nvml_library: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", READ.format(before="")],
        env=environment_of(H100 + fault("hung_call", gpu=3), tmp_path, nvml_library),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        end = threading.Timer(DEADLINE_S, process.kill)
        end.start()
        try:
            assert process.stderr is not None
            said = iter(process.stderr.readline, "")
            assert "nvml: GPU3 nvmlDeviceGetTemperature\n" in said
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        finally:
            end.cancel()
            process.kill()
        assert list(said) == []


def test_every_call_is_announced(read: Read) -> None:
    progress = read(H100).progress
    assert progress[0] == "nvml: nvmlInit"
    assert progress[-1] == "nvml: nvmlShutdown"
    assert (
        progress.count("nvml: GPU7 nvmlDeviceGetNvLinkState") == 19
    )  # until there is no such link
    assert "nvml: GPU2-GPU5 nvmlDeviceGetP2PStatus" in progress
    assert all(line.startswith("nvml: ") for line in progress)


def test_eight_gpus_are_read_in_well_under_a_second(read: Read) -> None:
    before = "import atexit\natexit.register(lambda: print(time.process_time(), file=sys.stderr))"
    seconds = float(read(H100, before).progress[-1])
    assert seconds < 1.0  # of the processor, the start of Python included


# Older drivers and bindings


def test_driver_before_fabric_structure_3(read: Read, healthy_h100: Reading) -> None:
    assert read(H100 + "fabric_struct 2\n").gpus == healthy_h100.gpus


def test_driver_that_only_has_the_first_fabric_call(read: Read, healthy_h100: Reading) -> None:
    found = read(H100 + "error.nvmlDeviceGetGpuFabricInfoV 13\n")
    assert found.gpus[0].fabric == Fabric("completed", status=0, clique_id=0)
    assert found.facts.unreadable == ()


@pytest.mark.parametrize(
    "overlay",
    [
        "error.nvmlDeviceGetCurrentClocksEventReasons 13\n",
        "error.nvmlDeviceGetMemoryInfo_v2 13\ngpu.*.memory.used 3145728\n",
        "gpu.*.error.field.164 2\n",
        NO_ERROR_FIELDS
        + "gpu.*.link.*.counter.replay 0\ngpu.*.link.*.counter.recovery 0\n"
        + "gpu.*.link.*.counter.crc 0\ngpu.*.link.*.counter.crc_data 0\n",
    ],
    ids=["throttle-reasons", "memory-v1", "common-speed", "error-counters"],
)
def test_older_call_gives_the_same_facts(read: Read, healthy_h100: Reading, overlay: str) -> None:
    found = read(H100 + overlay)
    assert found.gpus == healthy_h100.gpus
    assert found.facts.unreadable == ()


def test_flits_and_data_add_up_to_crc_errors(read: Read) -> None:
    overlay = NO_ERROR_FIELDS + "gpu.0.link.2.counter.crc 3\ngpu.0.link.2.counter.crc_data 4\n"
    links = read(H100 + overlay).gpus[0].nvlinks
    assert links is not None
    assert [link.errors for link in links[:3]] == [{}, {}, {"crc": 7}]


@pytest.mark.parametrize("code", [13, 25])
def test_function_the_driver_lacks_is_said_once_and_blames_no_gpu(read: Read, code: int) -> None:
    call = "nvmlDeviceGetSramEccErrorStatus"
    found = read(H100 + f"error.{call} {code}\n")
    assert [gpu.ecc.sram_threshold_exceeded for gpu in found.gpus if gpu.ecc] == [None] * 8
    assert [problem.subject for problem in found.facts.unreadable] == [call]
    assert f"NVML error {code}" in found.reason(call)
    assert "the driver is too old for this" in found.reason(call)


def test_function_that_is_deprecated_is_not_there(read: Read) -> None:
    found = read(machine("a100x8") + "error.nvmlDeviceGetTemperatureThreshold 26\n")
    assert found.gpus[0].temperature_margin is None
    assert found.facts.unreadable == ()


def test_function_the_binding_lacks_is_a_fact(read: Read) -> None:
    before = "import pynvml; del pynvml.nvmlDeviceGetMigMode, pynvml.c_nvmlGpuFabricInfo_v3_t"
    found = read(H100, before)
    assert found.gpus[0].mig_enabled is None
    assert found.gpus[0].fabric == HEALTHY_FABRIC
    assert [problem.subject for problem in found.facts.unreadable] == ["nvmlDeviceGetMigMode"]
    assert "pip install --upgrade nvidia-ml-py" in found.reason("nvmlDeviceGetMigMode")


def test_answer_of_an_unknown_shape_costs_its_part_alone(read: Read, healthy_h100: Reading) -> None:
    before = (
        "import pynvml\n"
        "rows = iter([(0, 0, 0, 0)] * 2 + [(1, 2)] + [(0, 0, 0, 0)] * 5)\n"
        "pynvml.nvmlDeviceGetRemappedRows = lambda handle: next(rows)\n"
    )
    found = read(H100, before)
    assert found.gpus[2] == replace(healthy_h100.gpus[2], remapped_rows=None)
    assert found.gpus[3] == healthy_h100.gpus[3]
    assert "not understood (ValueError" in found.reason("GPU2 remapped rows")


def test_binding_with_a_wrong_fabric_structure_is_not_believed(read: Read) -> None:
    # nvidia-ml-py 12.535: 80 bytes for the UUID, so state and status come from elsewhere.
    before = (
        "import ctypes, pynvml as n\n"
        "del n.c_nvmlGpuFabricInfo_v3_t, n.c_nvmlGpuFabricInfo_v2_t\n"
        "class Wrong(ctypes.Structure):\n"
        "    _fields_ = [('clusterUuid', ctypes.c_char * 80), ('status', ctypes.c_uint),\n"
        "                ('cliqueId', ctypes.c_uint), ('state', ctypes.c_uint)]\n"
        "n.c_nvmlGpuFabricInfo_t = Wrong\n"
    )
    found = read(H100, before)
    assert found.gpus[0].fabric is None
    assert "--upgrade nvidia-ml-py" in found.reason("nvmlDeviceGetGpuFabricInfoV")


def test_old_pynvml_that_hides_nvidia_s_is_not_used(
    read: Read, healthy_h100: Reading, tmp_path: Path
) -> None:
    site = old_pynvml(tmp_path, "raise SystemError('the old copy was imported')")
    path = ":".join([str(site), *sys.path])
    found = read(H100, PYTHONPATH=path)
    assert found.gpus == healthy_h100.gpus
    problem = found.facts.nvml_binding_problem
    assert problem is not None
    assert f"pynvml 11.5.0 ({site / 'pynvml/__init__.py'}) hides" in problem
    assert "pip uninstall pynvml" in problem
    refused = read(H100 + fault("not_loaded"), PYTHONPATH=path)
    assert refused.reason("nvml").endswith(f"modprobe nvidia, or install it. Besides, {problem}.")


def old_pynvml(folder: Path, code: str = "") -> Path:
    """A folder to import from that holds an old release of the other package."""
    site = folder / "site"
    (site / "pynvml").mkdir(parents=True)
    (site / "pynvml/__init__.py").write_text(code)
    (site / "pynvml-11.5.0.dist-info").mkdir()
    (site / "pynvml-11.5.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: pynvml\nVersion: 11.5.0\n"
    )
    return site


def test_binding_without_nvidia_s_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(sys, "path", [str(old_pynvml(tmp_path))])
    name, problem, file = find_binding()
    assert (name, file) == (None, None)
    assert problem is not None
    assert "nvidia-ml-py is not installed; pip uninstall pynvml" in problem
    monkeypatch.setattr(sys, "path", [])
    assert find_binding() == (None, None, None)


def test_without_any_binding_the_reason_says_what_to_install(read: Read) -> None:
    before = (
        "from importlib import metadata, util\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.distribution = missing\n"
        "util.find_spec = lambda name: None\n"
    )
    found = read(H100, before)
    assert found.facts.gpus is None
    assert found.facts.nvml_binding is None
    assert found.reason("nvml") == (
        "NVML cannot be asked: no Python module pynvml; pip install nvidia-ml-py."
    )


# Answers that are not what they seem


def test_one_field_that_fails_does_not_hide_the_others(read: Read) -> None:
    found = read(H100 + "gpu.2.error.field.163 999\ngpu.2.link.4.replay 3\n")
    links = found.gpus[2].nvlinks
    assert links is not None
    assert links[4].errors == {"replay": 3, "recovery": 0}
    assert "field 163: NVML error 999" in found.reason("GPU2 nvlink errors")


def test_counters_wider_than_32_bits(read: Read) -> None:
    links = read(H100 + "gpu.0.link.0.crc 5000000000\n").gpus[0].nvlinks
    assert links is not None
    assert links[0].errors["crc"] == 5_000_000_000


def test_links_whose_state_fails_are_unknown_not_missing(read: Read) -> None:
    found = read(H100 + "gpu.2.error.nvmlDeviceGetNvLinkState 999\n")
    links = found.gpus[2].nvlinks
    assert links is None or all(link.active is None for link in links)
    assert found.gpus[2].active_links is None
    assert "nvmlDeviceGetNvLinkState: NVML error 999" in found.reason("GPU2 nvlink")


def test_links_are_counted_until_there_is_no_such_link(read: Read) -> None:
    found = read(H100 + "gpu.*.links 36\n")
    assert found.gpus[0].active_links == 36


def test_empty_remote_address_of_a_virtual_machine_is_unknown(read: Read) -> None:
    overlay = "".join(f"gpu.*.link.{number}.remote_bus_id \n" for number in range(18))
    found = read(H100 + overlay)
    links = found.gpus[0].nvlinks
    assert links is not None
    assert {link.remote_bus_id for link in links} == {None}
    assert {link.remote_type for link in links} == {"switch"}
    assert found.facts.unreadable == ()


@pytest.mark.parametrize(
    ("mask", "flag"),
    [
        ("0x1a9", "degraded_bandwidth"),
        ("0x1a6", "route_recovery"),
        ("0x19a", "route_unhealthy"),
        ("0x16a", "access_timeout"),
    ],
)
def test_flags_of_the_fabric_s_health_mask(read: Read, mask: str, flag: str) -> None:
    found = read(H100 + f"gpu.0.fabric 3 0 0 {mask}\n").gpus[0].fabric
    raised: dict[str, Any] = {flag: True}
    assert found == replace(HEALTHY_FABRIC, **raised)


def test_fabric_that_lacks_links_or_reports_no_health(read: Read) -> None:
    found = read(H100 + "gpu.0.fabric 3 23 7 0x5aa\ngpu.1.fabric 2 0 0 0x0\n").gpus
    assert found[0].fabric == replace(
        HEALTHY_FABRIC, status=23, clique_id=7, incorrect_configuration="insufficient NVLinks"
    )
    assert found[1].fabric == Fabric("in_progress", status=0, clique_id=0)


def test_a_name_that_is_not_utf_8_is_a_fact(read: Read) -> None:
    found = read(H100.encode() + b"gpu.2.name NVIDIA \xff\xfe\n")
    assert found.gpus[2].name is None
    assert "UnicodeDecodeError" in found.reason("GPU2 name")
    assert found.gpus[2].bus_id == "0000:3b:00.0"


def test_control_characters_and_length_of_names_are_tamed(read: Read) -> None:
    found = read(H100 + "gpu.2.name NVIDIA\x1b[31m <b>\ngpu.3.vbios \n")
    assert found.gpus[2].name == "NVIDIA\ufffd[31m <b>"
    assert found.gpus[3].vbios is None


def test_unknown_enums_are_not_guessed(read: Read) -> None:
    found = read(
        H100 + "gpu.0.compute_mode 9\ngpu.0.recovery_action 42\ngpu.0.clock_events 0x801\n"
        "gpu.0.link.*.version 99\ngpu.0.link.*.remote_type 255\npair.0.1.p2p.read 77\n"
        "pair.0.1.ancestor 11\n"
    )
    gpu = found.gpus[0]
    assert gpu.nvlinks is not None
    assert gpu.compute_mode is None
    assert gpu.recovery_action == "action_42"
    assert gpu.clocks.event_reasons == ("gpu_idle", "bit_0x800")
    assert {(link.version, link.remote_type) for link in gpu.nvlinks} == {(None, "unknown")}
    assert found.facts.pairs is not None
    assert (found.facts.pairs[0].read, found.facts.pairs[0].ancestor) == ("unknown", None)


def test_errors_of_one_part_are_kept_with_the_part_s_name(read: Read) -> None:
    found = read(H100 + "gpu.3.error.nvmlDeviceGetEccMode 999\n")
    assert found.gpus[3].ecc is None
    assert found.reason("GPU3 ecc") == (
        "nvmlDeviceGetEccMode: NVML error 999 (Unknown Error): "
        "look for Xid and NVRM lines in the kernel log."
    )
    assert found.gpus[2].ecc is not None


def test_process_of_another_user_has_no_name(read: Read) -> None:
    found = read(H100 + "gpu.2.process.0 4711 1024\nerror.nvmlSystemGetProcessName 4\n")
    assert found.gpus[2].processes == (GpuProcess(4711, None, 1024),)
    assert found.facts.unreadable == ()
