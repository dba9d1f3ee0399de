"""Programs that see a fake machine, as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpucluster.facts.model import Gpu, from_json
from pytest_gpucluster.facts.nvml import NvmlFacts
from pytest_gpucluster.testing.machines import environment

READ = """
import sys, time
{before}
from pytest_gpucluster.facts.model import to_json
from pytest_gpucluster.facts.nvml import read_nvml
facts = read_nvml()
sys.stdout.buffer.write(to_json(facts))
"""
DEADLINE_S = 30

Reader = Callable[..., "Reading"]


@dataclass(frozen=True)
class Reading:
    """What the reader found, and the progress it reported line by line."""

    facts: NvmlFacts
    progress: list[str]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        assert self.facts.gpus is not None
        return self.facts.gpus

    def reason(self, subject: str) -> str:
        """Why a subject could not be read; there must be exactly one reason."""
        (found,) = [u.reason for u in self.facts.unreadable if u.subject == subject]
        return found


def environment_of(description: str | bytes, folder: Path, library: Path) -> dict[str, str]:
    """This process's environment, on the fake machine described."""
    file = folder / "machine.txt"
    file.write_bytes(description if isinstance(description, bytes) else description.encode())
    return {**os.environ, **environment(file, library)}


def read_machine(
    description: str | bytes, folder: Path, library: Path, before: str = "", **variables: str
) -> Reading:
    """``read_nvml()`` on a fake machine; ``before`` is run first."""
    done = subprocess.run(
        [sys.executable, "-c", READ.format(before=before)],
        env={**environment_of(description, folder, library), **variables},
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return Reading(from_json(done.stdout, NvmlFacts), done.stderr.decode().splitlines())


def ask_pynvml(expression: str, description: str, folder: Path, library: Path) -> Any:
    """A Python expression over NVIDIA's binding ``n``, with ``h(index)`` for a GPU's handle.

    An NVML error's code takes the place of its value.
    """
    program = (
        "import ctypes, json, pynvml as n\n"
        "h = n.nvmlDeviceGetHandleByIndex\n"
        "try:\n"
        "    n.nvmlInit()\n"
        f"    print(json.dumps({expression}))\n"
        "except n.NVMLError as error:\n"
        "    print(json.dumps({'error': error.value}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment_of(description, folder, library),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return json.loads(done.stdout)
