"""A training step on every rank: the loss falls, and all ranks agree on the weights."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_gpucluster import ProcessGroup


def test_training_step(process_group: ProcessGroup) -> None:
    torch.manual_seed(0)
    device = process_group.device
    devices = [process_group.local_rank] if device.type == "cuda" else None
    model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device), device_ids=devices)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(process_group.rank)
    inputs = torch.randn(64, 16, generator=generator).to(device)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2

    weights = [parameter.detach().cpu().tolist() for parameter in model.parameters()]
    assert process_group.exchange(weights) == [weights] * process_group.world_size
