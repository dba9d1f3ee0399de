"""The requires_* needs of versions and sizes, and the arguments all of them refuse."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster import needs
from pytest_gpucluster.facts.model import Host, NodeFacts, Software
from tests.unit.asking import (
    DEAD_DRIVER,
    MISSING_AS_IT_SHOULD,
    MISSING_BUT_SUPPOSED,
    MISSING_WHO_KNOWS,
    UNKNOWN,
    ask,
    gpu,
    node,
    supposed,
    unmet,
)

# Versions


SUBJECTS = [
    (needs.driver, "driver", "driver"),
    (needs.cuda, "torch_cuda", "cuda"),
    (needs.nccl, "torch_nccl", "nccl"),
    (needs.torch, "torch", "torch"),
]


@pytest.mark.parametrize(("make", "fact", "expectation"), SUBJECTS)
def test_versions(make: Any, fact: str, expectation: str) -> None:
    found = NodeFacts(Host("n"), software=Software(**{fact: "12.4"}))
    assert ask(make(">=12,<13"), found).met is True
    assert unmet(ask(make(">=13"), found)) == MISSING_WHO_KNOWS
    answer = ask(make(">=13"), found, supposed(**{expectation: ">=13"}))
    assert unmet(answer) == MISSING_BUT_SUPPOSED
    assert "12.4" in answer.reason
    assert ">=13" in answer.reason
    assert unmet(ask(make(">=13"), found, supposed(**{expectation: ">=12"}))) == (
        MISSING_AS_IT_SHOULD
    )
    assert unmet(ask(make(">=12"), NodeFacts(Host("n")))) == UNKNOWN


def test_a_local_or_pre_release_build_satisfies_its_release() -> None:
    for version in ("2.13.0+cu130", "2.13.0.dev20260101"):
        facts = NodeFacts(Host("n"), software=Software(torch=version))
        assert ask(needs.torch(">=2.12"), facts).met is True


def test_a_version_nobody_can_read_is_unknown() -> None:
    facts = NodeFacts(Host("n"), software=Software(driver="R535 (custom)"))
    assert unmet(ask(needs.driver(">=535"), facts)) == UNKNOWN


# Compute capability and memory


def test_compute_capability_is_compared_by_number() -> None:
    need = needs.compute_capability("9.0")
    assert ask(need, node(gpu(compute_capability="10.0"))).met is True
    assert ask(need, node(gpu(compute_capability="9.0"))).met is True
    lower = ask(need, node(gpu(0, compute_capability="9.0"), gpu(1, compute_capability="8.9")))
    assert unmet(lower) == MISSING_AS_IT_SHOULD
    assert "GPU1" in lower.reason
    assert unmet(ask(need, node(gpu()))) == UNKNOWN
    assert unmet(ask(need, DEAD_DRIVER)) == UNKNOWN


def test_gpu_memory_is_that_of_the_smallest() -> None:
    need = needs.gpu_memory(80)
    facts = node(gpu(0, memory_bytes=int(85e9)), gpu(1, memory_bytes=int(40e9)))
    assert ask(need, node(gpu(memory_bytes=int(80e9)))).met is True
    assert unmet(ask(need, facts, supposed(memory_bytes_min=int(81e9)))) == MISSING_BUT_SUPPOSED
    assert unmet(ask(need, facts, supposed(memory_bytes_min=int(40e9)))) == MISSING_AS_IT_SHOULD
    assert "GPU1" in ask(need, facts).reason
    assert unmet(ask(need, node(gpu(0, memory_bytes=int(85e9)), gpu(1)))) == UNKNOWN
    assert unmet(ask(need, DEAD_DRIVER)) == UNKNOWN


# Nodes


def test_this_run_has_one_node() -> None:
    assert ask(needs.nodes(1), node()).met is True
    assert unmet(ask(needs.nodes(2), node())) == MISSING_AS_IT_SHOULD


def test_what_needs_no_hardware_can_be_judged_in_a_rehearsal() -> None:
    assert not needs.torch(">=2").hardware
    assert not needs.nodes(1).hardware
    for need in (needs.gpus(1), needs.nvlink(), needs.rdma(), needs.driver(">=1")):
        assert need.hardware


# Arguments


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (needs.gpus, (0,)),
        (needs.gpus, (True,)),
        (needs.gpus, ("8",)),
        (needs.nvlink, (0,)),
        (needs.nvlink, (1, "yes")),
        (needs.infiniband, (-1,)),
        (needs.rdma, ("fast",)),
        (needs.rdma, (True,)),
        (needs.driver, (535,)),
        (needs.driver, ("535",)),
        (needs.cuda, ("new",)),
        (needs.nccl, (None,)),
        (needs.torch, (">=two",)),
        (needs.compute_capability, (9.0,)),
        (needs.compute_capability, ("9",)),
        (needs.compute_capability, ("sm_90",)),
        (needs.gpu_memory, (-1,)),
        (needs.gpu_memory, ("80GB",)),
        (needs.nodes, (0,)),
        (needs.nodes, (1.5,)),
    ],
)
def test_wrong_arguments_are_refused_by_name(make: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)) as wrong:
        make(*arguments)
    assert repr(arguments[-1]) in str(wrong.value)
