"""pytest's debugger on one rank, at the terminal of the session that leads.

The rank's own standard streams stay redirected and captured: only the debugger talks here.
"""

from __future__ import annotations

import os
import pdb
from multiprocessing.connection import Connection
from typing import Any, TextIO

_terminal: tuple[TextIO, TextIO] | None = None


def attach(reads: Connection, writes: Connection) -> None:
    """Use these handles for every debugger of this process."""
    global _terminal  # pytest makes the debugger from its class alone
    _terminal = (os.fdopen(os.dup(reads.fileno()), "r"), os.fdopen(os.dup(writes.fileno()), "w"))


class TerminalPdb(pdb.Pdb):
    """What ``--pdb``, ``--trace`` and ``breakpoint()`` start on the rank that is debugged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if _terminal is not None:
            kwargs.update(stdin=_terminal[0], stdout=_terminal[1])
        super().__init__(*args, **kwargs)
