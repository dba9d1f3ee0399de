"""The GPUs, through NVIDIA's management library and NVIDIA's own Python binding.

Creates no CUDA context. Never raises: what cannot be read is a fact with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpucluster.facts.model import Gpu, GpuPair, Unreadable
from pytest_gpucluster.facts.nvml_binding import NVIDIAS, find_binding, load_binding
from pytest_gpucluster.facts.sysfs import printable


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
    binding, problem, file = find_binding()
    if file is None:
        why = problem or f"no Python module pynvml; pip install {NVIDIAS}"
        return _without(f"NVML cannot be asked: {why}.", binding, problem)
    try:
        load_binding(file)
        from pytest_gpucluster.facts import nvml_calls, nvml_gpu, nvml_links
    except Exception as error:
        said = printable(f"{type(error).__name__}: {error}", 200)
        why = f"{file} cannot be imported ({said}); pip install --force-reinstall {NVIDIAS}"
        return _without(f"NVML cannot be asked: {why}.", binding, why)
    system = nvml_calls.Asker()
    begun = system.attempt("nvmlInit")
    if begun.reason is not None:
        return _without(begun.reason, binding, problem)
    count = system.attempt("nvmlDeviceGetCount")
    if count.reason is not None:
        return _without(count.reason, binding, problem)
    readings = [nvml_gpu.read_gpu(index) for index in range(count.value)]
    handles = {
        reading.gpu.index: reading.handle for reading in readings if reading.gpu.lost is None
    }
    pairs, pair_problems = nvml_links.read_pairs(handles)
    cuda = system.ask("driver cuda", "nvmlSystemGetCudaDriverVersion_v2")
    facts = NvmlFacts(
        gpus=tuple(reading.gpu for reading in readings),
        pairs=pairs,
        driver=nvml_calls.text(system.ask("driver", "nvmlSystemGetDriverVersion")),
        driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        nvml=nvml_calls.text(system.ask("nvml version", "nvmlSystemGetNVMLVersion")),
        nvml_binding=binding,
        nvml_binding_problem=problem,
        # Each once: what the driver lacks it lacks for every GPU.
        unreadable=tuple(
            dict.fromkeys(
                (
                    *system.problems,
                    *(found for reading in readings for found in reading.problems),
                    *pair_problems,
                )
            )
        ),
    )
    system.attempt("nvmlShutdown")
    return facts


def _without(reason: str, binding: str | None, problem: str | None) -> NvmlFacts:
    if problem is not None and problem not in reason:
        reason = f"{reason} Besides, {problem}."
    return NvmlFacts(
        nvml_binding=binding,
        nvml_binding_problem=problem,
        unreadable=(Unreadable("nvml", reason),),
    )
