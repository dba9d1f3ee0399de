"""Which of a node's GPUs CUDA will show to a process."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpucluster.facts.model import Gpu


def visible_gpus(gpus: Sequence[Gpu], wanted: str | None) -> list[str]:
    """UUIDs (indices where they are unknown) of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves,
    in CUDA's order. ``wanted`` is the variable's value, ``None`` if it is not set.

    CUDA ignores everything from the first entry on that it does not know or has seen before.
    """
    known = {str(gpu.index): gpu.uuid or str(gpu.index) for gpu in gpus}
    if wanted is None:
        return list(known.values())
    chosen: list[str] = []
    for entry in filter(None, (part.strip() for part in wanted.split(","))):
        match = known.get(entry) or next((u for u in known.values() if u.startswith(entry)), None)
        if match is None or match in chosen:
            break
        chosen.append(match)
    return chosen
