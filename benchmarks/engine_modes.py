"""Each mode of engine.py in a process of its own, of which nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OURS = ("shared", "group", "process")
TORCHS = {
    "MultiProcContinuousTest": ("engine_torch.py", "continuous"),
    "MultiProcessTestCase": ("engine_torch.py", "process"),
    "spawn per test": ("engine_spawn.py",),
}
LIMIT_S = 600
ENDING_S = 10.0  # a fork server notices a moment later that its leader has ended
MARK = "BENCHMARK_RUN"
TEST = """\
import pytest, torch
import torch.distributed as dist
from engine_sampling import note_memory

pytestmark = pytest.mark.distributed(world_size={ranks}, backend="gloo", isolation="{isolation}")

@pytest.mark.parametrize("number", range({tests}))
def test_sum(process_group, number):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == {ranks}

def test_sum_and_note_memory(process_group):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == {ranks}
    note_memory()
"""


class ModeFailed(Exception):
    """A mode did not run to its end; its output is the text."""


@dataclass(frozen=True)
class Samples:
    """Seconds per test, from its start to the next one's, the first test first; see `Clocks`."""

    wall_s: list[float]
    cpu_s: list[float]
    ready_s: list[float] | None
    memory_mb: list[float]  # USS, one a rank, noted by the rank in the last test


def run(mode: str, ranks: int, tests: int) -> Samples:
    """Run a mode with that many tests, and one more to note the memory.

    Raises `ModeFailed`, also if it leaves a process running.
    """
    # Everything temporary goes there: MultiProcessTestCase leaves its rendezvous files.
    with tempfile.TemporaryDirectory(prefix="engine-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if mode in OURS:
            text = TEST.format(tests=tests, ranks=ranks, isolation=mode)
            (folder / "test_trivial.py").write_text(text)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_gpucluster.plugin"]
            command += ["-p", "engine_timing", "-c", os.devnull, "--rootdir", name]
            command += ["test_trivial.py"]
        else:
            script, *arguments = TORCHS[mode]
            command = [sys.executable, str(HERE / script), *arguments, str(ranks), str(tests)]
        output = _run(command, folder)
        memory = [float(file.read_text()) for file in (folder / "memory").iterdir()]
        if not (folder / "clocks.json").exists() or len(memory) != ranks:
            raise ModeFailed(f"{len(memory)} of {ranks} ranks noted their memory.\n{output}")
        clocks = json.loads((folder / "clocks.json").read_text())
        if len(clocks["wall_s"]) != tests:
            raise ModeFailed(f"{len(clocks['wall_s'])} of {tests} tests were timed.\n{output}")
        return Samples(**clocks, memory_mb=memory)


def _run(command: list[str], folder: Path) -> str:
    """The output of a command that ended well and left no process."""
    mark = uuid.uuid4().hex
    for part in ("memory", "tmp"):
        (folder / part).mkdir()
    environment = {
        **os.environ,
        MARK: mark,
        "BENCHMARK_CLOCKS": str(folder / "clocks.json"),
        "BENCHMARK_MEMORY": str(folder / "memory"),
        "GPUCLUSTER_LEASES": str(folder / "leases"),
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        "TMPDIR": str(folder / "tmp"),
    }
    environment.pop("PYTEST_ADDOPTS", None)
    log = folder / "output.txt"
    left: list[int] = []
    try:
        # A session of its own: Ctrl-C reaches this process only, and it ends the rest.
        with (
            log.open("w") as output,
            subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            try:
                code: int | None = process.wait(LIMIT_S)
                left = _ended(mark)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _kill(mark)
    finally:
        _kill(mark)
    text = log.read_text(errors="replace")
    if code is None:
        raise ModeFailed(f"did not end within {LIMIT_S} s and was killed.\n{text}")
    if code:
        raise ModeFailed(f"exit code {code}.\n{text}")
    if left:
        raise ModeFailed(f"left the processes {left} running; they were killed.\n{text}")
    return text


def _marked(mark: str) -> list[int]:
    """The running processes that were started with the mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _ended(mark: str) -> list[int]:
    """Wait until all marked processes have ended; those that have not."""
    deadline = time.monotonic() + ENDING_S
    while left := _marked(mark):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def _kill(mark: str) -> None:
    for pid in _marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
