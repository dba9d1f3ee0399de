"""Small reads from sysfs and procfs: bounded, printable, ``None`` where there is no answer."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

_BUS_ID = re.compile(
    r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?", re.ASCII
)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})", re.ASCII)


def printable(text: str, limit: int = 1000) -> str:
    """``text`` without control characters and lone surrogates, at most ``limit`` long."""
    text = text[:limit]
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character in "\t\n\r" else "\ufffd"
        for character in text
    )


def read_bytes(path: Path, limit: int = 65536) -> bytes:
    """The first ``limit`` bytes of a file; raises `OSError`."""
    # sysfs answers per read(2) and may fail on any of them; a text layer would hide which.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts = []
        while limit > 0 and (part := os.read(descriptor, min(limit, 65536))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_text(path: Path, limit: int = 65536) -> str | None:
    """A file's stripped text, lines kept; ``None`` if it cannot be read or is empty."""
    try:
        content = read_bytes(path, limit)
    except OSError:
        return None
    return content.decode("utf-8", "replace").strip("\0 \t\r\n") or None


def read_line(path: Path) -> str | None:
    """A file's first line, printable; ``None`` if it cannot be read or is empty."""
    text = read_text(path, 4096)
    return printable(text.splitlines()[0].strip()) or None if text else None


def read_int(path: Path) -> int | None:
    """The whole number in a file (decimal or 0x...), or ``None``."""
    text = read_text(path, 64)
    if text is None or not _INTEGER.fullmatch(text):
        return None
    return int(text, 16) if "x" in text.lower() else int(text)


def names_in(directory: Path) -> list[str] | None:
    """Sorted names in a directory (``mlx5_2`` before ``mlx5_10``), or ``None``."""
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return None
    return sorted(names, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() and part.isascii() else (-1, part)
        for part in re.split(r"([0-9]{1,18})", name)
    ]


def bus_id(text: str) -> str | None:
    """A PCI address as ``0000:1b:00.0``: NVML's eight-digit domain shortened, a missing
    function taken as 0; ``None`` if ``text`` is no PCI address."""
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or '0'}".lower()


def pci_ancestor(path: Path) -> str | None:
    """The bus id of the PCI function a sysfs entry belongs to, or ``None`` (virtual devices)."""
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    for part in reversed(resolved.parts):
        if "." in part and (found := bus_id(part)) is not None:
            return found
    return None


def is_virtual(path: Path) -> bool | None:
    """Whether a sysfs entry lies under ``/sys/devices/virtual``; ``None`` if it is gone."""
    try:
        parts = path.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return None
    return ("devices", "virtual") in pairwise(parts)
