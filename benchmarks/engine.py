"""What a test on ranks costs: ours in three isolations beside torch's own harnesses.

``python benchmarks/engine.py`` runs trivial all-reduce tests (one number, its value checked) on
Gloo, each mode in a process of its own and in turn, and prints milliseconds per test. See
benchmarks/README.md for how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
OURS = ("shared", "group", "process")
TORCHS = {
    "MultiProcContinuousTest": "continuous",
    "MultiProcessTestCase": "process",
    "spawn per test": "spawn",
}
FEWER = {"MultiProcessTestCase": 6, "spawn per test": 5}  # these take seconds per test
LIMIT_S = 600
TEST = """\
import pytest, torch
import torch.distributed as dist

@pytest.mark.parametrize("number", range({tests}))
@pytest.mark.distributed(world_size={ranks}, isolation="{isolation}")
def test_sum(process_group, number):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == {ranks}
"""


@dataclass(frozen=True)
class Figure:
    """One mode at one number of ranks. Times in ms; the first test, which starts the ranks, is
    apart. ``leader_cpu_ms`` is the pytest session's own CPU time per test."""

    mode: str
    ranks: int
    tests: int
    first_ms: float
    median_ms: float
    p95_ms: float
    leader_cpu_ms: float | None
    memory_mb: float | None  # USS, median over the ranks; kept ranks only


def measure_ours(isolation: str, ranks: int, tests: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        test = TEST.format(tests=tests, ranks=ranks, isolation=isolation)
        Path(folder, "test_trivial.py").write_text(test)
        out = Path(folder, "out.json")
        environment = {
            **os.environ,
            "BENCHMARK_OUT": str(out),
            "BENCHMARK_TESTS": str(tests),
            "GPUCLUSTER_LEASES": str(Path(folder, "leases")),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_gpucluster.plugin"]
        command += ["-p", "engine_timing", "-c", os.devnull, "--rootdir", folder, "test_trivial.py"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode or not out.exists():
            raise SystemExit(f"ours, {isolation}, {ranks} ranks:\n{done.stdout}\n{done.stderr}")
        told = json.loads(out.read_text())
    kept = told["memory_mb"] if isolation != "process" else []
    return _figure(f"ours, {isolation}", ranks, told["seconds"], told["leader_cpu_s"], kept)


def measure_torchs(mode: str, ranks: int, tests: int) -> Figure:
    tests = min(tests, FEWER.get(mode, tests))
    command = [sys.executable, str(HERE / "engine_torch.py"), TORCHS[mode], str(ranks), str(tests)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{mode}, {ranks} ranks:\n{done.stdout}\n{done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    return _figure(mode, ranks, told["seconds"], None, told["memory_mb"])


def _figure(
    mode: str, ranks: int, seconds: list[float], cpu: list[float] | None, memory: list[float]
) -> Figure:
    first, *rest = (1e3 * value for value in seconds)
    ordered = sorted(rest)
    return Figure(
        mode,
        ranks,
        len(seconds),
        first,
        statistics.median(ordered),
        ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        1e3 * statistics.median(cpu[1:]) if cpu else None,
        statistics.median(memory) if memory else None,
    )


def goals(figures: list[Figure]) -> list[tuple[str, bool]]:
    """What the engine is meant to reach, and whether it did in this run."""
    by_name = {(figure.mode, figure.ranks): figure for figure in figures}
    said = []
    for ranks in sorted({figure.ranks for figure in figures}):
        shared = by_name.get(("ours, shared", ranks))
        continuous = by_name.get(("MultiProcContinuousTest", ranks))
        if shared and continuous:
            text = f"{ranks} ranks: shared {shared.median_ms:.1f} ms <= MultiProcContinuousTest "
            text += f"{continuous.median_ms:.1f} ms"
            said.append((text, shared.median_ms <= continuous.median_ms))
        group = by_name.get(("ours, group", ranks))
        if group and ranks == 2:
            said.append((f"2 ranks: group {group.median_ms:.1f} ms < 30 ms", group.median_ms < 30))
        process, theirs = (
            by_name.get(("ours, process", ranks)),
            by_name.get(("MultiProcessTestCase", ranks)),
        )
        if process and theirs:
            times = theirs.median_ms / process.median_ms
            text = f"{ranks} ranks: process is {times:.0f} times faster than MultiProcessTestCase"
            said.append((f"{text}, at least 25", times >= 25))
    return said


def _row(figure: Figure) -> str:
    memory = f"{figure.memory_mb:8.1f}" if figure.memory_mb is not None else "       -"
    cpu = f"{figure.leader_cpu_ms:9.2f}" if figure.leader_cpu_ms is not None else "        -"
    return (
        f"{figure.mode:24} {figure.ranks:5} {figure.tests:5} {figure.median_ms:10.2f} "
        f"{figure.p95_ms:9.2f} {cpu} {memory} {figure.first_ms:9.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=50)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--modes", default=",".join([*OURS, *TORCHS]))
    parser.add_argument("--out", type=Path, default=Path("build/engine.json"))
    chosen = parser.parse_args()
    modes = chosen.modes.split(",")
    print("mode                     ranks tests  median ms    p95 ms leader ms   USS MB  first ms")
    figures = []
    for ranks in map(int, chosen.ranks.split(",")):
        for mode in modes:
            measure = measure_ours if mode in OURS else measure_torchs
            figures.append(measure(mode, ranks, chosen.tests))
            print(_row(figures[-1]), flush=True)
    reached = goals(figures)
    for text, met in reached:
        print(f"{'met    ' if met else 'NOT MET'} {text}")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "figures": [asdict(figure) for figure in figures],
        "goals": [{"goal": text, "met": met} for text, met in reached],
    }
    chosen.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
