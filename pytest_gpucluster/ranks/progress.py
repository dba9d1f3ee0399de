"""Where a rank stands, in a file that outlives it however it dies.

A page of shared memory: the running phase of the test, and the last collective it called.
Writing to it costs about a microsecond, so every collective can be noted.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

SIZE = mmap.PAGESIZE
HEADER = struct.Struct("<BBIH")  # phase, inside a collective, its number, length of the text
LONGEST = SIZE - HEADER.size
PHASES = ("", "setup", "call", "teardown")


@dataclass(frozen=True)
class Standing:
    """What the page says of the running test. ``number`` counts the calls within the group.

    ``key`` is the part of ``collective`` that must be equal on all ranks of ``group``.
    """

    phase: str = ""
    number: int = 0
    inside: bool = False  # whether the call had not returned
    group: str = ""
    key: str = ""
    collective: str = ""  # "all_reduce [4] float32 sum", the last one called

    def describe(self) -> str:
        """``last collective: number 3, all_reduce [4] float32 sum``."""
        if not self.collective:
            return "no collective had been called"
        return f"last collective: number {self.number}, {self.collective}"


class Progress:
    """The writing side; one per process."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(SIZE)
            self._page = mmap.mmap(file.fileno(), SIZE)

    def begin(self) -> None:
        """A test begins: nothing has been called yet."""
        self._page[: HEADER.size] = bytes(HEADER.size)

    def phase(self, name: str) -> None:
        self._page[0] = PHASES.index(name)

    def enter(self, number: int, group: str, key: str, collective: str) -> None:
        text = "\t".join((group, key, collective)).encode(errors="replace")[:LONGEST]
        # The length first to zero: a page torn by sudden death must not mix two calls.
        self._page[1 : HEADER.size] = HEADER.pack(0, 1, number, 0)[1:]
        self._page[HEADER.size : HEADER.size + len(text)] = text
        self._page[1 : HEADER.size] = HEADER.pack(0, 1, number, len(text))[1:]

    def leave(self) -> None:
        self._page[1] = 0


def standing(path: Path) -> Standing:
    """Read the page of a rank, dead or alive; what cannot be read is left empty."""
    try:
        page = path.read_bytes()
        phase, inside, number, length = HEADER.unpack_from(page)
        text = page[HEADER.size : HEADER.size + length].decode(errors="replace")
        group, key, collective = text.split("\t", 2) if length else ("", "", "")
        return Standing(PHASES[phase], number, bool(inside), group, key, collective)
    except (OSError, struct.error, IndexError, ValueError):
        return Standing()
