"""Writing to a folder and reading back: speed and contents."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

BLOCK = 2**20


@dataclass(frozen=True)
class WriteResult:
    """GB/s written (until the disk has it) and read, and whether the contents came back."""

    write_gbs: float
    read_gbs: float
    intact: bool


def write_and_read(path: Path, blocks: int) -> WriteResult:
    """Write ``blocks`` MiB of random data to ``path``, flush to the disk, read, remove.

    The read may come from the page cache; it is recorded, not judged. Raises OSError.
    """
    data = [os.urandom(BLOCK) for _ in range(min(blocks, 16))]
    written, read = hashlib.sha256(), hashlib.sha256()
    try:
        started = time.perf_counter()
        with path.open("w+b") as file:
            for number in range(blocks):
                block = data[number % len(data)]
                file.write(block)
                written.update(block)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        middle = time.perf_counter()
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                read.update(block)
        ended = time.perf_counter()
    finally:
        path.unlink(missing_ok=True)
    size = blocks * BLOCK / 1e9
    return WriteResult(
        size / (middle - started), size / (ended - middle), written.digest() == read.digest()
    )
