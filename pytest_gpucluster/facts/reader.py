"""``python -m pytest_gpucluster.facts.reader SUBJECT``: one subject of this node as JSON.

Every subject is read in a process of its own, so a driver that hangs or kills its caller
costs one subject and never the session. Progress and tracebacks go to standard error.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys

SUBJECTS = ("nvml", "pcie", "network", "kernel_log", "software", "host")


def read(subject: str) -> object:
    """The facts of one of `SUBJECTS`, as its module's dataclass."""
    module = importlib.import_module(f"pytest_gpucluster.facts.{subject}")
    return getattr(module, f"read_{subject}")()


def main(arguments: list[str]) -> int:
    """Print one subject as JSON on standard output; returns the exit status.

    The second argument, if any, is the process id of a parent to die with.
    """
    if not arguments or arguments[0] not in SUBJECTS:
        given = arguments[0] if arguments else "nothing"
        sys.stderr.write(f"{given}: unknown subject. Choose from {', '.join(SUBJECTS)}.\n")
        return 2
    if len(arguments) > 1 and not _die_with(int(arguments[1])):
        return 3
    gc.disable()  # a tenth of the start, and this process lives for milliseconds
    # Libraries print where they like: what they write to standard output goes to the log.
    answer = os.dup(1)
    os.dup2(2, 1)
    from pytest_gpucluster.facts.model import to_json

    with os.fdopen(answer, "wb") as stream:
        stream.write(to_json(read(arguments[0])))
    return 0


def _die_with(parent: int) -> bool:
    """Have the kernel kill this process when ``parent`` ends; ``False`` if it already has."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1 = PR_SET_PDEATHSIG
    return os.getppid() == parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
