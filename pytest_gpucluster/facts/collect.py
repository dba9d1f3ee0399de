"""All live readers, each in a process of its own, merged into one `NodeFacts`."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TypeVar

from pytest_gpucluster.facts.children import MAX_OUTPUT, Outcome, run_together
from pytest_gpucluster.facts.host import HostFacts, node_name
from pytest_gpucluster.facts.kernel_log import KernelLogFacts
from pytest_gpucluster.facts.model import (
    FactsError,
    Gpu,
    Host,
    NodeFacts,
    Software,
    Unreadable,
    from_json,
)
from pytest_gpucluster.facts.network import NetworkFacts
from pytest_gpucluster.facts.nvml import NvmlFacts
from pytest_gpucluster.facts.pcie import PcieFacts
from pytest_gpucluster.facts.reader import SUBJECTS as ALL
from pytest_gpucluster.facts.software import SoftwareFacts
from pytest_gpucluster.facts.sysfs import bus_id, printable

# The session's own sys.path: what the reader imports is what the session would import, and
# nothing that happens to lie in the working directory.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from pytest_gpucluster.facts.reader import main; sys.exit(main(sys.argv[1:3]))"
)
_PROGRESS = re.compile(r"nvml: (?:(\S{1,40}) )?(nvml\w{1,80})", re.ASCII)
_NAMES = {"nvml": "NVML", "pcie": "sysfs (PCI)", "network": "sysfs (network)"}
_NEXT = {
    "nvml": "Run `nvidia-smi`: if it hangs as well, look for Xid 79, 119 or 120 in the kernel "
    "log, then reset the GPU or reboot the node.",
    "pcie": "Look for AER errors in the kernel log: a device may hang on configuration reads.",
    "network": "Look for errors of the adapters' driver (mlx5_core) in the kernel log.",
    "software": "Look for a file system that hangs (NFS?) under Python's or NCCL's folders.",
}

T = TypeVar("T")


def collect(deadline_s: float = 20.0, readers: Sequence[str] = ALL) -> NodeFacts:
    """Read this node with all ``readers`` at once; takes at most a second over ``deadline_s``.

    A reader that hangs, crashes or talks nonsense leaves an `Unreadable` under its subject
    ("nvml", "pcie", "network", "kernel log", "software", "host"), and its facts stay ``None``.
    """
    unknown = [name for name in readers if name not in ALL]
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown reader. Choose from {', '.join(ALL)}.")
    path = [entry for entry in sys.path if isinstance(entry, str)]
    commands = {
        name: [sys.executable, "-c", _BOOT, name, str(os.getpid()), *path] for name in readers
    }
    return merge(run_together(commands, deadline_s), deadline_s)


def merge(outcomes: dict[str, Outcome], deadline_s: float) -> NodeFacts:
    """`NodeFacts` out of the readers' outcomes, whose output is untrusted."""
    problems: list[Unreadable] = []

    def facts_of(name: str, kind: type[T]) -> T | None:
        if name not in outcomes:
            return None
        value = _decoded(name, outcomes[name], kind, deadline_s)
        if isinstance(value, Unreadable):
            problems.append(value)
            return None
        return value

    nvml = facts_of("nvml", NvmlFacts)
    pcie = facts_of("pcie", PcieFacts)
    network = facts_of("network", NetworkFacts)
    kernel_log = facts_of("kernel_log", KernelLogFacts)
    software = facts_of("software", SoftwareFacts)
    host = facts_of("host", HostFacts)
    for part in (nvml, pcie, network, kernel_log, software, host):
        if part is not None:
            problems.extend(part.unreadable)
    return NodeFacts(
        host=replace(
            host.host if host else Host(node_name()),
            nvidia_pci_devices=len(pcie.nvidia) if pcie and pcie.nvidia is not None else None,
        ),
        software=_with_nvml(software.software if software else Software(), nvml),
        gpus=_with_numa_nodes(nvml.gpus, pcie) if nvml else None,
        pairs=nvml.pairs if nvml else None,
        network=network.ports if network else None,
        kernel_events=kernel_log.events if kernel_log else None,
        unreadable=tuple(problems),
        taken=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _decoded(name: str, outcome: Outcome, kind: type[T], deadline_s: float) -> T | Unreadable:
    subject = name.replace("_", " ")
    by_hand = f"Run `{sys.executable} -m pytest_gpucluster.facts.reader {name}` by hand."
    said = printable(outcome.last_line, 300)
    last = f"; it last said: {said}" if said else ""
    if outcome.end == "hung":
        reason = f"{_NAMES.get(name, subject)} did not answer in {deadline_s:g} s"
        reason += f"{_last_call(said) or last}. {_NEXT.get(name, by_hand)}"
        if outcome.undying:
            reason += " Its reader cannot be killed: the kernel holds it, so expect to reboot."
    elif outcome.end == "flooded":
        reason = f"the reader printed more than {MAX_OUTPUT // 2**20} MB and was stopped. {by_hand}"
    elif outcome.end == "not_started":
        reason = f"the reader could not be started: {said}. {by_hand}"
    elif outcome.code:
        reason = f"the reader {_how_it_died(outcome.code)}{_last_call(said) or last}. {by_hand}"
    else:
        try:
            return from_json(outcome.output, kind, f"the {subject} reader")
        except FactsError as error:
            reason = f"{printable(str(error), 300)}{last}. {by_hand}"
        except RecursionError:
            reason = f"the {subject} reader: JSON nested too deeply{last}. {by_hand}"
    return Unreadable(subject, reason)


def _last_call(line: str) -> str | None:
    match = _PROGRESS.fullmatch(line)
    if match is None:
        return None
    return f"; last call: {match[2]}" + (f" on {match[1]}" if match[1] else "")


def _how_it_died(code: int) -> str:
    if code > 0:
        return f"failed (exit status {code})"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _with_nvml(software: Software, nvml: NvmlFacts | None) -> Software:
    if nvml is None:
        return software
    return replace(
        software,
        driver=nvml.driver or software.driver,
        driver_cuda=nvml.driver_cuda,
        nvml=nvml.nvml,
        nvml_binding=nvml.nvml_binding,
        nvml_binding_problem=nvml.nvml_binding_problem,
    )


def _with_numa_nodes(
    gpus: tuple[Gpu, ...] | None, pcie: PcieFacts | None
) -> tuple[Gpu, ...] | None:
    if gpus is None or pcie is None or pcie.nvidia is None:
        return gpus
    nodes = {device.bus_id: device.pcie.numa_node for device in pcie.nvidia}

    def completed(gpu: Gpu) -> Gpu:
        address = bus_id(gpu.bus_id or "")
        if gpu.pcie.numa_node is not None or address is None:
            return gpu
        return replace(gpu, pcie=replace(gpu.pcie, numa_node=nodes.get(address)))

    return tuple(map(completed, gpus))
