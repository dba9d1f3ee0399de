"""The engine's benchmark runs and says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_the_engines_benchmark_measures_our_modes(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/engine.py", "--tests=4", "--ranks=2"]
    command += ["--modes=shared,process", f"--out={tmp_path / 'out.json'}"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "out.json").read_text())["figures"]
    assert [(f["mode"], f["ranks"], f["tests"]) for f in figures] == [
        ("ours, shared", 2, 4),
        ("ours, process", 2, 4),
    ]
    for figure in figures:
        assert 0 < figure["median_ms"] <= figure["p95_ms"] < figure["first_ms"]
        assert 0 < figure["leader_cpu_ms"] < figure["p95_ms"]
    assert 1 < figures[0]["memory_mb"] < 200
