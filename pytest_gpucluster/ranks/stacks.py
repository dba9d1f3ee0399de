"""From faulthandler's text of a rank: where it stands in the user's code."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)$', re.M)
# The start of the main thread, which faulthandler writes last.
OUTERMOST = re.compile(r'ranks/rank\.py", line \d+ in main\n')
HARNESS = re.compile(
    r"/(?:_pytest|pluggy|pytest_gpucluster/(?:ranks|plugin|fixtures|distributed))"
    r"|/site-packages/(?:xdist|pytest_timeout)|/threading\.py$|/contextlib\.py$|multiprocessing/"
)
STDLIB = str(Path(os.__file__).parent)
TORCH = re.compile(r"/torch/")


@dataclass(frozen=True)
class Place:
    """Where a rank stands: inside a collective, or in code of its own."""

    collective: str | None
    function: str
    file: str
    line: int

    @property
    def where(self) -> str:
        """``test_x.py:12``."""
        return f"{Path(self.file).name}:{self.line}"


def find_place(stack: str | None) -> Place | None:
    """The innermost frame of the user's code, and the collective it called, if any.

    ``stack`` is faulthandler's text, innermost frame first, several threads.
    """
    inner: list[str] = []
    for frame in FRAME.finditer(_main_thread(stack)):
        file = frame["file"]
        if HARNESS.search(file):
            continue
        if TORCH.search(file):
            if "/torch/distributed/" in file and frame["function"] != "wrapper":
                inner.append(frame["function"])
            continue
        if not inner and file.startswith(STDLIB) and "/site-packages/" not in file:
            continue
        return Place(inner[-1] if inner else None, frame["function"], file, int(frame["line"]))
    return None


def own_frames(stack: str | None) -> str:
    """The main thread's frames without pytest's and this package's."""
    shown = [
        frame[0]
        for frame in FRAME.finditer(_main_thread(stack))
        if not HARNESS.search(frame["file"])
    ]
    return "\n".join(shown) or "  (no stack)"


def _main_thread(stack: str | None) -> str:
    """Its part of faulthandler's text. Of a deep stack only the 100 innermost frames are told."""
    threads = re.split(r"\n(?=(?:Current t|T)hread 0x)", stack or "")
    own = [thread for thread in threads if "_obey" not in thread]
    for sign in ("ranks/rank.py", "Current thread"):
        for thread in own:
            if sign in thread:
                return re.sub(r'\n  File "<string>", line 1 in <module>\s*$', "", thread)
    return ""


def fatal_stack(path: Path) -> str | None:
    """What faulthandler wrote when the process died of a signal it could catch."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    _, mark, after = text.rpartition("Fatal Python error")
    return mark + after if mark else None
