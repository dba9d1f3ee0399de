"""How files are written: as a whole, or a line at a time."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: str | bytes) -> Path:
    """Replace ``path`` as a whole: readers see the old contents or the new, never a part.

    Text is written as UTF-8; what UTF-8 cannot hold becomes ``?``. Raises OSError, and then
    leaves nothing behind.
    """
    content = data.encode("utf-8", "replace") if isinstance(data, str) else data
    beside = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return path


def append_line(path: Path, line: str) -> None:
    """Add a line in one write, so that lines of several writers never mix. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(handle, f"{line}\n".encode("utf-8", "replace"))
    finally:
        os.close(handle)
