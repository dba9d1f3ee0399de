"""Other processes that take leases."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LONG = 30  # seconds after which a test is lost, not slow

HOLDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from pytest_gpucluster.ranks.lease import lease_cores
    count, folder = int(sys.argv[2]), Path(sys.argv[1])
    with lease_cores(count, lambda text: print(text, flush=True), folder, (0, 1, 2, 3)):
        print("holding", flush=True)
        sys.stdin.readline()
    print("released", flush=True)
    """
)
HOLDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from pytest_gpucluster.ranks.lease import lease
    with lease(sys.argv[2:], lambda text: print(text, flush=True), Path(sys.argv[1])):
        print("holding", flush=True)
        sys.stdin.readline()
    print("released", flush=True)
    """
)


@contextmanager
def process(
    folder: Path, *resources: str, program: str | Path = HOLDER
) -> Iterator[subprocess.Popen[str]]:
    """Another process that takes the lease and keeps it until it reads a line."""
    source = [str(program)] if isinstance(program, Path) else ["-c", program]
    command = [sys.executable, *source, str(folder), *resources]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = {**os.environ}
    environment.pop("PYTEST_XDIST_WORKER", None)
    with subprocess.Popen(command, text=True, env=environment, **pipes) as child:  # type: ignore[call-overload]
        try:
            yield child
        finally:
            child.kill()


def says(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def let_go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def ended(children: list[subprocess.Popen[str]]) -> None:
    """All come to an end, and none has found anything wrong."""
    for child in children:
        assert child.wait(LONG) == 0


def never(text: str) -> None:
    pytest.fail(f"nobody holds it, yet: {text}")
