"""The report folder: what is written where, and how."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytest_gpucluster.facts.model import NodeFacts, to_json
from pytest_gpucluster.verdict.findings import Measurement, encode
from pytest_gpucluster.verdict.verdict import Verdict

# Results of an earlier run, which must not be taken for this one's.
STALE = ("verdict.json", "report.html", "measurements.jsonl")


class ReportError(RuntimeError):
    """The report cannot be written; the message says where and why."""


def prepare_folder(folder: Path) -> None:
    """Make the folder and remove an earlier run's results; raises `ReportError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in STALE:
            (folder / name).unlink(missing_ok=True)
        for old in (folder / "facts").glob("*.json"):
            old.unlink()
        probe = tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-")
        probe.close()
    except OSError as error:
        raise ReportError(
            f"The report folder {folder} cannot be used: {error.strerror}. Choose another with "
            "--gpucluster-report=DIR."
        ) from None


def write_report(folder: Path, verdict: Verdict, facts: Mapping[str, NodeFacts]) -> list[Path]:
    """Write verdict, page and facts; returns their paths. The verdict is written last, so that
    a folder with one is complete. Raises `ReportError`."""
    from pytest_gpucluster.report.html import render

    written = []
    try:
        for name, node in facts.items():
            path = folder / "facts" / f"{safe_name(name)}.json"
            path.parent.mkdir(exist_ok=True)
            written.append(write_atomically(path, to_json(node)))
        written.append(write_atomically(folder / "report.html", render(verdict, facts).encode()))
        written.append(write_atomically(folder / "verdict.json", to_json(verdict)))
    except OSError as error:
        raise ReportError(
            f"The report in {folder} is incomplete: {error.strerror}. The verdict stands on the "
            "terminal only; make room and run again."
        ) from None
    return written


def append_measurement(path: Path, measurement: Measurement) -> None:
    """Add one line; a crash loses nothing that was measured before."""
    line = encode(measurement) + "\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        return  # writing the report will say what is wrong with the folder
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(line)


def write_atomically(path: Path, data: bytes) -> Path:
    """Replace ``path`` as a whole: readers see the old contents or the new, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def safe_name(name: str) -> str:
    """A node's name as a file name: no separators, no leading dot, not too long."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:100] or "node"
