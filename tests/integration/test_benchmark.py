"""The engine's benchmark says what it measured, and that a mode failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
TIMES = ("median_ms", "p95_ms", "first_ms", "leader_cpu_ms", "memory_mb")


def benchmark(folder: Path, *options: str, **environment: str) -> tuple[int, str, dict[str, Any]]:
    out = folder / "build" / "out.json"
    command = [sys.executable, "benchmarks/engine.py", *options, f"--out={out}"]
    # Not below tmp_path: the path of a Unix socket holds 107 bytes.
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env={**os.environ, "TMPDIR": temporary, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not list(Path(temporary).iterdir())
    return done.returncode, done.stdout, json.loads(out.read_text())


def test_it_measures_a_mode(tmp_path: Path) -> None:
    options = ("--tests=3", "--ranks=2", "--rounds=1", "--modes=shared")
    code, output, told = benchmark(tmp_path, *options)
    assert code == 0, output
    assert "ours, shared" in output
    assert set(told) == {"conditions", "figures", "goals", "failed"}
    assert told["goals"] == told["failed"] == []
    (figure,) = told["figures"]
    assert (figure["mode"], figure["ranks"], figure["tests"]) == ("ours, shared", 2, 3)
    assert all(figure[name] > 0 for name in TIMES)
    assert figure["median_ms"] <= figure["p95_ms"] < figure["first_ms"]
    assert figure["leader_cpu_ms"] < figure["first_ms"]
    assert 1 < figure["memory_mb"] < 200


def test_a_mode_that_fails_is_shown_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "expecttest.py").write_text("raise ImportError('made to fail')")
    options = ("--tests=1", "--ranks=2", "--rounds=1", "--modes=MultiProcContinuousTest")
    code, output, told = benchmark(tmp_path, *options, PYTHONPATH=str(tmp_path / "broken"))
    assert code == 1
    assert "FAILED: MultiProcContinuousTest, 2 ranks: exit code 1." in output
    assert "made to fail" in output
    assert told["failed"] == ["MultiProcContinuousTest, 2 ranks"]
    assert told["figures"] == []
