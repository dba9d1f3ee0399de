"""What a golden node is, as the text of a profile."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_gpucluster.expectations.catalogue import find_gpu
from pytest_gpucluster.expectations.profile_errors import ProfileError
from pytest_gpucluster.facts.model import Gpu, NetworkPort, NodeFacts

T = TypeVar("T")


def golden_text(facts: NodeFacts) -> str:
    """The profile of this node as TOML.

    What could not be read or differs between the GPUs stays out. Raises `ProfileError` with the
    reasons if the node is no model for others.
    """
    if reasons := unfit(facts):
        raise ProfileError(f"this node is no model for others: {'; '.join(reasons)}.")
    import tomli_w

    return tomli_w.dumps(_profile_of(facts))


def unfit(facts: NodeFacts) -> list[str]:
    """Why these facts cannot serve as a golden node; empty if they can."""
    if facts.gpus is None:
        return [f"its GPUs could not be read ({facts.why_unreadable('nvml') or 'NVML failed'})"]
    if not facts.gpus:
        return ["it has no NVIDIA GPU"]
    reasons = [f"{gpu.label} is lost ({gpu.lost})" for gpu in facts.gpus if gpu.lost]
    if reasons:
        return reasons
    names = {gpu.name for gpu in facts.gpus}
    if None in names:
        return ["not every GPU tells its name"]
    if len(names) > 1:
        return [f"its GPUs are mixed ({', '.join(sorted(str(n) for n in names))})"]
    return [*_memory_faults(facts.gpus), *_link_faults(facts.gpus)]


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step; raises `ProfileError`."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ProfileError(f"{path}: cannot be written: {error.strerror}.") from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be written: {error.strerror}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _memory_faults(gpus: tuple[Gpu, ...]) -> list[str]:
    faults = []
    for gpu in gpus:
        rows = gpu.remapped_rows
        if rows and (rows.failed or rows.pending):
            faults.append(f"{gpu.label} has a row remapping {'failed' if rows.failed else 'due'}")
        if gpu.ecc and gpu.ecc.uncorrected_volatile:
            faults.append(f"{gpu.label} has uncorrectable memory errors")
    return faults


def _link_faults(gpus: tuple[Gpu, ...]) -> list[str]:
    counts = [(gpu.label, gpu.active_links) for gpu in gpus]
    model = find_gpu(gpus[0].name or "")
    wired = model is not None and model.nvlink_wiring in ("mesh", "mesh_or_switch", "switch")
    full = max((count for _, count in counts if count is not None), default=0)
    if model and wired and len(gpus) > 1 and model.is_certain("nvlink_links"):
        full = model.nvlink_links
    return [
        f"{label} has {count} of {full} NVLinks up"
        for label, count in counts
        if count is not None and count < full and (count > 0 or wired or model is None)
    ]


def _profile_of(facts: NodeFacts) -> dict[str, Any]:
    gpus = facts.gpus or ()
    first = gpus[0]
    ports = [p for p in facts.network or () if p.kind != "ethernet" and p.state == "ACTIVE"]
    taken = f", taken {facts.taken}" if facts.taken else ""
    sections: dict[str, dict[str, Any]] = {
        "gpus": {
            "count": len(gpus),
            "model": [first.name],
            "memory_gb": _gigabytes(min((g.memory_bytes or 0 for g in gpus), default=0)),
            "ecc": same([g.ecc.enabled if g.ecc else None for g in gpus]),
            "mig": same([g.mig_enabled for g in gpus]),
            "persistence": same([g.persistence for g in gpus]),
        },
        "nvlink": {
            "links": same([g.active_links for g in gpus]),
            "version": same(_link_versions(gpus)),
            "all_pairs": _all_pairs(facts),
        },
        "fabric": {"completed": _completed(gpus)},
        "pcie": {
            "generation": same([g.pcie.max_generation for g in gpus]),
            "width": same([g.pcie.max_width for g in gpus]),
        },
        "p2p": {"required": _peers_reach(facts)},
        "network": _network(ports),
        "software": {
            "driver": _exactly(facts.software.driver),
            "cuda": _exactly(facts.software.torch_cuda),
            "nccl": _exactly(facts.software.torch_nccl),
            "torch": _exactly(facts.software.torch),
        },
        "power": {"limit_w": same([g.power.limit for g in gpus])},
        "host": {
            "memlock_unlimited": True if facts.host.memlock_bytes == -1 else None,
            "shm_gb": _gigabytes(facts.host.shm_bytes or 0),
        },
    }
    written: dict[str, Any] = {"description": f"golden node {facts.host.name}{taken}"[:500]}
    for name, section in sections.items():
        if kept := {key: value for key, value in section.items() if value is not None}:
            written[name] = kept
    return written


def _link_versions(gpus: tuple[Gpu, ...]) -> list[str | None]:
    return [link.version for gpu in gpus for link in gpu.nvlinks or () if link.active]


def same(values: Sequence[T | None]) -> T | None:
    """The value that all share; ``None`` if they differ or one is unknown."""
    return values[0] if values and all(value == values[0] for value in values) else None


def _gigabytes(size: int) -> float | None:
    return int(size / 1e8) / 10 or None


def _all_pairs(facts: NodeFacts) -> bool | None:
    if not facts.pairs or any(pair.nvlink == "unknown" for pair in facts.pairs):
        return None
    return all(pair.nvlink == "ok" for pair in facts.pairs) or None


def _peers_reach(facts: NodeFacts) -> bool | None:
    if not facts.pairs:
        return None
    return all(pair.read == "ok" and pair.write == "ok" for pair in facts.pairs) or None


def _completed(gpus: tuple[Gpu, ...]) -> bool | None:
    return all(gpu.fabric and gpu.fabric.state == "completed" for gpu in gpus) or None


def _network(ports: list[NetworkPort]) -> dict[str, Any]:
    kind = same([port.kind for port in ports])
    if kind is None:
        return {}
    return {
        "ports": len(ports),
        "kind": kind,
        "rate_gbps": same([port.rate_gbps for port in ports]),
        "required": True,
    }


def _exactly(version: str | None) -> str | None:
    """``==`` the public part of a version; ``None`` where it is no version."""
    from packaging.version import InvalidVersion, Version

    try:
        return f"=={Version(version).public}" if version else None
    except InvalidVersion:
        return None
