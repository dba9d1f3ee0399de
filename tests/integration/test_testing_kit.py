"""What teams test their own checks with: a fake node, faulty ranks, a look at the verdict."""

from __future__ import annotations

import pytest

from pytest_gpucluster.testing.machines import fault
from pytest_gpucluster.testing.plugin import GpuclusterPytester

SUMS = """
import torch, torch.distributed as dist

def test_sum(process_group):
    tensor = torch.ones(8)
    dist.all_reduce(tensor)
    assert (tensor == 2).all()

def test_other(process_group):
    tensor = torch.full((1,), float(process_group.rank))
    dist.broadcast(tensor, 0)
    assert tensor.item() == 0
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kill", "rank 1: died (signal SIGKILL)"),
        ("segfault", "rank 1: died (signal SIGSEGV)"),
        ("leave", "rank 1: died (exit code 0)"),
        ("raise_error", "rank 1: RuntimeError: an injected error"),
        ("corrupt", "rank 1: assert"),
        ("stop", "rank 1 stopped (SIGSTOP)"),
    ],
)
def test_a_fault_hits_the_rank_and_the_test_it_is_meant_for(
    gpucluster_pytester: GpuclusterPytester, name: str, says: str
) -> None:
    gpucluster_pytester.pytester.makepyfile(SUMS)
    gpucluster_pytester.fault(name, rank=1, test="test_sum")
    run = gpucluster_pytester.run("--gpucluster-ranks=2", "--gpucluster-timeout=3s")
    assert run.outcomes == {"failed": 1, "passed": 1}, run.output
    assert says in run.output
    assert run.verdict is None


def test_a_delay_makes_collectives_slow_and_nothing_else(
    gpucluster_pytester: GpuclusterPytester,
) -> None:
    gpucluster_pytester.pytester.makepyfile(SUMS)
    gpucluster_pytester.fault("delay", rank="all")
    run = gpucluster_pytester.run("--gpucluster-ranks=2", "-v")
    assert run.outcomes == {"passed": 2}
    assert "test_sum PASSED (2 ranks, 0.1" in run.output, run.output


def test_a_fake_node_is_judged(gpucluster_pytester: GpuclusterPytester) -> None:
    gpucluster_pytester.machine("h100x8", fault("links_down", gpu=2))
    run = gpucluster_pytester.run("--gpucluster", "--gpucluster-level=inventory")
    assert run.exit_code == 1
    assert run.verdict is not None
    assert run.verdict["verdict"] == "rejected"
    found = {(f["code"], f["component"]) for f in run.findings if f["severity"] == "fail"}
    assert ("nvlink.links_down", "GPU2") in found
