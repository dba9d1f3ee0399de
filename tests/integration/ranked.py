"""Runs pytest over distributed tests in a folder of its own, and tells what became of each."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

IMPORTS = """\
import contextlib, json, os, signal, sys, threading, time
import pytest, torch
import torch.distributed as dist

def add(value=1.0):
    tensor = torch.full((1,), float(value))
    dist.all_reduce(tensor)
    return tensor.item()

"""
# Only the session that reports writes this down: neither a rank nor an xdist worker does.
REPORTER = """
import json, time

def _write(config, **entry):
    if not hasattr(config, "workerinput"):
        with open("events.jsonl", "a") as file:
            file.write(json.dumps({**entry, "at": time.monotonic()}) + "\\n")

def pytest_configure(config):
    class Reporter:
        def pytest_runtest_logstart(self, nodeid):
            _write(config, test=nodeid, when="start", outcome="", text="", suspects="")
        def pytest_runtest_logreport(self, report):
            outcome = report.outcome
            if hasattr(report, "wasxfail"):
                outcome = "x" + ("failed" if report.skipped else "passed")
            _write(config, test=report.nodeid, when=report.when, outcome=outcome,
                   text=report.longreprtext,
                   suspects=str(dict(report.user_properties).get("gpucluster.suspects", "")),
                   sections=[list(section) for section in report.sections],
                   duration=report.duration)
    config.pluginmanager.register(Reporter())
"""
RUN = "GPUCLUSTER_TEST_RUN"  # marks every descendant of a run in /proc/*/environ
GONE_S = 10.0  # a fork server on a busy machine takes seconds to unload torch
LONGEST_RUN_S = 150.0


@dataclass(frozen=True)
class Told:
    """What the session reported of one test. ``took`` is in seconds, start to last report."""

    outcome: str  # passed, failed, skipped, xfailed, xpassed, or error in setup or teardown
    text: str
    suspects: str
    took: float
    sections: str


@dataclass(frozen=True)
class Run:
    """A finished run."""

    code: int
    output: str
    folder: Path

    def told(self) -> dict[str, Told]:
        """By test name without the file; tests that did not run are absent."""
        tests: dict[str, list[dict[str, str]]] = {}
        events = self.folder / "events.jsonl"
        for line in events.read_text().splitlines() if events.exists() else ():
            entry = json.loads(line)
            tests.setdefault(entry["test"].partition("::")[2], []).append(entry)
        return {name: _told(entries) for name, entries in tests.items()}

    def outcomes(self) -> dict[str, str]:
        return {name: told.outcome for name, told in self.told().items()}


def _told(entries: list[dict[str, str]]) -> Told:
    phases = [entry for entry in entries if entry["when"] != "start"]
    bad = [entry for entry in phases if entry["outcome"] != "passed"]
    outcome = bad[0]["outcome"] if bad else "passed" if phases else "not reported"
    if outcome == "failed" and bad[0]["when"] != "call":
        outcome = f"error in {bad[0]['when']}"
    return Told(
        outcome,
        bad[0]["text"] if bad else "",
        bad[0]["suspects"] if bad else "",
        float(entries[-1]["at"]) - float(entries[0]["at"]),
        "\n".join(f"{name}\n{text}" for entry in phases for name, text in entry["sections"]),
    )


class Ranked:
    """Starts runs; afterwards nothing of them may be left: no process, no file."""

    def __init__(self, pytester: pytest.Pytester, temporary: Path) -> None:
        self.pytester = pytester
        self.temporary = temporary
        self.mark = uuid.uuid4().hex
        (pytester.path / "facts.json").write_text('{"host": {"name": "node-1"}}')
        pytester.makeconftest(REPORTER)

    def environment(self, **more: str) -> dict[str, str]:
        """The facts are given: reading this machine is not what is tested here."""
        return {
            RUN: self.mark,
            "TMPDIR": str(self.temporary),
            "GPUCLUSTER_EVIDENCE": str(self.pytester.path / "facts.json"),
            "GPUCLUSTER_TIMEOUT": "20s",
            "OMP_NUM_THREADS": "1",
            # Slow to load, and nothing here is about them.
            "PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:html -p no:metadata",
            **more,
        }

    def write(self, body: str, conftest: str = "", name: str = "test_it") -> None:
        if conftest:
            self.pytester.makeconftest(REPORTER + IMPORTS + conftest)
        self.pytester.makepyfile(**{name: IMPORTS + body})

    def run(self, *arguments: str, plugins: str = "", **environment: str) -> Run:
        (self.pytester.path / "events.jsonl").unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            for key, value in self.environment(**environment).items():
                patch.setenv(key, value)
            result = self.pytester.runpytest_subprocess(*arguments, timeout=LONGEST_RUN_S)
        return Run(int(result.ret), f"{result.stdout}\n{result.stderr}", self.pytester.path)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """A run that is left alone; its standard output goes to ``output.txt``."""
        command = [*self.pytester._getpytestargs(), *arguments]
        with (self.pytester.path / "output.txt").open("wb") as output:
            return subprocess.Popen(
                [str(part) for part in command],
                cwd=self.pytester.path,
                env={**os.environ, **self.environment(**environment)},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self) -> list[int]:
        """Every process of this fixture's runs, whoever its parent is by now."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and self.mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def left_after(self, seconds: float) -> list[str]:
        """Processes that are still there once ``seconds`` have passed."""
        limit = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < limit:
            time.sleep(0.05)
        return [f"{pid}: {_command(pid)}" for pid in left]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.temporary.glob("gpucluster-ranks-*"))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
    except OSError:
        return "just gone"


@pytest.fixture
def ranked(pytester: pytest.Pytester) -> Iterator[Ranked]:
    """Runs of pytest whose remains are looked for at the end."""
    # Short: the fork server's socket lies in it, and a socket's path is at most 107 bytes long.
    temporary = Path(tempfile.mkdtemp(prefix="gr-", dir="/tmp"))
    runs = Ranked(pytester, temporary)
    try:
        yield runs
        left = runs.left_after(GONE_S)
        files = runs.files()
        assert not left, f"processes {left} outlive the run"
        assert not files, f"{files} are left in the temporary folder"
    finally:
        for pid in runs.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(temporary, ignore_errors=True)


def wait_for(path: Path, seconds: float = 60.0) -> str:
    """The text of a file that a run writes when it has come so far."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{path.name} was not written within {seconds:.0f} s")
