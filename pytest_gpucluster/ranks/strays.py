"""Forked children of a rank that run on in pytest as if they were the rank."""

from __future__ import annotations

import os
import select

STRAY_WAIT_S = 0.05  # how long a forked child may take to come back into pytest unnoticed
STRAY = (
    "a process that this test (or one before it) forked came back into pytest and was ended. "
    "End forked children with os._exit(), or start them with subprocess or multiprocessing."
)


class Strays:
    """Notices them: made in the rank, asked before each report."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._ever_forked = self._just_forked = False
        self._read, self._write = os.pipe()
        os.register_at_fork(after_in_parent=self._remember)

    def _remember(self) -> None:
        self._ever_forked = self._just_forked = True

    def came_back(self) -> bool:
        """In the rank: whether a child did. In such a child: tell the rank and end."""
        if os.getpid() != self._pid:
            os.write(self._write, b"x")
            os._exit(1)
        if not self._ever_forked:
            return False
        wait = STRAY_WAIT_S if self._just_forked else 0.0
        self._just_forked = False
        if not select.select([self._read], [], [], wait)[0]:
            return False
        os.read(self._read, 4096)
        return True
