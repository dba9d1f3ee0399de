"""The little of ELF that tells which libraries another one asks the loader for."""

from __future__ import annotations

import os
import struct
from pathlib import Path

# System V gABI, chapters 4 and 5; 64-bit little-endian files, which x86-64 and Grace use.
_HEADER = struct.Struct("<4sBB26xQ14xHH8x")  # magic, class, data, e_phoff, e_phentsize, e_phnum
_SEGMENT = struct.Struct("<IIQQQQQQ")  # type, flags, offset, vaddr, paddr, filesz, memsz, align
_ENTRY = struct.Struct("<qQ")  # tag, value
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 0, 1, 5, 10
_MAX_TABLE = 2**20


def needed_libraries(path: Path) -> tuple[str, ...] | None:
    """Sonames in the ``DT_NEEDED`` entries of a shared library of any size.

    ``None`` if it cannot be read or is no 64-bit little-endian ELF file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _needed(descriptor)
    except (OSError, OverflowError, struct.error):
        return None
    finally:
        os.close(descriptor)


def _needed(descriptor: int) -> tuple[str, ...] | None:
    magic, bits, order, offset, size, count = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
    if (magic, bits, order, size) != (b"\x7fELF", 2, 1, _SEGMENT.size):
        return None
    table = os.pread(descriptor, size * count, offset)
    segments = list(_SEGMENT.iter_unpack(table[: len(table) // size * size]))
    dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return ()
    entries = os.pread(descriptor, min(dynamic[5], _MAX_TABLE), dynamic[2])
    values: dict[int, int] = {}
    names = []
    for tag, value in _ENTRY.iter_unpack(entries[: len(entries) // _ENTRY.size * _ENTRY.size]):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            names.append(value)
        values[tag] = value
    address = values.get(_DT_STRTAB, -1)
    for kind, _, start, virtual, _, length, _, _ in segments:
        if kind == _PT_LOAD and virtual <= address < virtual + length:
            strings = os.pread(
                descriptor,
                min(values.get(_DT_STRSZ, 0), 16 * _MAX_TABLE),
                start + address - virtual,
            )
            return tuple(_text(strings, name) for name in names)
    return None if names else ()


def _text(strings: bytes, start: int) -> str:
    return strings[start : start + 256].partition(b"\0")[0].decode("utf-8", "replace")
