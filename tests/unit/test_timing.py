"""How long an operation takes: iterations, batches, and what the ranks agree on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pytest_gpucluster.measure.timing import batches, choose_iterations, time_iterations

CPU = torch.device("cpu")


@dataclass
class Group:
    """One rank of two; the other one answers what ``others`` says."""

    others: list[Any]
    device: torch.device = CPU
    log: list[str] = field(default_factory=list)

    def barrier(self) -> None:
        self.log.append("barrier")

    def exchange(self, value: Any) -> list[Any]:
        other = self.others.pop(0)
        return [value, other(value) if callable(other) else other]


def test_the_time_of_one_call_is_that_of_all_divided_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]

    def work() -> None:
        now[0] += 0.25

    monkeypatch.setattr("pytest_gpucluster.measure.timing.time.perf_counter", lambda: now[0])
    assert time_iterations(work, 4, CPU) == 0.25
    assert now == [101.0], "four calls, no more"


@pytest.mark.parametrize(
    ("seconds", "batch", "iterations"),
    [(0.01, 1.0, 100), (0.3, 1.0, 3), (10.0, 1.0, 1), (1e-6, 1.0, 1000), (0.0, 1.0, 1000)],
)
def test_the_iterations_fill_a_batch_within_bounds(
    seconds: float, batch: float, iterations: int
) -> None:
    assert choose_iterations(seconds, batch) == iterations


def measure(group: Group, count: int = 3, budget_s: float = 0.3) -> tuple[Any, int]:
    def run() -> None:
        group.log.append("run")

    def prepare() -> None:
        group.log.append("prepare")

    return batches(group, run, prepare, count, budget_s)  # type: ignore[arg-type]


def test_the_slowest_ranks_trial_decides_how_many_iterations_all_do() -> None:
    group = Group([0.02, lambda mine: mine])
    _, iterations = measure(group)
    assert iterations == 5  # 0.1 s per batch / 0.02 s
    warm_up = 2 + 3
    assert group.log.count("run") == warm_up + 3 * iterations


def test_every_batch_starts_prepared_and_together() -> None:
    group = Group([0.1, lambda mine: mine])
    measure(group)
    after_trial = group.log[1 + 2 + 3 :]
    assert after_trial == ["prepare", "barrier", "run"] * 3
    assert group.log[0] == "prepare", "the trial must not run on untouched memory"


def test_the_times_come_by_batch_then_by_rank() -> None:
    group = Group([0.1, [1.0, 2.0, 3.0]])
    times, _ = measure(group)
    assert [batch[1] for batch in times] == [1.0, 2.0, 3.0]
    assert all(len(batch) == 2 and batch[0] < 1 for batch in times)


def test_a_rank_that_answers_fewer_batches_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        measure(Group([0.1, [1.0, 2.0]]))
