"""Forked children of a rank that run on in pytest as if they were the rank."""

from __future__ import annotations

import os
import select

STRAY_WAIT_S = 1.0  # how long a living child may take to show whether it comes back
STRAY = (
    "a process that this test (or one before it) forked came back into pytest and was ended. "
    "End forked children with os._exit(), or start them with subprocess or multiprocessing."
)


class Strays:
    """Notices them: made in the rank, asked before each report.

    Children inherit a pipe. It closes when they end or start another program; one that comes
    back into pytest writes to it. One that does neither for a second is at work: a data
    loader's, for example.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pipe: tuple[int, int] | None = None  # of the children since the last report
        self._at_work: list[int] = []
        os.register_at_fork(before=self._prepare)

    def _prepare(self) -> None:
        if self._pipe is None and os.getpid() == self._pid:
            self._pipe = os.pipe()

    def fork(self) -> int:
        """Fork on purpose: the copy is a rank of its own. Returns what `os.fork` does."""
        own, self._pid = self._pid, 0
        child = os.fork()
        self._pid = own if child else os.getpid()
        return child

    def came_back(self) -> bool:
        """In the rank: whether a child did. In such a child: tell the rank and end."""
        if os.getpid() != self._pid:
            if self._pipe is not None:
                os.write(self._pipe[1], b"x")
            os._exit(1)
        ready = select.select(self._at_work, [], [], 0)[0] if self._at_work else []
        if self._pipe is not None:
            read, write = self._pipe
            self._pipe = None
            os.close(write)
            self._at_work.append(read)
            ready += select.select([read], [], [], STRAY_WAIT_S)[0]
        said = [os.read(pipe, 1) for pipe in ready]
        for pipe in ready:
            self._at_work.remove(pipe)
            os.close(pipe)
        return any(said)
