"""The stand-in for NVIDIA's library, asked through NVIDIA's binding."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.testing import fake_nvml
from pytest_gpucluster.testing.machines import FAULTS, MACHINES, fault, machine
from tests.unit.nvml_reading import ask_pynvml, environment_of

Ask = Callable[[str, str], Any]
NOT_SUPPORTED = {"error": 3}


@pytest.fixture
def ask(tmp_path: Path, nvml_library: Path) -> Ask:
    """Evaluate an expression over the binding, on the machine described."""
    return lambda description, expression: ask_pynvml(
        expression, description, tmp_path, nvml_library
    )


def test_wildcards_stand_for_one_index_and_later_lines_win(ask: Ask) -> None:
    description = (
        "gpus 3\ngpu.*.name A\ngpu.1.name B\ngpu.2.name C\n"
        "gpu.*.links 3\ngpu.*.link.*.active 1\ngpu.1.link.*.active 0\ngpu.1.link.2.active 1\n"
    )
    names = ask(description, "[n.nvmlDeviceGetName(h(i)) for i in range(3)]")
    assert names == ["A", "B", "C"]
    assert ask(description + "gpu.*.name D\n", "n.nvmlDeviceGetName(h(1))") == "D"
    links = ask(description, "[n.nvmlDeviceGetNvLinkState(h(1), link) for link in range(3)]")
    assert links == [0, 0, 1]


def test_a_dash_takes_a_key_away_and_comments_say_nothing(ask: Ask) -> None:
    assert ask("gpus 1\ngpu.0.name A\n# gpu.0.name B\n", "n.nvmlDeviceGetName(h(0))") == "A"
    assert ask("gpus 1\ngpu.0.name A\ngpu.0.name -\n", "n.nvmlDeviceGetName(h(0))") == NOT_SUPPORTED


@pytest.mark.parametrize(
    "call",
    [
        "n.nvmlDeviceGetSerial(h(0))",
        "n.nvmlDeviceGetEccMode(h(0))",
        "n.nvmlDeviceGetTotalEccErrors(h(0), 1, 0)",
        "n.nvmlDeviceGetRemappedRows(h(0))",
        "n.nvmlDeviceGetRetiredPages(h(0), 0)",
        "n.nvmlDeviceGetMigMode(h(0))",
        "n.nvmlDeviceGetMemoryInfo(h(0))",
        "n.nvmlDeviceGetNvLinkState(h(0), 0)",
        "n.nvmlDeviceGetMarginTemperature(h(0))",
        "n.nvmlDeviceGetTemperatureThreshold(h(0), 1)",
        "n.nvmlDeviceGetMemoryAffinity(h(0), 4, 0)[0]",
        "n.nvmlDeviceGetNumaNodeId(h(0))",
        "n.nvmlDeviceGetP2PStatus(h(0), h(1), 0)",
        "n.nvmlDeviceGetTopologyCommonAncestor(h(0), h(1))",
        "n.nvmlDeviceGetGpuFabricInfoV(h(0), ctypes.byref(n.c_nvmlGpuFabricInfo_v3_t()))",
        "n.nvmlDeviceGetSramEccErrorStatus(h(0), ctypes.byref(n.c_nvmlEccSramErrorStatus_v1_t()))",
        "n.nvmlDeviceGetCurrentClocksEventReasons(h(0))",
        "n.nvmlSystemGetDriverVersion()",
    ],
)
def test_what_is_not_described_is_not_supported(ask: Ask, call: str) -> None:
    assert ask("gpus 2\n", call) == NOT_SUPPORTED


def test_errors_belong_to_a_call_a_gpu_or_both(ask: Ask) -> None:
    description = (
        machine("h100x8")
        + "gpu.3.error.nvmlDeviceGetName 15\nerror.nvmlDeviceGetSerial 4\n"
        + "gpu.4.error.* 999\ngpu.4.error.nvmlDeviceGetHandleByIndex_v2 -\n"
    )
    assert ask(description, "n.nvmlDeviceGetName(h(3))") == {"error": 15}
    assert ask(description, "n.nvmlDeviceGetName(h(2))") == "NVIDIA H100 80GB HBM3"
    assert ask(description, "n.nvmlDeviceGetSerial(h(0))") == {"error": 4}
    assert ask(description, "n.nvmlDeviceGetUUID(h(4))") == {"error": 999}
    assert ask(description, "n.nvmlDeviceGetP2PStatus(h(0), h(4), 0)") == {"error": 999}


def test_error_strings_are_nvml_s(ask: Ask) -> None:
    strings = "[n.nvmlErrorString(code) for code in (9, 15, 18)]"
    expected = ["Driver Not Loaded", "GPU is lost", "Driver/library version mismatch"]
    assert ask("gpus 0\n", strings) == expected


def test_an_index_beyond_the_last_gpu_is_an_invalid_argument(ask: Ask) -> None:
    assert ask("gpus 2\n", "n.nvmlDeviceGetCount()") == 2
    assert ask("gpus 2\n", "bool(h(2))") == {"error": 2}
    links = "gpus 1\ngpu.0.links 4\ngpu.0.link.*.active 1\n"
    assert ask(links, "n.nvmlDeviceGetNvLinkState(h(0), 4)") == {"error": 2}


def test_nothing_answers_before_init(ask: Ask) -> None:
    description = machine("h100x8")
    assert ask(description, "[n.nvmlShutdown(), n.nvmlDeviceGetCount()]") == {"error": 1}
    assert ask(description, "[g := h(0), n.nvmlShutdown(), n.nvmlDeviceGetName(g)]") == {"error": 1}


def test_no_description_is_a_driver_that_is_not_loaded(tmp_path: Path, nvml_library: Path) -> None:
    environment = environment_of("", tmp_path, nvml_library)
    missing = str(tmp_path / "missing.txt")
    done = subprocess.run(
        [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"],
        env={**environment, "FAKE_NVML": missing},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "NVMLError_DriverNotLoaded" in done.stderr
    assert f"no description at FAKE_NVML={missing}" in done.stderr


def test_memory_of_both_versions(ask: Ask) -> None:
    first = "[(m := n.nvmlDeviceGetMemoryInfo(h(0))).total, m.used, m.free]"
    call = "n.nvmlDeviceGetMemoryInfo(h(0), n.nvmlMemory_v2)"
    second = f"[(m := {call}).total, m.used, m.reserved, m.free]"
    mib = 2**20
    assert ask(machine("h100x8"), first) == [81559 * mib, 515 * mib, 81044 * mib]
    assert ask(machine("h100x8"), second) == [81559 * mib, 3 * mib, 512 * mib, 81044 * mib]
    wrong = "n.nvmlDeviceGetMemoryInfo(h(0), 0x1000028)"
    assert ask(machine("h100x8"), wrong) == {"error": 25}


def test_every_field_value_has_its_own_return_code(ask: Ask) -> None:
    description = (
        machine("h100x8")
        + "gpu.0.link.5.crc 5000000000\ngpu.*.field.194 -2\ngpu.0.error.field.162 999\n"
    )
    values = (
        "[(v.nvmlReturn, v.value.ullVal) for v in n.nvmlDeviceGetFieldValues(h(0), "
        "[91, (165, 5), (164, 5), 90, (163, 5), (163, 6), (161, 18), 4711, 230, (162, 0)])]"
    )
    found = ask(description, values)
    assert found[:6] == [[0, 18], [0, 1], [0, 26562], [0, 26562], [0, 5_000_000_000], [0, 0]]
    assert [code for code, _ in found[7:]] == [3, 0, 999]


@pytest.mark.parametrize(("version", "newest", "expected"), [(3, 3, 0), (3, 2, 25), (2, 2, 0)])
def test_fabric_structures_depend_on_the_driver(
    ask: Ask, version: int, newest: int, expected: int
) -> None:
    call = (
        f"[i := n.c_nvmlGpuFabricInfo_v{version}_t(), "
        "n.nvmlDeviceGetGpuFabricInfoV(h(0), ctypes.byref(i)), "
        "i.state, i.status, i.cliqueId, i.healthMask, bytes(i.clusterUuid).hex()][1:]"
    )
    found = ask(machine("gb200x4") + f"fabric_struct {newest}\n", call)
    healthy = [0, 3, 0, 0, 0x1AA, "5a1c6e3f9b0247d8a1e4c02f7b6d9e31"]
    assert found == (healthy if expected == 0 else {"error": expected})


def test_processes_and_retired_pages_fill_arrays(ask: Ask) -> None:
    description = machine("h100x8") + fault("foreign_process") + fault("retired_pages_many")
    description += "gpu.2.process.1 4712 1024\n"
    call = "[(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h({}))]"
    assert ask(description, call.format(2)) == [[4711, 12 * 2**30], [4712, 1024]]
    assert ask(description, call.format(1)) == []
    assert ask(description, "n.nvmlSystemGetProcessName(4711)") == "python3"
    assert ask(description, "len(n.nvmlDeviceGetRetiredPages(h(2), 0))") == 40


def test_a_call_that_hangs_never_returns(tmp_path: Path, nvml_library: Path) -> None:
    environment = environment_of(
        machine("h100x8") + "gpu.2.hang.nvmlDeviceGetNvLinkState 1\n", tmp_path, nvml_library
    )
    program = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex\n"
        "print(n.nvmlDeviceGetNvLinkState(h(1), 0), n.nvmlDeviceGetName(h(2)), flush=True)\n"
        "n.nvmlDeviceGetNvLinkState(h(2), 0)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1 NVIDIA H100 80GB HBM3\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
        finally:
            process.kill()


def test_unknown_machines_and_faults_are_named() -> None:
    with pytest.raises(ValueError, match=r"h100x9: unknown machine. Choose from a100x8, h100x8"):
        machine("h100x9")
    with pytest.raises(ValueError, match=r"link_down: unknown fault. Choose from links_down"):
        fault("link_down")


@pytest.mark.parametrize("key", MACHINES)
def test_descriptions_are_lines_that_faults_can_follow(key: str) -> None:
    for text in (machine(key), *(fault(name, gpu=1) for name in FAULTS)):
        assert text.endswith("\n")
        assert all(len(line.split(" ", 1)) == 2 for line in text.splitlines())
        assert "{" not in text


def test_a_built_library_is_used_again_until_its_sources_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fake_nvml.build(tmp_path)
    library = first / fake_nvml.LIBRARY
    built = library.stat().st_mtime_ns
    assert fake_nvml.build(tmp_path) == first
    assert library.stat().st_mtime_ns == built
    sources = tmp_path / "sources"
    shutil.copytree(fake_nvml.SOURCES, sources)
    changed_source = (sources / "nvml.c").read_text() + "/* changed */\n"
    (sources / "nvml.c").write_text(changed_source)
    monkeypatch.setattr(fake_nvml, "SOURCES", sources)
    changed = fake_nvml.build(tmp_path)
    assert changed != first
    assert (changed / fake_nvml.LIBRARY).exists()


def test_builds_at_the_same_time_give_one_whole_library(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: fake_nvml.build(tmp_path), range(3)))
    (folder,) = folders
    assert [path.name for path in folder.iterdir()] == [fake_nvml.LIBRARY]
    assert ask_pynvml("n.nvmlDeviceGetCount()", "gpus 3\n", tmp_path, folder) == 3


def test_without_a_compiler_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fake_nvml.NoCompiler, match=r"needs a C compiler .* install one"):
        fake_nvml.build(tmp_path)
    assert list(tmp_path.iterdir()) == []
