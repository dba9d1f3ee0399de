"""A text somebody saved, opened with care: what was lost on the way is said."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from pytest_gpucluster.facts.evidence.safe_pickle import as_json, is_pickle

LONGEST = 256 * 2**20  # bytes after decompression; more of one file is not read
# Terminal control sequences: colours and underlines (CSI), titles (OSC), single-character ones.
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
LINE_END = re.compile(r"\r+\n|\r|\n")


@dataclass(frozen=True)
class Unread:
    """A line (from 1) that should have been understood and was not, and why."""

    line: int
    reason: str


@dataclass(frozen=True)
class Document:
    """The lines of one text: ``lines[0]`` is line 1. ``damage`` says what was lost."""

    name: str
    lines: tuple[str, ...]
    damage: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All lines, joined by newlines."""
        return "\n".join(self.lines)


def open_document(path: Path, name: str | None = None) -> Document:
    """Read a file, plain or gzip, in UTF-8, UTF-16 or Latin-1; raises OSError."""
    with path.open("rb") as file:
        data = file.read(LONGEST + 1)
    return document_of(data, name or path.name)


def document_of(data: bytes, name: str) -> Document:
    """The document in ``data``; never raises."""
    damage: list[str] = []
    if data[:2] == b"\x1f\x8b":
        data = _decompress(data, damage)
    if is_pickle(data):
        try:
            data = as_json(data).encode()
        except ValueError as error:
            damage.append(f"pickle: {error}")
            data = b""
    if len(data) > LONGEST:
        damage.append(f"cut after {LONGEST // 2**20} MiB")
        data = data[:LONGEST]
    text = ANSI.sub("", _decode(data, damage))
    lines = LINE_END.split(text)
    if lines and not lines[-1]:
        lines.pop()
    return Document(name, tuple(lines), tuple(damage))


def _decompress(data: bytes, damage: list[str]) -> bytes:
    decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        found = decompressor.decompress(data, LONGEST + 1)
    except zlib.error as error:
        damage.append(f"gzip: {error}")
        return b""
    if not decompressor.eof and len(found) <= LONGEST:
        damage.append("gzip: the file ends too early")
    return found


def _decode(data: bytes, damage: list[str]) -> str:
    for mark, encoding in (
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
        (b"\xef\xbb\xbf", "utf-8-sig"),
    ):
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    if len(data) > 3 and data[1:4:2] == b"\0\0" and data[0]:
        return data.decode("utf-16-le", errors="replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        damage.append(f"not UTF-8 at byte {error.start}: read as Latin-1")
        return data.decode("latin-1")
