"""The report folder: what is written where, and when."""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytest_gpucluster.facts.model import NodeFacts, to_builtins, to_json
from pytest_gpucluster.report.files import append_line, write_atomically
from pytest_gpucluster.verdict.findings import Measurement, encode
from pytest_gpucluster.verdict.verdict import Verdict

# Results of an earlier run, which must not be taken for this one's. Its facts may be this
# run's evidence and are only ever replaced.
STALE = ("verdict.json", "report.html", "metrics.prom", "measurements.jsonl")


class ReportError(RuntimeError):
    """The report cannot be written; the message says where and why."""


def prepare_folder(folder: Path) -> None:
    """Make the folder and remove an earlier run's results; raises `ReportError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in STALE:
            (folder / name).unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-"):
            pass
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror
        raise ReportError(
            f"The report folder {folder} cannot be used: {reason}. Choose another with "
            "--gpucluster-report=DIR."
        ) from None


def write_report(folder: Path, verdict: Verdict, facts: Mapping[str, NodeFacts]) -> list[Path]:
    """Write facts, page, metrics and verdict; returns their paths.

    The verdict is written last, so that a folder with one is complete. Raises `ReportError`.
    """
    from pytest_gpucluster.report.html import render
    from pytest_gpucluster.report.prometheus import exposition

    written = []
    try:
        (folder / "facts").mkdir(exist_ok=True)
        for name, node in facts.items():
            path = folder / "facts" / f"{safe_name(name)}.json"
            written.append(write_atomically(path, _json(node)))
        written.append(write_atomically(folder / "report.html", render(verdict, facts)))
        written.append(write_atomically(folder / "metrics.prom", exposition(verdict)))
        written.append(write_atomically(folder / "verdict.json", _json(verdict)))
    except OSError as error:
        raise ReportError(
            f"The report in {folder} is incomplete: {error.strerror}. The verdict stands on the "
            "terminal only; make room and run again."
        ) from None
    except Exception as error:  # a fault of the page must not take the verdict with it
        raise ReportError(f"The report in {folder} is incomplete: {error!r}") from error
    return written


def append_measurement(path: Path, measurement: Measurement) -> None:
    """Add one line; a crash loses nothing that was measured before.

    A folder that cannot be written to is reported when the verdict is written, not here.
    """
    with contextlib.suppress(OSError):
        append_line(path, encode(measurement))


def safe_name(name: str) -> str:
    """A node's name as a file name: no separators, no leading dot, not too long.

    Names that had to be changed get a digest, so that no two nodes share a file.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:80]
    if safe == name and safe:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe or 'node'}-{digest}"


def _json(value: object) -> bytes:
    return to_json(_encodable(to_builtins(value)))


def _encodable(value: object) -> object:
    """Without halves of surrogate pairs, which a file name or a message may hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(entry) for entry in value]
    return value
