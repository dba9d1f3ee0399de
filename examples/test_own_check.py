"""A test of one's own check: it must fail when the hardware does.

Needs ``pytest_plugins = ["pytester", "pytest_gpucluster.testing.plugin"]`` in conftest.py.
"""

from __future__ import annotations

import pytest

from pytest_gpucluster.testing.plugin import GpuclusterPytester

CHECK = """
import torch, torch.distributed as dist

def test_sum(process_group):
    tensor = torch.ones(8, device=process_group.device)
    dist.all_reduce(tensor)
    assert (tensor == process_group.world_size).all()
"""


@pytest.mark.parametrize("fault", ["corrupt", "kill", "raise_error"])
def test_the_check_names_the_faulty_rank(
    gpucluster_pytester: GpuclusterPytester, fault: str
) -> None:
    gpucluster_pytester.pytester.makepyfile(CHECK)
    gpucluster_pytester.fault(fault, rank=1)
    run = gpucluster_pytester.run("--gpucluster-ranks=2")
    assert run.outcomes == {"failed": 1}
    assert "rank 1: " in run.output
