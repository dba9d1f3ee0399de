"""What a test on ranks costs: ours in three isolations beside torch's own harnesses.

``python benchmarks/engine.py`` runs trivial all-reduce tests (one number, its value checked) on
Gloo, each mode in a process of its own and in turn, and prints milliseconds per test. See
benchmarks/README.md for how to read it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from engine_modes import OURS, TORCHS, ModeFailed, Samples, run

MODES = (*OURS, *TORCHS)
FEWER = {"MultiProcessTestCase": 6, "spawn per test": 6}  # these take seconds per test
GROUP_MS = 30.0
TIMES_FASTER = 25.0
HEADER = (
    f"{'mode':24}{'ranks':>6}{'tests':>6}{'median ms':>11}{'p95 ms':>10}{'first ms':>10}"
    f"{'leader CPU':>12}{'leader busy':>12}{'USS MB':>8}"
)


@dataclass(frozen=True)
class Figure:
    """One mode at one number of ranks: ms per test, the first of each round apart.

    ``tests`` is the number of tests timed, over all rounds. The leader is the process that
    starts the ranks and waits for them: its CPU time per test, and the time it did not wait
    (CPU, or ready to run while others had the cores; None where the kernel does not say).
    ``memory_mb`` is the USS of a rank, the median over ranks and rounds.
    """

    mode: str
    ranks: int
    tests: int
    median_ms: float
    p95_ms: float
    first_ms: float
    leader_cpu_ms: float
    leader_busy_ms: float | None
    memory_mb: float


@dataclass(frozen=True)
class Goal:
    goal: str
    met: bool


def figure(mode: str, ranks: int, rounds: Sequence[Samples]) -> Figure:
    wall = sorted(value for samples in rounds for value in samples.wall_s[1:])
    cpu = [value for samples in rounds for value in samples.cpu_s[1:]]
    busy = [
        running + ready
        for samples in rounds
        for running, ready in zip(samples.cpu_s[1:], (samples.ready_s or [])[1:], strict=False)
    ]
    return Figure(
        mode=f"ours, {mode}" if mode in OURS else mode,
        ranks=ranks,
        tests=len(wall),
        median_ms=1e3 * statistics.median(wall),
        p95_ms=1e3 * wall[math.ceil(0.95 * len(wall)) - 1],
        first_ms=1e3 * statistics.median(samples.wall_s[0] for samples in rounds),
        leader_cpu_ms=1e3 * statistics.median(cpu),
        leader_busy_ms=1e3 * statistics.median(busy) if busy else None,
        memory_mb=statistics.median(value for samples in rounds for value in samples.memory_mb),
    )


def goals(figures: Sequence[Figure]) -> list[Goal]:
    """What the engine is meant to reach, and whether it did in this run."""
    median = {(figure.mode, figure.ranks): figure.median_ms for figure in figures}
    told = []
    for ranks in sorted({figure.ranks for figure in figures}):
        ours = {isolation: median.get((f"ours, {isolation}", ranks)) for isolation in OURS}
        shared, group, process = ours["shared"], ours["group"], ours["process"]
        continuous = median.get(("MultiProcContinuousTest", ranks))
        per_test = median.get(("MultiProcessTestCase", ranks))
        if shared is not None and continuous is not None:
            text = f"shared {shared:.2f} ms <= MultiProcContinuousTest {continuous:.2f} ms"
            told.append(Goal(f"{ranks} ranks: {text}", shared <= continuous))
        if group is not None and ranks == 2:
            text = f"group {group:.2f} ms < {GROUP_MS:.0f} ms"
            told.append(Goal(f"{ranks} ranks: {text}", group < GROUP_MS))
        if process is not None and per_test is not None:
            times = per_test / process
            text = f"process {times:.0f} >= {TIMES_FASTER:.0f} times faster than"
            text += " MultiProcessTestCase"
            told.append(Goal(f"{ranks} ranks: {text}", times >= TIMES_FASTER))
    return told


def measure(
    modes: Sequence[str], all_ranks: Sequence[int], tests: int, rounds: int
) -> tuple[list[Figure], list[str]]:
    """The figures, and the names of the modes that failed.

    Every round runs every mode once, so that load on the machine hits all alike.
    """
    taken: dict[tuple[str, int], list[Samples]] = {}
    failed: dict[tuple[str, int], None] = {}
    for number in range(rounds):
        for ranks in all_ranks:
            for mode in modes:
                if (mode, ranks) in failed:
                    continue
                print(f"round {number + 1}: {mode}, {ranks} ranks", file=sys.stderr, flush=True)
                timed = math.ceil(min(tests, FEWER.get(mode, tests)) / rounds)
                try:
                    taken.setdefault((mode, ranks), []).append(run(mode, ranks, 1 + timed))
                except ModeFailed as error:
                    failed[mode, ranks] = None
                    print(f"FAILED: {mode}, {ranks} ranks: {error}", flush=True)
    complete = [key for key in taken if key not in failed]
    figures = [figure(mode, ranks, taken[mode, ranks]) for mode, ranks in complete]
    return figures, [f"{mode}, {ranks} ranks" for mode, ranks in failed]


def row(figure: Figure) -> str:
    busy = "-" if figure.leader_busy_ms is None else f"{figure.leader_busy_ms:.2f}"
    return (
        f"{figure.mode:24}{figure.ranks:6}{figure.tests:6}{figure.median_ms:11.2f}"
        f"{figure.p95_ms:10.2f}{figure.first_ms:10.0f}{figure.leader_cpu_ms:12.2f}{busy:>12}"
        f"{figure.memory_mb:8.1f}"
    )


def conditions() -> dict[str, object]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": version("torch"),
        "pytest": version("pytest"),
        "backend": "gloo",
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=50, help="timed tests of each mode")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=2, help="rounds the tests are spread over")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--out", type=Path, default=Path("build/engine.json"))
    chosen = parser.parse_args()
    chosen.modes = chosen.modes.split(",")
    if unknown := [mode for mode in chosen.modes if mode not in MODES]:
        parser.error(f"--modes: {unknown[0]!r} is unknown. Choose from: {', '.join(MODES)}.")
    try:
        chosen.ranks = [int(ranks) for ranks in chosen.ranks.split(",")]
    except ValueError:
        parser.error(f"--ranks={chosen.ranks}: give whole numbers, such as 2,4.")
    if min(chosen.tests, chosen.rounds, *chosen.ranks) < 1:
        parser.error("--tests, --ranks and --rounds must be at least 1.")
    return chosen


def main() -> int:
    """0, or 1 if a mode failed. A goal that was not met is a result, not a failure."""
    chosen = _options()
    # The way out of Ctrl-C, which ends the ranks.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    told: dict[str, object] = {"conditions": conditions()}
    figures, failed = measure(chosen.modes, chosen.ranks, chosen.tests, chosen.rounds)
    print(HEADER)
    for each in figures:
        print(row(each))
    reached = goals(figures)
    for goal in reached:
        print(f"{'met    ' if goal.met else 'NOT MET'} {goal.goal}")
    for name in failed:
        print(f"FAILED  {name}: see above")
    told |= {
        "figures": [asdict(each) for each in figures],
        "goals": [asdict(goal) for goal in reached],
        "failed": failed,
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
