"""The GPUs: there, all of them, the right ones, with all their memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pytest_gpucluster.checks.compare import common_value, severity
from pytest_gpucluster.expectations.catalogue import (
    find_gpu,
    same_product_name,
    version_key,
)
from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import Gpu, NodeFacts
from pytest_gpucluster.verdict.recorder import Findings

LEAST_GPUS = 2
# Calls that every driver this plugin accepts has: one that lacks them is broken, not old.
SINCE_DRIVER_450 = frozenset(
    {
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetTotalEccErrors",
    }
)


def test_present(node_hardware: NodeFacts, findings: Findings) -> None:
    """The driver answers and shows at least one NVIDIA GPU; none has fallen off the bus.

    Needs: nothing. When it fails: look at ``nvidia-smi``, ``lspci -d 10de:`` and the kernel log.
    """
    facts = node_hardware
    on_bus = facts.host.nvidia_pci_devices
    if facts.gpus is None:
        reason = facts.why_unreadable("nvml") or "NVML did not answer"
        if on_bus or "did not answer" in reason:
            seen = f"{on_bus} NVIDIA devices are on the PCI bus, but " if on_bus else ""
            findings.report(
                "fail",
                "gpu.driver",
                "node",
                f"{seen}the NVIDIA driver cannot be used: {reason}",
                next_step="Load or repair the driver (nvidia-smi must answer), or reboot.",
                expected="a driver that answers",
            )
        else:
            _no_gpu(findings, reason)
    elif not facts.gpus:
        _no_gpu(findings, "the driver answers that there is none")
    for gpu in facts.gpus or ():
        if gpu.lost is not None:
            findings.report(
                "fail",
                "gpu.off_bus",
                gpu.label,
                f"the driver cannot reach {gpu.bus_id or gpu.label} any more: {gpu.lost}",
                next_step="Look for Xid 79 in the kernel log, power-cycle the node; if it comes "
                "back, reseat or replace the GPU.",
            )


def _no_ecc(gpu: Gpu) -> bool:
    return gpu.ecc is not None and not gpu.ecc.enabled


def _rows(gpu: Gpu) -> object:
    """Rows are remapped only where ECC is on and the GPU is whole."""
    return gpu.remapped_rows or gpu.mig_enabled or _no_ecc(gpu) or None


# What GPUs of one node either all have or all lack.
TOLD_BY_ALL_OR_NONE: dict[str, Callable[[Gpu], object]] = {
    "clock-event reasons": lambda gpu: gpu.clocks.event_reasons,
    "compute mode": lambda gpu: gpu.compute_mode,
    "ECC mode": lambda gpu: gpu.ecc,
    "MIG mode": lambda gpu: gpu.mig_enabled,
    "NVLinks": lambda gpu: gpu.nvlinks,
    "persistence mode": lambda gpu: gpu.persistence,
    "power limit": lambda gpu: gpu.power.limit,
    "recovery action": lambda gpu: gpu.recovery_action,
    "remapped rows": _rows,
}


def _no_gpu(findings: Findings, reason: str) -> None:
    findings.report(
        "fail",
        "gpu.missing",
        "node",
        f"no NVIDIA GPU on this node ({reason})",
        next_step="Run on a GPU node, or rehearse without GPUs: pytest --gpucluster "
        "--gpucluster-rehearse.",
        measured=0,
        expected=f">={LEAST_GPUS}",
        unit="GPUs",
    )


def test_readable(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """The driver answers every question about every GPU, if only with "not supported".

    Needs: a GPU. Threshold: no error. When it is unverified: ask the same with nvidia-smi -q; a
    GPU that cannot be read cannot be judged, and is often about to fail.
    """
    for problem in node_facts.unreadable:
        if problem.subject.startswith("GPU") or problem.subject in SINCE_DRIVER_450:
            findings.unverified(f"{problem.subject} could not be read: {problem.reason}")
    for name, value in TOLD_BY_ALL_OR_NONE.items():
        silent = [gpu.label for gpu in node_gpus if value(gpu) is None]
        if silent and len(silent) < len(node_gpus):
            findings.unverified(f"{', '.join(silent)} does not tell its {name}, the others do")
    model = node_expectations.model
    newer = model is not None and version_key(model.compute_capability) >= (8,)
    remaps = newer and model is not None and model.ecc is True
    excused = any(gpu.mig_enabled or _no_ecc(gpu) for gpu in node_gpus)
    if remaps and not excused and all(gpu.remapped_rows is None for gpu in node_gpus):
        findings.unverified("the remapped rows could not be read")


def test_count(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """As many GPUs as the profile says, and at least two.

    Needs: a GPU. Threshold: ``gpus.count`` of the profile; without one, a number that the
    product is built in, else the check is unverified. When it fails: find the missing GPU with
    ``lspci -d 10de:`` and the kernel log.
    """
    found, expected = len(node_gpus), node_expectations.gpu_count
    lost = sum(1 for gpu in node_facts.gpus or () if gpu.lost is not None)
    if expected is not None:
        if found + lost != expected.value:
            missing = expected.value - found - lost
            what = f"{missing} missing" if missing > 0 else f"{-missing} too many"
            findings.report(
                severity(expected),
                "gpu.missing" if missing > 0 else "gpu.unexpected",
                "node",
                f"{found + lost} GPUs, expected {expected.value}: {what}.",
                next_step="Compare lspci -d 10de: with nvidia-smi -L; look for Xid 79 and for "
                "GPUs that the BIOS did not enumerate.",
                measured=found + lost,
                expected=expected.value,
                unit="GPUs",
                source=expected.source,
            )
        return
    if found + lost < LEAST_GPUS:
        findings.report(
            "fail",
            "gpu.missing",
            "node",
            f"{found} GPU: distributed training on this node needs at least {LEAST_GPUS}.",
            next_step="If the node is meant to have one GPU, say so: gpus.count = 1 in a profile.",
            measured=found,
            expected=f">={LEAST_GPUS}",
            unit="GPUs",
            source="prerequisites of distributed training",
        )
    elif node_expectations.count_problem is not None:
        findings.unverified(node_expectations.count_problem)
    elif (node_facts.host.nvidia_pci_devices or 0) > found + lost:
        findings.unverified(
            f"the driver shows {found} GPUs, the PCI bus {node_facts.host.nvidia_pci_devices}: "
            "settle the right number with gpus.count in a profile"
        )


def test_model(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """All GPUs are one known product, the one the profile names.

    Needs: a GPU. Threshold: the profile's ``gpus.model``, else the model of the other GPUs. A
    product that the catalogue does not know is unverified. When it fails: the wrong module was
    mounted.
    """
    expected = node_expectations.gpu_models
    for gpu in node_gpus:
        if gpu.name is None or expected is None:
            continue
        if not any(same_product_name(gpu.name, name) for name in expected.value):
            findings.report(
                severity(expected),
                "gpu.wrong_model",
                gpu.label,
                f"is a {gpu.name}, expected {expected.value[0]}.",
                next_step="Check the part number of the module against the order.",
                measured=gpu.name,
                expected=expected.value[0],
                source=expected.source,
            )
    for problem in node_expectations.problems:
        findings.unverified(problem)
    variants = Counter(gpu.vbios for gpu in node_gpus if gpu.vbios)
    usual = common_value(node_gpus, lambda gpu: gpu.vbios)
    if len(variants) > 1 and usual is not None:
        for gpu in node_gpus:
            if gpu.vbios and gpu.vbios != usual and find_gpu(gpu.name or "") is not None:
                findings.report(
                    "warn",
                    "gpu.firmware_differs",
                    gpu.label,
                    f"has VBIOS {gpu.vbios}, the others {usual}.",
                    next_step="Bring all GPUs to the same firmware.",
                    measured=gpu.vbios,
                    expected=str(usual),
                    source="the other GPUs of this node",
                )


def test_memory(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """Every GPU shows all its memory.

    Needs: a GPU. Threshold: 0.9 x the catalogue's (or profile's) size, since the driver keeps
    some for itself; and within 2 % of the other GPUs. When it fails: a smaller variant was
    mounted, or a memory stack failed: run field diagnostics.
    """
    expected = node_expectations.memory_bytes_min
    if expected is None:
        findings.unverified("how much memory these GPUs should have is not known")
    sizes = [gpu.memory_bytes for gpu in node_gpus if gpu.memory_bytes]
    usual = sorted(sizes)[len(sizes) // 2] if len(sizes) >= 3 else None
    for gpu in node_gpus:
        if gpu.memory_bytes is None:
            findings.unverified(f"the memory of {gpu.label} could not be read")
        elif expected is not None and gpu.memory_bytes < expected.value:
            _less_memory(findings, gpu, expected.value, expected.source, certain=expected.certain)
        elif usual is not None and gpu.memory_bytes < 0.98 * usual:
            _less_memory(findings, gpu, usual, "the other GPUs of this node", certain=True)


def _less_memory(findings: Findings, gpu: Gpu, least: int, source: str, *, certain: bool) -> None:
    found = (gpu.memory_bytes or 0) / 1e9
    findings.report(
        "fail" if certain else "warn",
        "memory.size",
        gpu.label,
        f"shows {found:.1f} GB of memory, expected at least {least / 1e9:.1f} GB.",
        next_step="Check the part number; run NVIDIA's field diagnostic.",
        measured=round(found, 1),
        expected=round(least / 1e9, 1),
        unit="GB",
        source=source,
    )
