"""Matrix products: how fast, and whether the result is right."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.measure.statistics import Interval, summarise
from pytest_gpucluster.measure.timing import choose_iterations, time_iterations

if TYPE_CHECKING:
    import torch

BATCHES = 7
LARGEST_ENTRY = 8  # products of whole numbers this small add up exactly in float32


@dataclass(frozen=True)
class Product:
    """One device's matrix product: TFLOP/s, a fingerprint, rows whose checksum is wrong."""

    tflops: Interval
    fingerprint: str
    wrong_rows: int


def multiply(size: int, device: torch.device, budget_s: float, seed: int = 7) -> Product:
    """Multiply two ``size`` x ``size`` float32 matrices of small whole numbers.

    Every entry is exact, so all devices must give the same bits; row sums are compared with
    A (B 1) in 64-bit integers on the host (Freivalds' identity with the vector of ones).
    2 size^3 operations per product.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape = (size, size)
    a = torch.randint(-LARGEST_ENTRY, LARGEST_ENTRY + 1, shape, generator=generator)
    b = torch.randint(-LARGEST_ENTRY, LARGEST_ENTRY + 1, shape, generator=generator)
    on_a, on_b = a.to(device, torch.float32), b.to(device, torch.float32)
    product = on_a @ on_b
    sums = product.to(torch.float64).sum(dim=1).cpu()
    wrong = int((sums != (a @ b.sum(dim=1)).to(torch.float64)).sum())
    trial = time_iterations(lambda: on_a @ on_b, 3, device)
    iterations = choose_iterations(trial, budget_s / BATCHES)
    times = [time_iterations(lambda: on_a @ on_b, iterations, device) for _ in range(BATCHES)]
    return Product(
        tflops=summarise([2 * size**3 / seconds / 1e12 for seconds in times]),
        fingerprint=hashlib.sha256(product.cpu().numpy().tobytes()).hexdigest(),
        wrong_rows=wrong,
    )
