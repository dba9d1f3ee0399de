"""A rank's page: what it says survives the rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from pytest_gpucluster.ranks.progress import LONGEST, Progress, Standing, standing


def test_what_is_written_can_be_read_by_others(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "page")
    assert standing(tmp_path / "page") == Standing()
    progress.phase("call")
    progress.enter(3, "0", "all_reduce 4;", "all_reduce [4] float32 sum")
    said = standing(tmp_path / "page")
    expected = Standing("call", 3, True, "0", "all_reduce 4;", "all_reduce [4] float32 sum")
    assert said == expected
    assert said.describe() == "last collective: number 3, all_reduce [4] float32 sum"
    progress.leave()
    assert not standing(tmp_path / "page").inside
    progress.begin()
    assert standing(tmp_path / "page").describe() == "no collective had been called"


def test_it_survives_a_kill(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from pytest_gpucluster.ranks.progress import Progress
progress = Progress(Path({str(tmp_path / "page")!r}))
progress.phase("teardown")
progress.enter(7, "2", "barrier;", "barrier")
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", program], check=False)
    assert run.returncode == -signal.SIGKILL
    said = standing(tmp_path / "page")
    assert (said.phase, said.number, said.group, said.collective) == ("teardown", 7, "2", "barrier")


def test_a_long_text_is_cut_and_a_broken_page_says_nothing(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "page")
    progress.enter(1, "0", "key", 3 * LONGEST * "x")
    assert len(standing(tmp_path / "page").collective) < LONGEST
    (tmp_path / "page").write_bytes(b"\xff" * 50)
    assert standing(tmp_path / "page") == Standing()
    assert standing(tmp_path / "missing") == Standing()
    os.truncate(tmp_path / "page", 2)
    assert standing(tmp_path / "page") == Standing()
