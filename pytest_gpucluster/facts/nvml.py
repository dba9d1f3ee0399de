"""The GPUs, through NVIDIA's management library and NVIDIA's own Python binding.

Creates no CUDA context. Never raises: what cannot be read is a fact with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pytest_gpucluster.facts.model import (
    Clocks,
    Ecc,
    Gpu,
    GpuPair,
    GpuProcess,
    Pcie,
    Power,
    RemappedRows,
    RetiredPages,
    Unreadable,
)

if TYPE_CHECKING:
    from pytest_gpucluster.facts.nvml_calls import Asker

COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}
RECOVERY_FIELD = 230
RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h).
CLOCK_EVENTS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
ADVICE = {
    4: "run as a user that may use the GPUs",
    9: "the driver is not loaded: modprobe nvidia, or install it",
    12: "no libnvidia-ml.so.1: the driver is not installed, or not visible in this container",
    15: "a GPU has fallen off the bus: look for Xid 79, power-cycle the node",
    18: "the kernel module and libnvidia-ml.so.1 have different versions: reboot, or reload the "
    "module",
}


@dataclass(frozen=True)
class NvmlFacts:
    """``gpus`` is ``()`` only if NVML answered that there is none."""

    gpus: tuple[Gpu, ...] | None = None
    pairs: tuple[GpuPair, ...] | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    nvml: str | None = None
    nvml_binding: str | None = None
    nvml_binding_problem: str | None = None
    unreadable: tuple[Unreadable, ...] = ()


def read_nvml() -> NvmlFacts:
    """Everything NVML tells about this node."""
    binding, problem = find_binding()
    try:
        import pynvml
    except Exception as error:  # an old package of that name may fail in any way
        reason = f"the Python module pynvml cannot be imported: {error}. Install nvidia-ml-py."
        return _without(reason, binding, problem)
    if not hasattr(pynvml, "nvmlDeviceGetFieldValues"):
        reason = f"the Python module pynvml is not NVIDIA's ({problem}). Install nvidia-ml-py."
        return _without(reason, binding, problem)
    from pytest_gpucluster.facts.nvml_calls import Asker, text

    system = Asker()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        advice = ADVICE.get(error.value, "see what nvidia-smi says")
        return _without(f"NVML error {error.value} ({error}): {advice}", binding, problem)
    count = system.ask("nvml", "nvmlDeviceGetCount")
    if count is None:
        reason = system.problems[0].reason if system.problems else "it gave no number of GPUs"
        return _without(f"NVML cannot count the GPUs: {reason}", binding, problem)
    problems: list[Unreadable] = []
    handles: dict[int, Any] = {}
    gpus = tuple(_read_gpu(index, handles, problems) for index in range(count))
    pairs = _read_pairs(handles, problems)
    cuda = system.ask("cuda", "nvmlSystemGetCudaDriverVersion_v2")
    return NvmlFacts(
        gpus=gpus,
        pairs=pairs,
        driver=text(system.ask("driver", "nvmlSystemGetDriverVersion")),
        driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        nvml=text(system.ask("nvml version", "nvmlSystemGetNVMLVersion")),
        nvml_binding=binding,
        nvml_binding_problem=problem,
        unreadable=(*system.problems, *problems),
    )


def find_binding() -> tuple[str | None, str | None]:
    """The package that provides the module ``pynvml``, and what is wrong with it, if anything.

    ``pynvml`` up to 11 shipped its own old copy of the bindings; from 12 on it only depends on
    NVIDIA's ``nvidia-ml-py``.
    """
    versions = {}
    for name in ("nvidia-ml-py", "pynvml"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    ours = f"nvidia-ml-py {versions['nvidia-ml-py']}" if "nvidia-ml-py" in versions else None
    old = versions.get("pynvml", "")
    if old.partition(".")[0].isdecimal() and int(old.partition(".")[0]) < 12:
        shadow = f"pynvml {old} is installed: it brings an old copy of NVIDIA's binding"
        return ours or f"pynvml {old}", shadow
    place = _binding_file()
    if ours is not None and place is not None and place.parent.name == "pynvml":
        return ours, f"{place.parent} shadows NVIDIA's own pynvml.py"
    return ours, None


def _binding_file() -> Path | None:
    import importlib.util

    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _without(reason: str, binding: str | None, problem: str | None) -> NvmlFacts:
    return NvmlFacts(
        nvml_binding=binding,
        nvml_binding_problem=problem,
        unreadable=(Unreadable("nvml", reason),),
    )


def _read_pairs(handles: dict[int, Any], problems: list[Unreadable]) -> tuple[GpuPair, ...]:
    from pytest_gpucluster.facts.nvml_calls import Asker
    from pytest_gpucluster.facts.nvml_links import read_pair

    pairs = []
    for a in sorted(handles):
        for b in sorted(handles):
            if a < b:
                asker = Asker(f"GPU{a}-GPU{b}")
                pairs.append(read_pair(asker, a, b, handles))
                problems += asker.problems
    return tuple(pairs)


def _read_gpu(index: int, handles: dict[int, Any], problems: list[Unreadable]) -> Gpu:
    from pytest_gpucluster.facts.nvml_calls import Asker, GpuLost

    asker = Asker(f"GPU{index}")
    try:
        handle = asker.ask("handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            reason = asker.problems[-1].reason if asker.problems else "NVML gives no handle"
            return Gpu(index, lost=reason)
        handles[index] = handle
        return _read_parts(asker, index, handle)
    except GpuLost as error:
        handles.pop(index, None)
        return Gpu(index, lost=f"{error}: {ADVICE[15]}")
    finally:
        problems += asker.problems


def _read_parts(asker: Asker, index: int, handle: Any) -> Gpu:
    from pytest_gpucluster.facts import nvml_links
    from pytest_gpucluster.facts.nvml_calls import first, flag, text

    def ask(subject: str, name: str, *arguments: Any) -> Any:
        return asker.ask(subject, name, handle, *arguments)

    memory = ask("memory", "nvmlDeviceGetMemoryInfo")
    capability = ask("compute capability", "nvmlDeviceGetCudaComputeCapability")
    mode = ask("compute mode", "nvmlDeviceGetComputeMode")
    recovery = nvml_links.read_fields(asker, "recovery", handle, {"action": RECOVERY_FIELD})
    margin = ask("temperature", "nvmlDeviceGetMarginTemperature")
    return Gpu(
        index=index,
        name=text(ask("name", "nvmlDeviceGetName")),
        uuid=text(ask("uuid", "nvmlDeviceGetUUID")),
        bus_id=nvml_links.pci_address(ask("pci", "nvmlDeviceGetPciInfo")),
        serial=text(ask("serial", "nvmlDeviceGetSerial")),
        vbios=text(ask("vbios", "nvmlDeviceGetVbiosVersion")),
        compute_capability=".".join(map(str, capability)) if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        memory_used_bytes=int(memory.used) if memory else None,
        ecc=_read_ecc(ask),
        remapped_rows=_read_rows(ask),
        retired_pages=_read_pages(ask),
        mig_enabled=first(ask("mig", "nvmlDeviceGetMigMode"), bool),
        compute_mode=cast(Any, COMPUTE_MODES.get(mode)) if mode is not None else None,
        persistence=flag(ask("persistence", "nvmlDeviceGetPersistenceMode")),
        power=_read_power(ask),
        clocks=_read_clocks(ask),
        temperature=_number(ask("temperature", "nvmlDeviceGetTemperature", 0)),
        temperature_margin=_number(margin),
        recovery_action=_recovery(recovery.get("action")),
        processes=_read_processes(asker, ask),
        pcie=_read_pcie(ask),
        nvlinks=nvml_links.read_links(asker, handle),
        fabric=nvml_links.read_fabric(asker, handle),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _recovery(value: int | None) -> str | None:
    return None if value is None else RECOVERY_ACTIONS.get(value, f"action {value}")


def _read_ecc(ask: Any) -> Ecc | None:
    mode = ask("ecc", "nvmlDeviceGetEccMode")
    if mode is None:
        return None

    def total(kind: int, counter: int) -> int | None:
        answer = ask("ecc errors", "nvmlDeviceGetTotalEccErrors", kind, counter)
        return None if answer is None else int(answer)

    return Ecc(
        enabled=bool(mode[0]),
        pending=bool(mode[1]),
        corrected_volatile=total(0, 0),
        corrected_aggregate=total(0, 1),
        uncorrected_volatile=total(1, 0),
        uncorrected_aggregate=total(1, 1),
        sram_threshold_exceeded=_sram(ask),
    )


def _sram(ask: Any) -> bool | None:
    import ctypes

    import pynvml

    if not hasattr(pynvml, "c_nvmlEccSramErrorStatus_v1_t"):
        return None
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    done = ask("ecc sram", "nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status))
    return None if done is None else bool(status.bThresholdExceeded)


def _read_rows(ask: Any) -> RemappedRows | None:
    rows = ask("remapped rows", "nvmlDeviceGetRemappedRows")
    if rows is None:
        return None
    correctable, uncorrectable, pending, failed = rows
    return RemappedRows(int(correctable), int(uncorrectable), bool(pending), bool(failed))


def _read_pages(ask: Any) -> RetiredPages | None:
    single = ask("retired pages", "nvmlDeviceGetRetiredPages", 0)
    double = ask("retired pages", "nvmlDeviceGetRetiredPages", 1)
    if single is None or double is None:
        return None
    pending = ask("retired pages", "nvmlDeviceGetRetiredPagesPendingStatus")
    return RetiredPages(len(single), len(double), None if pending is None else bool(pending))


def _read_power(ask: Any) -> Power:
    limits = ask("power", "nvmlDeviceGetPowerManagementLimitConstraints")

    def watts(name: str) -> float | None:
        milliwatts = ask("power", name)
        return None if milliwatts is None else milliwatts / 1000

    return Power(
        draw=watts("nvmlDeviceGetPowerUsage"),
        limit=watts("nvmlDeviceGetEnforcedPowerLimit"),
        default_limit=watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        max_limit=None if limits is None else limits[1] / 1000,
    )


def _read_clocks(ask: Any) -> Clocks:
    # Drivers before 535 only know the older name.
    mask = ask("clocks", "nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = ask("clocks", "nvmlDeviceGetCurrentClocksThrottleReasons")
    reasons = None
    if mask is not None:
        reasons = tuple(name for bit, name in CLOCK_EVENTS.items() if mask & bit)
    sm, memory = 1, 2
    return Clocks(
        sm=ask("clocks", "nvmlDeviceGetClockInfo", sm),
        memory=ask("clocks", "nvmlDeviceGetClockInfo", memory),
        sm_max=ask("clocks", "nvmlDeviceGetMaxClockInfo", sm),
        memory_max=ask("clocks", "nvmlDeviceGetMaxClockInfo", memory),
        event_reasons=reasons,
    )


def _read_processes(asker: Asker, ask: Any) -> tuple[GpuProcess, ...] | None:
    from pytest_gpucluster.facts.nvml_calls import text

    found = ask("processes", "nvmlDeviceGetComputeRunningProcesses")
    if found is None:
        return None
    return tuple(
        GpuProcess(
            pid=int(process.pid),
            name=text(asker.ask("processes", "nvmlSystemGetProcessName", int(process.pid))),
            memory_bytes=process.usedGpuMemory,
        )
        for process in found
    )


def _read_pcie(ask: Any) -> Pcie:
    return Pcie(
        generation=ask("pcie", "nvmlDeviceGetCurrPcieLinkGeneration"),
        width=ask("pcie", "nvmlDeviceGetCurrPcieLinkWidth"),
        max_generation=ask("pcie", "nvmlDeviceGetMaxPcieLinkGeneration"),
        max_width=ask("pcie", "nvmlDeviceGetMaxPcieLinkWidth"),
        device_generation=ask("pcie", "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        replays=ask("pcie", "nvmlDeviceGetPcieReplayCounter"),
        numa_node=ask("numa", "nvmlDeviceGetNumaNodeId"),
    )
