"""The NVML reader against the fake library: NVIDIA's own binding in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pytest_gpucluster.facts.model import Gpu, from_json
from pytest_gpucluster.facts.nvml import NvmlFacts
from pytest_gpucluster.testing import fake_nvml
from pytest_gpucluster.testing.machines import environment, fault, machine

Reader = Callable[..., NvmlFacts]
COMMAND = [sys.executable, "-m", "pytest_gpucluster.facts.reader", "nvml"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shared = tmp_path_factory.getbasetemp().parent / "fake-nvml-unit"
    shared.mkdir(exist_ok=True)
    with FileLock(shared / "build.lock"):
        return fake_nvml.build(shared)


@pytest.fixture
def read(tmp_path: Path, library: Path) -> Reader:
    def run(key: str, overlay: str = "", **extra: str) -> NvmlFacts:
        description = tmp_path / "machine.txt"
        description.write_text(f"{machine(key)}\n{overlay}\n")
        variables = {**os.environ, **environment(description, library), **extra}
        done = subprocess.run(COMMAND, env=variables, capture_output=True, check=True)
        return from_json(done.stdout, NvmlFacts)

    return run


def gpu_of(facts: NvmlFacts, index: int = 2) -> Gpu:
    assert facts.gpus is not None
    return facts.gpus[index]


@pytest.mark.parametrize(
    ("key", "count", "name", "links", "version", "remote"),
    [
        ("a100x8", 8, "NVIDIA A100-SXM4-80GB", 12, "3", "switch"),
        ("h100x8", 8, "NVIDIA H100 80GB HBM3", 18, "4.0", "switch"),
        ("h200x8", 8, "NVIDIA H200", 18, "4.0", "switch"),
        ("b200x8", 8, "NVIDIA B200", 18, "5.0", "switch"),
        ("gb200x4", 4, "NVIDIA GB200", 18, "5.0", "switch"),
        ("l40sx8", 8, "NVIDIA L40S", 0, None, None),
        ("rtx3090x2", 2, "NVIDIA GeForce RTX 3090", 4, "3", "gpu"),
        ("rtx4090x8", 8, "NVIDIA GeForce RTX 4090", 0, None, None),
    ],
)
def test_a_healthy_machine_is_read_whole(
    read: Reader,
    key: str,
    count: int,
    name: str,
    links: int,
    version: str | None,
    remote: str | None,
) -> None:
    facts = read(key)
    assert facts.unreadable == ()
    assert facts.driver == "580.95.05"
    assert facts.driver_cuda == "13.0"
    assert facts.gpus is not None
    assert facts.pairs is not None
    assert len(facts.gpus) == count
    assert len(facts.pairs) == count * (count - 1) // 2
    for gpu in facts.gpus:
        assert gpu.name == name
        assert gpu.lost is None
        assert gpu.nvlinks is not None
        assert len(gpu.nvlinks) == links
        assert gpu.active_links == links
        for link in gpu.nvlinks:
            assert str(link.version).startswith(str(version))
            assert link.remote_type == remote
            assert link.errors == {"replay": 0, "recovery": 0, "crc": 0}
    assert len({gpu.uuid for gpu in facts.gpus}) == count


def test_values_have_their_units(read: Reader) -> None:
    gpu = gpu_of(read("h100x8"))
    assert gpu.bus_id == "0000:3b:00.0"
    assert gpu.memory_bytes == 81559 * 2**20
    assert (gpu.power.limit, gpu.power.default_limit) == (700.0, 700.0)
    assert (gpu.pcie.generation, gpu.pcie.max_generation, gpu.pcie.width) == (1, 5, 16)
    assert gpu.compute_capability == "9.0"
    assert gpu.clocks.event_reasons == ("gpu_idle",)
    assert gpu.nvlinks is not None
    assert gpu.nvlinks[0].signalling_gbs == pytest.approx(26.562)
    assert gpu.fabric is not None
    assert gpu.fabric.state == "completed"
    assert gpu.fabric.degraded_bandwidth is False
    assert gpu.fabric.incorrect_configuration == "none"


def test_what_a_part_lacks_is_none_and_no_problem(read: Reader) -> None:
    facts = read("rtx4090x8")
    gpu = gpu_of(facts)
    assert (gpu.ecc, gpu.mig_enabled, gpu.fabric, gpu.retired_pages) == (None, None, None, None)
    assert gpu.nvlinks == ()
    assert facts.pairs is not None
    assert facts.pairs[0].read == "chipset_not_supported"
    assert facts.unreadable == ()


CHANGES: dict[str, Callable[[Gpu], Any]] = {
    "ecc_uncorrected": lambda g: g.ecc is not None and g.ecc.uncorrected_volatile == 2,
    "ecc_disabled": lambda g: g.ecc is not None and g.ecc.enabled is False,
    "exclusive_compute_mode": lambda g: g.compute_mode == "exclusive_process",
    "fabric_degraded": lambda g: g.fabric is not None and g.fabric.degraded_bandwidth is True,
    "fabric_not_started": lambda g: g.fabric is not None and g.fabric.state == "not_started",
    "foreign_process": lambda g: (
        [(p.pid, p.name) for p in g.processes or ()] == [(4711, "python3")]
    ),
    "less_memory": lambda g: g.memory_bytes == 40 * 2**30,
    "link_errors": lambda g: (
        (g.nvlinks or ())[3].errors == {"replay": 412, "recovery": 0, "crc": 9}
    ),
    "link_wrong_version": lambda g: (g.nvlinks or ())[0].version == "3.0",
    "links_down": lambda g: g.active_links == 0,
    "mig_enabled": lambda g: g.mig_enabled is True,
    "odd_gpu_model": lambda g: g.name == "NVIDIA H100 PCIe",
    "one_link_down": lambda g: g.active_links == 17,
    "pcie_generation_low": lambda g: g.pcie.max_generation == 3,
    "pcie_replays": lambda g: g.pcie.replays == 48211,
    "pcie_width_8": lambda g: g.pcie.width == 8,
    "persistence_off": lambda g: g.persistence is False,
    "power_brake": lambda g: "hw_power_brake" in (g.clocks.event_reasons or ()),
    "power_limit_low": lambda g: g.power.limit == 350.0,
    "recovery_action": lambda g: g.recovery_action == "gpu_reset",
    "remap_failure": lambda g: g.remapped_rows is not None and g.remapped_rows.failed,
    "remap_pending": lambda g: g.remapped_rows is not None and g.remapped_rows.pending,
    "retired_pages_many": lambda g: (
        g.retired_pages is not None
        and (g.retired_pages.single_bit, g.retired_pages.double_bit) == (40, 22)
    ),
    "thermal_slowdown": lambda g: "hw_thermal" in (g.clocks.event_reasons or ()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_fault_changes_its_fact_on_its_gpu_only(read: Reader, name: str) -> None:
    facts = read("h100x8", fault(name))
    changed = CHANGES[name]
    assert changed(gpu_of(facts, 2))
    assert not changed(gpu_of(facts, 3))


def test_a_lost_gpu_is_a_fact(read: Reader) -> None:
    facts = read("h100x8", fault("gpu_lost"))
    assert facts.gpus is not None
    assert [gpu.index for gpu in facts.gpus if gpu.lost] == [2]
    assert "15" in str(gpu_of(facts).lost)
    assert all(2 not in (pair.a, pair.b) for pair in facts.pairs or ())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("driver_mismatch", ("18", "different versions")),
        ("not_loaded", ("9", "not loaded")),
    ],
)
def test_a_driver_that_refuses_is_a_fact(read: Reader, name: str, words: tuple[str, ...]) -> None:
    facts = read("h100x8", fault(name))
    assert facts.gpus is None
    (problem,) = facts.unreadable
    assert problem.subject == "nvml"
    for word in words:
        assert word in problem.reason


def test_a_call_that_fails_oddly_is_kept_with_its_gpu(read: Reader) -> None:
    facts = read("h100x8", "gpu.3.error.nvmlDeviceGetMigMode 999")
    assert gpu_of(facts, 3).mig_enabled is None
    assert gpu_of(facts, 2).mig_enabled is False
    assert [problem.subject for problem in facts.unreadable] == ["GPU3 mig"]


def test_no_library_at_all_is_a_fact(read: Reader) -> None:
    facts = read("h100x8", LD_LIBRARY_PATH="")
    assert facts.gpus is None
    assert "libnvidia-ml.so.1" in facts.unreadable[0].reason


def test_no_gpu_is_an_answer(read: Reader) -> None:
    assert read("h100x8", "gpus 0").gpus == ()


def test_the_last_call_is_told_before_it_is_made(tmp_path: Path, library: Path) -> None:
    description = tmp_path / "machine.txt"
    description.write_text(f"{machine('h100x8')}\n{fault('hung_call')}\n")
    variables = {**os.environ, **environment(description, library)}
    with pytest.raises(subprocess.TimeoutExpired) as hung:
        subprocess.run(COMMAND, env=variables, capture_output=True, timeout=3, check=False)
    last = (hung.value.stderr or b"").splitlines()[-1]
    assert last == b"nvml: GPU2 nvmlDeviceGetTemperature"
