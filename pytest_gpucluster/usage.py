"""Whether a test uses this plugin at all; all that a run without such tests pays for."""

from __future__ import annotations

import pytest

MARKS = (
    "distributed",
    "gpucluster_level",
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
)


def is_distributed(item: object) -> bool:
    """Whether a test asks for ``process_group``, directly or through a fixture."""
    return "process_group" in getattr(item, "fixturenames", ())


def is_marked(item: pytest.Item) -> bool:
    """Whether a test bears one of `MARKS`."""
    return any(mark.name in MARKS for mark in item.iter_markers())
