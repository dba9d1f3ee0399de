"""The machine around the GPUs: processor, memory, limits, container, environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_gpucluster.facts.model import Host, Unreadable
from pytest_gpucluster.facts.sysfs import printable, read_line, read_text

_PREFIXES = ("NCCL_", "CUDA_", "GLOO_", "UCX_", "NVIDIA_", "TORCH_NCCL_")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|KEY")
_VALUE_LEFT_OUT = "(value left out)"
_CGROUP_HINTS = {  # first match wins: a pod's cgroup also names its runtime
    "kubepods": "kubernetes",
    "docker": "docker",
    "libpod": "podman",
    "lxc": "lxc",
    "containerd": "containerd",
}


@dataclass(frozen=True)
class HostFacts:
    """The host without its PCI bus, which is `pytest_gpucluster.facts.pcie`'s subject."""

    host: Host
    unreadable: tuple[Unreadable, ...] = ()


def read_host(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> HostFacts:
    """Processor, memory, limits of this process, container and communication variables.

    ``numa_nodes`` counts nodes with processors: on Grace systems the GPUs' memory adds nodes
    without any.
    """
    environment = os.environ if environment is None else environment
    cpus, cpu_model = _processors(root)
    shm, shm_free = _shared_memory(root / "dev/shm")
    host = Host(
        name=node_name(environment),
        cpus=cpus,
        cpu_model=cpu_model,
        memory_bytes=_memory(root),
        numa_nodes=_numa_nodes(root),
        memlock_bytes=_memlock(),
        shm_bytes=shm,
        shm_free_bytes=shm_free,
        container=_container(root, environment),
        environment=communication_variables(environment),
    )
    unread = [
        Unreadable(f"host {name}", f"/{source} has no answer. Is it mounted here?")
        for name, value, source in (
            ("processors", cpus, "proc/cpuinfo"),
            ("memory", host.memory_bytes, "proc/meminfo"),
            ("shared memory", shm, "dev/shm"),
        )
        if value is None
    ]
    return HostFacts(host, tuple(unread))


def node_name(environment: Mapping[str, str] | None = None) -> str:
    """The node's name: Slurm's own where Slurm started us, else the host name.

    Slurm's node list and its host names may differ (aliases, cloud nodes).
    """
    environment = os.environ if environment is None else environment
    name = environment.get("SLURMD_NODENAME") or os.uname().nodename
    return printable(name, 255).strip() or "unknown"


def communication_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that steer NCCL, CUDA, Gloo and UCX; values of secret-looking names left out."""
    return {
        printable(name, 200): _VALUE_LEFT_OUT if _is_secret(name) else printable(value)
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES)
    }


def _is_secret(name: str) -> bool:
    # NCCL_IB_PKEY and UCX_IB_PKEY number an InfiniBand partition.
    words = [word for word in name.upper().split("_") if word != "PKEY"]
    return _SECRET.search("_".join(words)) is not None


def _processors(root: Path) -> tuple[int | None, str | None]:
    text = read_text(root / "proc/cpuinfo", 8 * 2**20) or ""
    count = len(re.findall(r"^processor\s*:", text, re.MULTILINE))
    model = re.search(r"^model name[ \t]*:[ \t]*(\S.*)$", text, re.MULTILINE)
    if model:
        return count or None, printable(model[1].strip(), 200)
    # Arm prints numbers only: Neoverse V2 (Grace) is implementer 0x41, part 0xd4f.
    implementer = re.search(r"^CPU implementer\s*:\s*(0x[0-9a-f]{1,4})$", text, re.MULTILINE)
    part = re.search(r"^CPU part\s*:\s*(0x[0-9a-f]{1,4})$", text, re.MULTILINE)
    arm = f"Arm implementer {implementer[1]} part {part[1]}" if implementer and part else None
    return count or None, arm


def _memory(root: Path) -> int | None:
    text = read_text(root / "proc/meminfo") or ""
    match = re.search(r"^MemTotal:\s*([0-9]{1,15}) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _numa_nodes(root: Path) -> int | None:
    text = read_line(root / "sys/devices/system/node/has_cpu") or ""
    if not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*", text):
        return None
    ranges = (part.partition("-") for part in text.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _memlock() -> int | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _shared_memory(path: Path) -> tuple[int | None, int | None]:
    try:
        status = os.statvfs(path)
    except OSError:
        return None, None
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def _container(root: Path, environment: Mapping[str, str]) -> str | None:
    """What seems to contain us, or ``None``: nothing hints at a container."""
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    cgroup = read_text(root / "proc/1/cgroup") or ""
    return next((name for hint, name in _CGROUP_HINTS.items() if hint in cgroup), None)
