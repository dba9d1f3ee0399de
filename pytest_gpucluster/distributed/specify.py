"""From a test and this machine: the group of ranks the test runs on."""

from __future__ import annotations

import os

import pytest

from pytest_gpucluster.acceptance import Acceptance
from pytest_gpucluster.collection import is_builtin
from pytest_gpucluster.distributed.mark import parse_mark
from pytest_gpucluster.facts import visible
from pytest_gpucluster.ranks.group import GroupSpec

DEFAULT_CPU_RANKS = 2


def visible_gpus(run: Acceptance) -> list[str]:
    """The GPUs that ranks started now will see."""
    return visible.visible_gpus(run.facts.gpus or (), os.environ.get("CUDA_VISIBLE_DEVICES"))


def specify(item: pytest.Item, run: Acceptance) -> GroupSpec | str:
    """The group an item needs, or the reason why this machine cannot give it."""
    request = parse_mark(item.get_closest_marker("distributed"), item.nodeid)
    if run.enabled and run.mode == "evidence":
        return (
            "nothing is run on the node whose facts are judged (use --gpucluster-level=inventory)"
        )
    on_cpu = run.mode == "rehearsal" or request.backend == "gloo"
    gpus = 0 if on_cpu else len(visible_gpus(run))
    if not gpus and run.mode == "live" and run.enabled and request.backend != "gloo":
        return "no NVIDIA GPU is visible here, and this is not a rehearsal (--gpucluster-rehearse)"
    there = len([gpu for gpu in run.facts.gpus or () if gpu.lost is None])
    if gpus and is_builtin(item.nodeid) and gpus != there:
        return (
            f"CUDA_VISIBLE_DEVICES shows {gpus} of {there} GPUs: unset it, so that all are tested"
        )
    if not gpus and request.backend == "nccl":
        return "the test asks for NCCL and no NVIDIA GPU is used here"
    available = gpus or run.settings["ranks"] or max(DEFAULT_CPU_RANKS, request.largest)
    wanted = getattr(getattr(item, "callspec", None), "params", {}).get("process_group")
    size = wanted or request.world_size
    if size == "all" or isinstance(size, tuple):
        size = available
    if size > available:
        what = "GPUs are visible" if gpus else "CPU ranks were asked for (--gpucluster-ranks)"
        return f"world_size={size}, but {available} {what}"
    return GroupSpec(
        world_size=size,
        backend="nccl" if gpus else "gloo",
        isolation=request.isolation,
        deadline_s=(request.timeout or run.settings["timeout"]) + _soak_s(item, run),
        environment=request.env,
        observe=not is_builtin(item.nodeid),  # those measure microseconds, and check the data
    )


def _soak_s(item: pytest.Item, run: Acceptance) -> float:
    """The time a soak takes by order, which is no hang."""
    level = item.get_closest_marker("gpucluster_level")
    return float(run.settings["soak"]) if level and level.args[0] == "soak" else 0.0
