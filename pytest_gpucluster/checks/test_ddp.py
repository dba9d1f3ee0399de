"""DistributedDataParallel: gradients equal on all ranks, and equal to one process's."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.checks.compare import skip_if_alone
from pytest_gpucluster.ranks.group import ProcessGroup
from pytest_gpucluster.verdict.recorder import Findings

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.gpucluster_level("standard"), pytest.mark.distributed(timeout=120)]

BATCH = 8  # samples per rank
FEATURES, HIDDEN, CLASSES = 48, 96, 10
STEPS = 3
# Backward through three layers adds up at most this many rounding errors per element.
LONGEST_SUM = FEATURES + 2 * HIDDEN + CLASSES


def test_gradients_equal_across_ranks(process_group: ProcessGroup, findings: Findings) -> None:
    """After DDP's reduction every rank holds the same gradients, bit for bit.

    Needs: two ranks. Threshold: equal bits for every parameter in each of three steps; the
    majority's are taken for right. When it fails: the rank named computes or receives wrong
    values.
    """
    skip_if_alone(process_group, findings)
    for step in range(STEPS):
        gradients = _ddp_gradients(process_group, step)
        prints = process_group.exchange([_fingerprint(g) for g in gradients.values()])
        for position, name in enumerate(gradients):
            of_ranks = [entry[position] for entry in prints]
            usual, count = Counter(of_ranks).most_common(1)[0]
            odd = [rank for rank, value in enumerate(of_ranks) if value != usual]
            if not odd:
                continue
            majority = count * 2 > len(of_ranks)
            findings.report(
                "fail",
                "ddp.gradients_differ",
                f"rank {odd[0]}" if majority else "all ranks",
                f"gradient of {name} differs after the reduction in step {step}: "
                + (
                    f"ranks {odd} against the other {count}."
                    if majority
                    else "no two groups of ranks have a majority."
                ),
                next_step="Run the checks again; if the same rank differs, replace its GPU.",
                measured=f"{len(set(of_ranks))} different gradients",
                expected="one",
            )
            return


def test_gradients_equal_single_process(process_group: ProcessGroup, findings: Findings) -> None:
    """DDP's gradients are those of one process on the concatenated batch.

    Needs: two ranks. Threshold: relative difference of at most machine epsilon x the number of
    terms added up (float64). When it fails: the averaging is wrong, not just inexact.
    """
    skip_if_alone(process_group, findings)
    import torch

    bound = torch.finfo(torch.float64).eps * LONGEST_SUM * BATCH * process_group.world_size
    for step in range(STEPS):
        mine = _ddp_gradients(process_group, step)
        reference = _reference_gradients(process_group, step)
        worst, where = 0.0, ""
        for name, gradient in mine.items():
            difference = (gradient.cpu() - reference[name].cpu()).abs().max()
            scale = reference[name].abs().max().cpu().clamp_min(1e-300)
            relative = float(difference / scale)
            if not math.isfinite(relative):
                relative = math.inf  # NaN would lose every comparison
            if relative > worst:
                worst, where = relative, name
        of_ranks = process_group.exchange([worst, where])
        bad = {rank: entry for rank, entry in enumerate(of_ranks) if entry[0] > bound}
        if bad:
            rank, (difference, name) = next(iter(bad.items()))
            everyone = len(bad) == process_group.world_size
            findings.report(
                "fail",
                "ddp.gradients_wrong",
                "all ranks" if everyone else f"rank {rank}",
                f"gradient of {name} is off by {difference:.3g} relative to one process on the "
                f"whole batch (step {step}), allowed {bound:.3g}.",
                next_step="Check the versions of PyTorch and NCCL on all ranks; then the GPU "
                "named, with the numerics checks.",
                measured=float(f"{difference:.6g}") if math.isfinite(difference) else "not finite",
                expected=f"<={bound:.3g}",
                source="float64 epsilon x terms added up",
            )
            return


def _model(device: torch.device) -> torch.nn.Module:
    import torch

    torch.manual_seed(1234)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN),
        torch.nn.GELU(),
        torch.nn.LayerNorm(HIDDEN),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN, CLASSES),
    ).to(device=device, dtype=torch.float64)


def _batch(rank: int, step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(BATCH, FEATURES, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return inputs.to(device), targets.to(device)


def _ddp_gradients(group: ProcessGroup, step: int) -> dict[str, torch.Tensor]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    devices = [group.local_rank] if group.backend == "nccl" else None
    model = DistributedDataParallel(_model(group.device), device_ids=devices)
    inputs, targets = _batch(group.rank, step, group.device)
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    return _gradients(model.module)


def _reference_gradients(group: ProcessGroup, step: int) -> dict[str, torch.Tensor]:
    import torch

    model = _model(group.device)
    parts = [_batch(rank, step, group.device) for rank in range(group.world_size)]
    inputs = torch.cat([part[0] for part in parts])
    targets = torch.cat([part[1] for part in parts])
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    return _gradients(model)


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise AssertionError(f"{name} has no gradient")
        found[name] = parameter.grad.detach()
    return found


def _fingerprint(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.cpu().contiguous().numpy().tobytes()).hexdigest()
