"""Acceptance tests for GPU clusters: the public names, nothing else.

PYTEST_DONT_REWRITE: ranks are forked from a server that has imported this package before
pytest could rewrite it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pytest_gpucluster.ranks.group import ProcessGroup
    from pytest_gpucluster.requirements import (
        requires_compute_capability,
        requires_cuda,
        requires_driver,
        requires_gpu_memory,
        requires_gpus,
        requires_infiniband,
        requires_nccl,
        requires_nodes,
        requires_nvlink,
        requires_nvswitch,
        requires_rdma,
        requires_torch,
    )
    from pytest_gpucluster.verdict.recorder import Findings

__all__ = [
    "Findings",
    "ProcessGroup",
    "__version__",
    "requires_compute_capability",
    "requires_cuda",
    "requires_driver",
    "requires_gpu_memory",
    "requires_gpus",
    "requires_infiniband",
    "requires_nccl",
    "requires_nodes",
    "requires_nvlink",
    "requires_nvswitch",
    "requires_rdma",
    "requires_torch",
]


def __getattr__(name: str) -> Any:
    # Resolved late: the readers import this package in processes that must start in
    # milliseconds and need none of it.
    if name == "ProcessGroup":
        from pytest_gpucluster.ranks.group import ProcessGroup

        return ProcessGroup
    if name == "Findings":
        from pytest_gpucluster.verdict.recorder import Findings

        return Findings
    if name.startswith("requires_") and name in __all__:
        from pytest_gpucluster import requirements

        return getattr(requirements, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
