"""The faults, one or more for each check.

Three ways to inject one: put it on top of a healthy description of the fake NVML library
(``machine`` and ``overlay``), change saved facts (``change``), or make a CPU rank misbehave
(``fault``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_gpucluster.facts.model import KernelEvent, NetworkPort, NodeFacts
from pytest_gpucluster.testing.machines import fault

H100_BUS = "0000:3b:00.0"


@dataclass(frozen=True)
class Case:
    """One fault, what must be found, and whom it must blame.

    ``verdicts``: what the node may be called; never accepted. ``component`` is ``None`` where
    nothing is to blame, because the check has to say that it could not verify.
    """

    check: str
    name: str
    code: str | None
    component: str | None
    verdicts: tuple[str, ...] = ("rejected",)
    machine: str = "h100x8"
    overlay: str = ""
    change: Callable[[NodeFacts], NodeFacts] | None = None
    fault: str | None = None
    ranks: int = 2
    level: str = "inventory"
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    profile: str | None = None  # TOML
    torch: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.check.removeprefix('test_').replace('.py::test_', '-')}-{self.name}"


WARNS = ("accepted_with_warnings",)
UNVERIFIED = ("unverified",)
IB_PROFILE = '[network]\nports = 2\nkind = "infiniband"\nrate_gbps = 400\n'


def _software(**values: str | None) -> Callable[[NodeFacts], NodeFacts]:
    return lambda facts: replace(facts, software=replace(facts.software, **values))


def _host(**values: Any) -> Callable[[NodeFacts], NodeFacts]:
    return lambda facts: replace(facts, host=replace(facts.host, **values))


def _ports(*ports: NetworkPort) -> Callable[[NodeFacts], NodeFacts]:
    return lambda facts: replace(facts, network=ports)


def _log(*events: KernelEvent) -> Callable[[NodeFacts], NodeFacts]:
    return lambda facts: replace(facts, kernel_events=events)


def _ib(device: str, **values: Any) -> NetworkPort:
    usual: dict[str, Any] = {"kind": "infiniband", "state": "ACTIVE", "rate_gbps": 400.0}
    return NetworkPort(device, **{**usual, **values})


def _xid(code: int, text: str, bus_id: str = H100_BUS) -> KernelEvent:
    return KernelEvent("xid", text, code, bus_id, line=code)


# fmt: off
SOFTWARE = (
    Case("test_software.py::test_python", "too-old", "software.python", "node",
         change=_software(python="3.7.9")),
    Case("test_software.py::test_torch", "missing", "software.torch", "node",
         change=_software(torch=None, torch_cuda=None, torch_nccl=None)),
    Case("test_software.py::test_torch", "too-old", "software.torch", "node",
         change=_software(torch="1.9.1")),
    Case("test_software.py::test_torch_uses_cuda", "cpu-build", "software.cuda", "node",
         torch={"torch": "2.13.0+cpu", "cuda": None}),
    Case("test_software.py::test_torch_uses_cuda", "cuda-10", "software.cuda", "node",
         torch={"torch": "1.12.1", "cuda": "10.2"}),
    Case("test_software.py::test_driver", "older-than-450", "software.driver", "node",
         overlay=fault("old_driver")),
    Case("test_software.py::test_driver", "cannot-run-cuda-13", "software.driver", "node",
         overlay="driver 570.172.08"),
    Case("test_software.py::test_nccl", "missing", "software.nccl", "node",
         change=_software(torch_nccl=None, system_nccl=None)),
    Case("test_software.py::test_nccl", "two-versions", "nccl.version_mismatch", "node", WARNS,
         change=_software(system_nccl="2.18.5")),
    Case("test_software.py::test_nvml_binding", "shadowed", "software.nvml_binding", "node",
         WARNS, change=_software(nvml_binding_problem="pynvml 11.5 shadows nvidia-ml-py")),
    Case("test_software.py::test_fabric_manager_version", "differs", "fabric.manager", "node",
         change=_software(fabric_manager="550.54.15")),
)

GPUS = (
    Case("test_gpus.py::test_present", "no-library", "gpu.missing", "node",
         change=lambda facts: replace(facts, gpus=())),
    Case("test_gpus.py::test_present", "driver-not-loaded", "gpu.missing", "node",
         overlay=fault("not_loaded")),
    Case("test_gpus.py::test_present", "gpu-lost", "gpu.off_bus", "GPU2",
         overlay=fault("gpu_lost", gpu=2)),
    Case("test_gpus.py::test_readable", "unknown-error", None, None, UNVERIFIED,
         overlay="gpu.2.error.nvmlDeviceGetMigMode 999"),
    Case("test_gpus.py::test_count", "seven-of-eight", "gpu.missing", "node",
         overlay=fault("gpu_missing"), arguments=("--gpucluster-profile=hgx-h100",)),
    Case("test_gpus.py::test_count", "seven-without-profile", None, None, UNVERIFIED,
         overlay=fault("gpu_missing")),
    Case("test_gpus.py::test_model", "odd-one", "gpu.wrong_model", "GPU2",
         overlay=fault("odd_gpu_model", gpu=2)),
    Case("test_gpus.py::test_model", "not-in-catalogue", None, None, UNVERIFIED,
         overlay=fault("unknown_gpu")),
    Case("test_gpus.py::test_memory", "less", "memory.size", "GPU2",
         overlay=fault("less_memory", gpu=2)),
    Case("test_memory_errors.py::test_ecc_mode", "off", "memory.ecc_mode", "GPU2",
         overlay=fault("ecc_disabled", gpu=2)),
    Case("test_memory_errors.py::test_ecc_errors", "uncorrectable", "memory.ecc_uncorrectable",
         "GPU2", overlay=fault("ecc_uncorrected", gpu=2)),
    Case("test_memory_errors.py::test_row_remapping", "failed", "memory.row_remap_failed",
         "GPU2", overlay=fault("remap_failure", gpu=2)),
    Case("test_memory_errors.py::test_row_remapping", "pending", "memory.row_remap_pending",
         "GPU2", overlay=fault("remap_pending", gpu=2)),
    Case("test_memory_errors.py::test_retired_pages", "nearly-all", "memory.pages_retired",
         "GPU2", WARNS, overlay=fault("retired_pages_many", gpu=2)),
    Case("test_gpu_state.py::test_mig_off", "on", "mig.enabled", "GPU2", WARNS,
         overlay=fault("mig_enabled", gpu=2)),
    Case("test_gpu_state.py::test_mig_off", "on-against-profile", "mig.enabled", "GPU2",
         overlay=fault("mig_enabled", gpu=2), arguments=("--gpucluster-profile=hgx-h100",)),
    Case("test_gpu_state.py::test_idle", "foreign-process", "gpu.busy", "GPU2",
         overlay=fault("foreign_process", gpu=2)),
    Case("test_gpu_state.py::test_compute_mode", "exclusive", "gpu.compute_mode", "GPU2", WARNS,
         overlay=fault("exclusive_compute_mode", gpu=2)),
    Case("test_gpu_state.py::test_persistence", "off", "persistence.off", "GPU2", WARNS,
         overlay=fault("persistence_off", gpu=2)),
    Case("test_gpu_state.py::test_power_limit", "one-gpu-low", "power.limit_low", "GPU2",
         overlay=fault("power_limit_low", gpu=2)),
    Case("test_gpu_state.py::test_clock_events", "thermal", "clocks.thermal", "GPU2",
         overlay=fault("thermal_slowdown", gpu=2)),
    Case("test_gpu_state.py::test_clock_events", "power-brake", "clocks.power_brake", "GPU2",
         overlay=fault("power_brake", gpu=2)),
    Case("test_gpu_state.py::test_recovery_action", "reset-wanted", "gpu.recovery_needed",
         "GPU2", overlay=fault("recovery_action", gpu=2)),
)

LINKS = (
    Case("test_nvlink.py::test_links_up", "all-down", "nvlink.links_down", "GPU2",
         overlay=fault("links_down", gpu=2)),
    Case("test_nvlink.py::test_links_up", "one-down", "nvlink.links_down", "GPU2",
         overlay=fault("one_link_down", gpu=2)),
    Case("test_nvlink.py::test_links_up", "a100-all-down", "nvlink.links_down", "GPU2",
         machine="a100x8", overlay=fault("links_down", gpu=2)),
    Case("test_nvlink.py::test_link_version", "trained-down", "nvlink.version", "GPU2",
         overlay=fault("link_wrong_version", gpu=2)),
    Case("test_nvlink.py::test_link_errors", "counted", "nvlink.errors", "GPU2", WARNS,
         overlay=fault("link_errors", gpu=2)),
    Case("test_nvlink.py::test_fabric", "not-started", "fabric.not_ready", "GPU2",
         overlay=fault("fabric_not_started", gpu=2)),
    Case("test_nvlink.py::test_fabric", "degraded", "fabric.unhealthy", "GPU2",
         overlay=fault("fabric_degraded", gpu=2)),
    Case("test_pcie.py::test_width", "x8", "pcie.downgraded", "GPU2",
         overlay=fault("pcie_width_8", gpu=2)),
    Case("test_pcie.py::test_generation", "low", "pcie.downgraded", "GPU2",
         overlay=fault("pcie_generation_low", gpu=2)),
    Case("test_pcie.py::test_replays", "many", "pcie.replays", "GPU2", WARNS,
         overlay=fault("pcie_replays", gpu=2)),
    Case("test_p2p.py::test_peer_access", "one-pair", "p2p.unsupported", "GPU2-GPU5",
         overlay="pair.2.5.p2p.read 4\npair.2.5.p2p.write 4"),
)

NETWORK = (
    Case("test_network.py::test_ports", "one-absent", "nic.missing", "node",
         change=_ports(_ib("mlx5_0")), profile=IB_PROFILE),
    Case("test_network.py::test_ports", "one-down", "network.port_down", "mlx5_1 port 1",
         change=_ports(_ib("mlx5_0"), _ib("mlx5_1", state="DOWN", physical_state="Polling")),
         profile=IB_PROFILE),
    Case("test_network.py::test_rates", "trained-down", "network.rate_low", "mlx5_1 port 1",
         change=_ports(_ib("mlx5_0"), _ib("mlx5_1", rate_gbps=200.0)), profile=IB_PROFILE),
    Case("test_network.py::test_rates", "odd-one", "network.rate_low", "mlx5_3 port 1", WARNS,
         change=_ports(*(_ib(f"mlx5_{n}") for n in range(3)), _ib("mlx5_3", rate_gbps=100.0))),
    Case("test_network.py::test_link_flaps", "flapping", "network.link_flapping",
         "mlx5_1 port 1", WARNS,
         change=_ports(_ib("mlx5_0", counters={"link_downed": 1}),
                       _ib("mlx5_1", counters={"link_downed": 255}))),
    Case("test_kernel_log.py::test_no_xid", "off-the-bus", "gpu.off_bus", "GPU2",
         change=_log(_xid(79, "GPU has fallen off the bus."), _xid(154, "Node Reboot Required"))),
    Case("test_kernel_log.py::test_no_xid", "remap-failed", "memory.row_remap_failed", "GPU2",
         change=_log(_xid(64, "Row remapper failure"), _xid(94, "Contained error"))),
    Case("test_kernel_log.py::test_no_xid", "application", "gpu.xid", "GPU2", WARNS,
         change=_log(_xid(13, "Graphics Engine Exception"))),
    Case("test_kernel_log.py::test_no_sxid", "fatal", "nvlink.errors", "0000:05:00.0",
         change=_log(KernelEvent("sxid", "SXid 20034, Fatal, Link 30", 20034, "0000:05:00.0"))),
    Case("test_environment.py::test_stray_variables", "p2p-disabled", "nccl.stray_variable",
         "NCCL_P2P_DISABLE", WARNS, environment={"NCCL_P2P_DISABLE": "1"}),
    Case("test_environment.py::test_stray_variables", "ib-disabled", "nccl.stray_variable",
         "NCCL_IB_DISABLE", WARNS, environment={"NCCL_IB_DISABLE": "1"}),
    Case("test_environment.py::test_stray_variables", "interface", "nccl.stray_variable",
         "NCCL_SOCKET_IFNAME", WARNS, environment={"NCCL_SOCKET_IFNAME": "eth7"}),
    Case("test_environment.py::test_all_gpus_visible", "hidden", None, None, UNVERIFIED,
         environment={"CUDA_VISIBLE_DEVICES": "0,1"}),
    Case("test_environment.py::test_shared_memory", "container-default", "host.shm_small", "node",
         WARNS, change=_host(shm_bytes=64 * 2**20)),
    Case("test_environment.py::test_locked_memory", "limited", "host.memlock_low", "node",
         change=_host(memlock_bytes=65536), profile="[host]\nmemlock_unlimited = true\n"),
)

FLOOR = "[bandwidth]\nall_reduce_gbs = 0.3\n"  # CPU ranks: about half of what loopback gives
ON_RANKS = (
    Case("test_collectives.py::test_all_reduce_values", "one-rank", "collective.data_wrong",
         "rank 1", fault="corrupt_all_reduce:1", level="standard"),
    Case("test_collectives.py::test_all_reduce_values", "last-element-one-size",
         "collective.data_wrong", "rank 0", fault="drop_last_element:0", level="standard"),
    Case("test_collectives.py::test_all_reduce_values", "killed", "check.failed", "rank 1",
         fault="die_in_all_reduce:1", level="standard"),
    Case("test_collectives.py::test_all_reduce_bandwidth", "slow", "collective.bandwidth_low",
         "all ranks", fault="slow_all_reduce:1", level="standard", profile=FLOOR),
    Case("test_ddp.py::test_gradients_equal_across_ranks", "one-bit", "ddp.gradients_differ",
         "rank 2", fault="flip_gradient:2", ranks=3, level="standard"),
    Case("test_ddp.py::test_gradients_equal_single_process", "scaled", "ddp.gradients_wrong",
         "all ranks", fault="scale_gradients:all", level="standard"),
    Case("test_ddp.py::test_gradients_equal_single_process", "nan", "ddp.gradients_wrong",
         "rank 1", fault="nan_gradient:1", level="standard"),
    Case("test_pairs.py::test_pair_bandwidth", "slow-rank", "p2p.slow", "rank 2",
         fault="slow_send:2", ranks=4, level="extended"),
    Case("test_pairs.py::test_pair_bandwidth", "data", "p2p.data_wrong", "rank 1",
         fault="corrupt_send:1", ranks=3, level="extended"),
    Case("test_compute.py::test_matrix_products", "wrong", "compute.wrong", "rank 1",
         fault="wrong_product:1", ranks=3, level="extended"),
    Case("test_compute.py::test_matrix_products", "slow", "compute.slow", "rank 1",
         fault="slow_product:1", ranks=3, level="extended"),
    Case("test_storage.py::test_write_and_read", "corrupt", "storage.data_wrong", "node",
         fault="corrupt_file:leader", level="extended"),
    Case("test_soak.py::test_sustained_load", "data", "collective.data_wrong", "rank 1",
         fault="corrupt_all_reduce:1", level="soak", arguments=("--gpucluster-soak=3s",)),
)
# fmt: on

CASES: tuple[Case, ...] = (*SOFTWARE, *GPUS, *LINKS, *NETWORK, *ON_RANKS)
HEALTHY_MACHINES = (
    "a100x8", "b200x8", "gb200x4", "h100x8", "h200x8", "l40sx8", "rtx3090x2", "rtx4090x8",
)  # fmt: skip
HEALTHY_REHEARSALS = (("standard", 2), ("standard", 3), ("extended", 4), ("soak", 2))
