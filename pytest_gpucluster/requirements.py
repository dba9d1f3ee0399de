"""The ``requires_*`` marks: declared, validated, and what an unmet one means.

Hardware that this node is not supposed to have skips a test; hardware that it is supposed to
have (catalogue or profile) and lacks fails it; where nobody knows, it is unverified.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn

import pytest

from pytest_gpucluster import acceptance, needs
from pytest_gpucluster.collection import is_builtin
from pytest_gpucluster.fixtures import findings_of

if TYPE_CHECKING:
    from pytest_gpucluster.acceptance import Acceptance

requires_gpus = pytest.mark.requires_gpus
requires_nvlink = pytest.mark.requires_nvlink
requires_nvswitch = pytest.mark.requires_nvswitch
requires_infiniband = pytest.mark.requires_infiniband
requires_rdma = pytest.mark.requires_rdma
requires_driver = pytest.mark.requires_driver
requires_cuda = pytest.mark.requires_cuda
requires_nccl = pytest.mark.requires_nccl
requires_torch = pytest.mark.requires_torch
requires_compute_capability = pytest.mark.requires_compute_capability
requires_gpu_memory = pytest.mark.requires_gpu_memory
requires_nodes = pytest.mark.requires_nodes

MARKS: dict[str, Callable[..., needs.Need]] = {
    "requires_gpus": needs.gpus,
    "requires_nvlink": needs.nvlink,
    "requires_nvswitch": needs.nvswitch,
    "requires_infiniband": needs.infiniband,
    "requires_rdma": needs.rdma,
    "requires_driver": needs.driver,
    "requires_cuda": needs.cuda,
    "requires_nccl": needs.nccl,
    "requires_torch": needs.torch,
    "requires_compute_capability": needs.compute_capability,
    "requires_gpu_memory": needs.gpu_memory,
    "requires_nodes": needs.nodes,
}


@dataclass(frozen=True)
class Gate:
    """Why a test does not run: ``kind`` decides how that counts."""

    kind: Literal["not_applicable", "unverified", "fail"]
    reason: str
    mark: str = ""


def mark_lines() -> list[str]:
    """Signatures and meanings for ``pytest --markers``."""
    return [f"{_signature(name)}: {inspect.getdoc(make)}" for name, make in MARKS.items()]


def validate(item: pytest.Item) -> None:
    """Raise `pytest.UsageError` for a mark with wrong arguments."""
    for mark in item.iter_markers():
        if mark.name in MARKS:
            _need(mark, item.nodeid)


def evaluate(item: pytest.Item) -> Gate | None:
    """The first unmet mark of a test, or ``None``."""
    run = acceptance.of(item.config)
    for mark in item.iter_markers():
        if mark.name in MARKS:
            gate = _judge(_need(mark, item.nodeid), _written(mark), run)
            if gate is not None:
                return gate
    return None


def enforce(item: pytest.Item) -> None:
    """Skip or fail a test that must not run here; records why."""
    gate = evaluate(item)
    if gate is not None:
        record(item, gate)
        _stop(gate)


def record(item: pytest.Item, gate: Gate) -> None:
    """Attach to the test's report why it did not run."""
    recorder = findings_of(item)
    if gate.kind == "not_applicable":
        recorder.not_applicable(gate.reason)
    elif gate.kind == "unverified":
        recorder.unverified(gate.reason)
    else:
        recorder.report(
            "fail",
            "requirement.missing",
            "node",
            f"{gate.mark}: {gate.reason}",
            next_step="This node is supposed to have it (catalogue or profile). Find out why it "
            "does not, or correct the profile.",
        )


def missing_ranks(item: pytest.Item, reason: str) -> Gate:
    """What it means that this machine cannot give a test the ranks it asks for.

    ``--gpucluster-missing`` is for the user's tests: it excuses no built-in check.
    """
    run = acceptance.of(item.config)
    policy = "auto" if is_builtin(item.nodeid) else run.settings["missing"]
    if run.mode == "rehearsal" or not run.enabled or policy == "skip":
        return Gate("not_applicable", reason)
    if policy == "fail":
        return Gate("fail", reason, "process_group")
    return Gate("unverified", reason)


def _stop(gate: Gate) -> NoReturn:
    if gate.kind == "fail":
        pytest.fail(f"{gate.mark}: {gate.reason}", pytrace=False)
    prefix = "unverified: " if gate.kind == "unverified" else ""
    pytest.skip(prefix + gate.reason)


def _judge(need: needs.Need, written: str, run: Acceptance) -> Gate | None:
    if run.mode == "rehearsal" and need.hardware:
        return Gate("not_applicable", f"{written}: a rehearsal judges no hardware", written)
    answer = need.ask(run.facts, run.expectations)
    if answer.met:
        return None
    policy = run.settings["missing"]
    if answer.met is False and policy != "auto":
        return Gate("fail" if policy == "fail" else "not_applicable", answer.reason, written)
    if answer.met is None or answer.supposed is None:
        return Gate("unverified", answer.reason, written)
    return Gate("fail" if answer.supposed else "not_applicable", answer.reason, written)


def _need(mark: pytest.Mark, nodeid: str) -> needs.Need:
    try:
        return MARKS[mark.name](*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        problem = str(error).removeprefix(f"{MARKS[mark.name].__name__}() ")
        raise pytest.UsageError(
            f"{nodeid}: @{_written(mark)}: {problem}. Use {_signature(mark.name)}"
        ) from None


def _signature(name: str) -> str:
    shown = inspect.signature(MARKS[name])
    plain = [str(p.replace(annotation=p.empty)) for p in shown.parameters.values()]
    return f"{name}({', '.join(plain)})"


def _written(mark: pytest.Mark) -> str:
    shown = [*map(repr, mark.args), *(f"{k}={v!r}" for k, v in mark.kwargs.items())]
    return f"{mark.name}({', '.join(shown)})" if shown else mark.name
