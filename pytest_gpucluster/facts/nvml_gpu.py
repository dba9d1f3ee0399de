"""One GPU, through NVML. Imports ``pynvml``: only for use by the reader."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import pynvml

from pytest_gpucluster.facts.model import (
    Clocks,
    Ecc,
    Gpu,
    GpuProcess,
    Pcie,
    Power,
    RemappedRows,
    RetiredPages,
    Unreadable,
)
from pytest_gpucluster.facts.nvml_calls import (
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    Answer,
    Asker,
    text,
    too_old,
)
from pytest_gpucluster.facts.nvml_links import pci_address, read_fabric, read_links
from pytest_gpucluster.facts.sysfs import printable

T = TypeVar("T")

# Enums and bits of nvml.h (NVML 13)
COMPUTE_MODES: dict[int, Literal["default", "exclusive_process", "prohibited"]] = {
    0: "default",
    2: "prohibited",
    3: "exclusive_process",
}
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
CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
SINGLE_BIT, DOUBLE_BIT = 0, 1
GPU_SENSOR, SLOWDOWN = 0, 1
SM_CLOCK, MEMORY_CLOCK = 1, 2
UPDATE = "update the driver and nvidia-ml-py, and report it if that does not help"
NODE_SCOPE, NODE_WORDS = 0, 16  # a bit for each of 1024 NUMA nodes


@dataclass(frozen=True)
class Reading:
    """A GPU, its NVML handle (``None``: there is none) and what could not be read of it."""

    gpu: Gpu
    handle: Any
    problems: tuple[Unreadable, ...]


def read_gpu(index: int) -> Reading:
    """Everything about one GPU. What was read before it was lost is kept."""
    asker = Asker(f"GPU{index}")
    handle = asker.attempt("nvmlDeviceGetHandleByIndex", index)
    if handle.reason is not None:
        # A GPU off the bus is also "unknown error" here; only a missing right says nothing.
        lost = None if handle.error == NO_PERMISSION else handle.reason
        asker.keep("handle", handle)
        return Reading(Gpu(index, lost=lost), None, tuple(asker.problems))
    asker.target = (handle.value,)
    gpu = _read_parts(asker, index)
    return Reading(gpu, handle.value, tuple(asker.problems))


def _read_parts(asker: Asker, index: int) -> Gpu:
    ask = asker.ask

    def part(subject: str, read: Callable[[Asker], T], unread: T) -> T:
        """One part; an answer of a shape that no known release has costs that part alone."""
        try:
            return read(asker)
        except Exception as error:
            said = printable(f"{type(error).__name__}: {error}", 200)
            asker.keep(subject, Answer(reason=f"the answer is not understood ({said}); {UPDATE}."))
            return unread

    memory: tuple[int | None, int | None] = (None, None)
    memory = part("memory", _read_memory, memory)
    mode = ask("compute mode", "nvmlDeviceGetComputeMode")
    ecc = part("ecc", _read_ecc, None)
    rows = part("remapped rows", _read_rows, None)
    temperature = ask("temperature", "nvmlDeviceGetTemperature", GPU_SENSOR)
    gpu = Gpu(
        index=index,
        name=text(ask("name", "nvmlDeviceGetName")),
        uuid=text(ask("uuid", "nvmlDeviceGetUUID")),
        bus_id=pci_address(ask("pci", "nvmlDeviceGetPciInfo")),
        serial=text(ask("serial", "nvmlDeviceGetSerial")),
        vbios=text(ask("vbios", "nvmlDeviceGetVbiosVersion")),
        compute_capability=part("compute capability", _read_capability, None),
        memory_bytes=memory[0],
        memory_used_bytes=memory[1],
        ecc=ecc,
        # GeForce answers zeros though it remaps nothing: without ECC there is no remapping.
        remapped_rows=rows if ecc is not None else None,
        retired_pages=part("retired pages", _read_pages, None),
        mig_enabled=part("mig", _read_mig, None),
        compute_mode=COMPUTE_MODES.get(mode),
        persistence=_flag(ask("persistence", "nvmlDeviceGetPersistenceMode")),
        power=part("power", _read_power, Power()),
        clocks=part("clocks", _read_clocks, Clocks()),
        temperature=None if temperature is None else float(temperature),
        temperature_margin=_read_margin(asker, temperature),
        recovery_action=part("recovery action", _read_recovery, None),
        processes=part("processes", _read_processes, None),
        pcie=part("pcie", _read_pcie, Pcie()),
        nvlinks=part("nvlink", read_links, None),
        fabric=part("fabric", read_fabric, None),
    )
    return replace(gpu, lost=asker.lost)


def _read_capability(asker: Asker) -> str | None:
    capability = asker.ask("compute capability", "nvmlDeviceGetCudaComputeCapability")
    return ".".join(map(str, capability)) if capability else None


def _read_mig(asker: Asker) -> bool | None:
    mode = asker.ask("mig", "nvmlDeviceGetMigMode")
    return None if mode is None else bool(mode[0])


def _read_recovery(asker: Asker) -> str | None:
    action = asker.fields("recovery action", {"action": RECOVERY_FIELD}).get("action")
    return None if action is None else RECOVERY_ACTIONS.get(action, f"action_{action}")


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _read_memory(asker: Asker) -> tuple[int | None, int | None]:
    # The first version counts what the driver reserves as used.
    memory = asker.attempt("nvmlDeviceGetMemoryInfo", 0x02000028).value
    if memory is None:
        memory = asker.ask("memory", "nvmlDeviceGetMemoryInfo")
    return (None, None) if memory is None else (int(memory.total), int(memory.used))


def _read_ecc(asker: Asker) -> Ecc | None:
    mode = asker.ask("ecc", "nvmlDeviceGetEccMode")
    if mode is None:
        return None

    def total(kind: int, counter: int) -> int | None:
        answer = asker.ask("ecc errors", "nvmlDeviceGetTotalEccErrors", kind, counter)
        return None if answer is None else int(answer)

    return Ecc(
        enabled=bool(mode[0]),
        pending=bool(mode[1]),
        corrected_volatile=total(CORRECTED, VOLATILE),
        corrected_aggregate=total(CORRECTED, AGGREGATE),
        uncorrected_volatile=total(UNCORRECTED, VOLATILE),
        uncorrected_aggregate=total(UNCORRECTED, AGGREGATE),
        sram_threshold_exceeded=_read_sram(asker),
    )


def _read_sram(asker: Asker) -> bool | None:
    call = "nvmlDeviceGetSramEccErrorStatus"
    structure = getattr(pynvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    if structure is None:
        asker.keep("ecc sram", too_old(call))
        return None
    status = structure()
    done = asker.ask("ecc sram", call, ctypes.byref(status))
    return None if done is None else bool(status.bThresholdExceeded)


def _read_rows(asker: Asker) -> RemappedRows | None:
    rows = asker.ask("remapped rows", "nvmlDeviceGetRemappedRows")
    if rows is None:
        return None
    correctable, uncorrectable, pending, failed = rows
    return RemappedRows(int(correctable), int(uncorrectable), bool(pending), bool(failed))


def _read_pages(asker: Asker) -> RetiredPages | None:
    single = asker.ask("retired pages", "nvmlDeviceGetRetiredPages", SINGLE_BIT)
    double = asker.ask("retired pages", "nvmlDeviceGetRetiredPages", DOUBLE_BIT)
    if single is None or double is None:
        return None
    pending = asker.ask("retired pages", "nvmlDeviceGetRetiredPagesPendingStatus")
    return RetiredPages(len(single), len(double), _flag(pending))


def _read_power(asker: Asker) -> Power:
    limits = asker.ask("power", "nvmlDeviceGetPowerManagementLimitConstraints")

    def watts(name: str) -> float | None:
        milliwatts = asker.ask("power", name)
        return None if milliwatts is None else milliwatts / 1000

    return Power(
        draw=watts("nvmlDeviceGetPowerUsage"),
        limit=watts("nvmlDeviceGetEnforcedPowerLimit"),
        default_limit=watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        max_limit=None if limits is None else limits[1] / 1000,
    )


def _read_clocks(asker: Asker) -> Clocks:
    events = asker.attempt("nvmlDeviceGetCurrentClocksEventReasons")
    if events.error == FUNCTION_NOT_FOUND:  # the name before driver 535
        events = asker.attempt("nvmlDeviceGetCurrentClocksThrottleReasons")
    asker.keep("clock events", events)

    def megahertz(name: str, clock: int) -> int | None:
        answer = asker.ask("clocks", name, clock)
        return None if answer is None else int(answer)

    return Clocks(
        sm=megahertz("nvmlDeviceGetClockInfo", SM_CLOCK),
        memory=megahertz("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        sm_max=megahertz("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        memory_max=megahertz("nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK),
        event_reasons=None if events.value is None else _events(int(events.value)),
    )


def _events(mask: int) -> tuple[str, ...]:
    bits = (1 << bit for bit in range(64) if mask >> bit & 1)
    return tuple(CLOCK_EVENTS.get(bit, f"bit_{bit:#x}") for bit in bits)


def _read_margin(asker: Asker, temperature: int | None) -> float | None:
    margin = asker.attempt("nvmlDeviceGetMarginTemperature")
    if margin.value is not None:
        return float(margin.value)
    # Before Ada only the absolute limit is told.
    limit = asker.ask("temperature limit", "nvmlDeviceGetTemperatureThreshold", SLOWDOWN)
    return None if limit is None or temperature is None else float(limit - temperature)


def _read_processes(asker: Asker) -> tuple[GpuProcess, ...] | None:
    found = asker.ask("processes", "nvmlDeviceGetComputeRunningProcesses")
    if found is None:
        return None
    system = Asker(asker.label)  # a process of another user or container has no name for us
    return tuple(
        GpuProcess(
            pid=int(process.pid),
            name=text(system.attempt("nvmlSystemGetProcessName", int(process.pid)).value),
            memory_bytes=process.usedGpuMemory,
        )
        for process in found
    )


def _read_pcie(asker: Asker) -> Pcie:
    def number(name: str) -> int | None:
        answer = asker.ask("pcie", name)
        return None if answer is None else int(answer)

    return Pcie(
        generation=number("nvmlDeviceGetCurrPcieLinkGeneration"),
        width=number("nvmlDeviceGetCurrPcieLinkWidth"),
        max_generation=number("nvmlDeviceGetMaxPcieLinkGeneration"),
        max_width=number("nvmlDeviceGetMaxPcieLinkWidth"),
        device_generation=number("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        replays=number("nvmlDeviceGetPcieReplayCounter"),
        numa_node=_read_numa_node(asker),
    )


def _read_numa_node(asker: Asker) -> int | None:
    # Not nvmlDeviceGetNumaNodeId: on Grace that is the node of the GPU's own memory. Where
    # there is no answer, sysfs has one.
    words = asker.attempt("nvmlDeviceGetMemoryAffinity", NODE_WORDS, NODE_SCOPE).value
    nodes = [
        64 * place + bit
        for place, word in enumerate(words or ())
        for bit in range(64)
        if int(word) >> bit & 1
    ]
    return nodes[0] if len(nodes) == 1 else None
