"""Preloaded into the fork server only: what it does when its leader is gone.

A rank cannot always end itself and what it started (it may be stopped), and the kernel ends
only the rank when the server dies. So the server ends them all before it goes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
from pathlib import Path

from pytest_gpucluster.ranks.agent import SCRATCH_VARIABLE

_SERVER = os.getpid()


def _end_ranks(scratch: str | None) -> None:
    if os.getpid() != _SERVER:
        return  # a child of a rank that ends with sys.exit()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == _SERVER:
                os.killpg(int(stat.parent.name), signal.SIGKILL)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)


atexit.register(_end_ranks, os.environ.pop(SCRATCH_VARIABLE, None))
