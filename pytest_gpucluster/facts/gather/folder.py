"""Gathers evidence of this node into a folder or an archive."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pytest_gpucluster.facts.gather.commands import Command, commands
from pytest_gpucluster.facts.gather.redact import (
    is_replaceable,
    own_names,
    pseudonym,
    without_names,
    without_secrets,
)
from pytest_gpucluster.facts.gather.run import Output, run_commands
from pytest_gpucluster.facts.sysfs import printable

INDEX = "index.json"
FORMAT = "pytest-gpucluster evidence"
SCHEMA_VERSION = 1
_ARCHIVES = (".tar.gz", ".tgz")

Status = Literal["gathered", "incomplete", "failed", "missing", "empty"]


class GatherError(ValueError):
    """Nothing was written; the message says why and what to do."""


@dataclass(frozen=True)
class Gathered:
    """One file of the evidence, or why there is none.

    ``status``: ``gathered`` in full; ``incomplete``: a part, as the command was killed at its
    deadline or printed too much; ``failed``: whatever it printed before it ended with an error
    (the file is there); ``missing``: the tool or file is not on this node; ``empty``: nothing
    was printed. ``kind`` is that of the reader that judges the file, ``None`` for a file that
    only people read. ``left_out`` counts redacted values.
    """

    file: str
    command: str
    status: Status
    detail: str = ""
    kind: str | None = None
    bytes: int = 0
    seconds: float = 0.0
    left_out: int = 0

    @property
    def written(self) -> bool:
        """Whether the evidence has this file."""
        return self.bytes > 0


def gather(
    destination: Path, anonymous: bool = False, table: Sequence[Command] | None = None
) -> list[Gathered]:
    """Gather everything the evidence readers know of this node into ``destination``.

    A name ending in ``.tar.gz`` or ``.tgz`` becomes an archive with one folder, another one a
    new or empty folder. Either appears whole or not at all, readable by its owner only; with it
    an ``index.json`` that lists every command, also those that were missing or hung. Values
    that look like secrets are left out; with ``anonymous`` this node's names are replaced by a
    hash that is the same in every run.

    Returns one `Gathered` for every command, in the order of the table. Takes at most a few
    minutes even if every command hangs. Raises `GatherError` where nothing can be written.
    """
    table = commands() if table is None else table
    destination = Path(os.path.abspath(destination))  # noqa: PTH100  (resolve() follows links)
    is_archive = destination.name.endswith(_ARCHIVES)
    _refuse_overwriting(destination, is_archive)
    names = own_names() if anonymous else []
    started = datetime.now(timezone.utc)
    results: dict[str, Gathered] = {}
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    except OSError as error:
        raise _not_written(destination, error) from error
    try:

        def take(command: Command, output: Output) -> None:
            results[command.file] = _kept(command, output, work, names)

        run_commands(table, take)
        gathered = [results[command.file] for command in table]
        _write(work / INDEX, _index(gathered, started, names))
        if is_archive:
            _pack(work, destination, names)
        else:
            work.rename(destination)
    except OSError as error:
        raise _not_written(destination, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return gathered


def _refuse_overwriting(destination: Path, is_archive: bool) -> None:
    if is_archive and os.path.lexists(destination):
        raise GatherError(f"{destination} exists. Choose a name that is not in use.")
    if not is_archive and os.path.lexists(destination):
        is_folder = destination.is_dir() and not destination.is_symlink()
        if not is_folder or any(destination.iterdir()):
            raise GatherError(
                f"{destination} exists and is not an empty folder. Choose a new one, or a name "
                "that ends in .tar.gz for an archive."
            )


def _not_written(destination: Path, error: OSError) -> GatherError:
    return GatherError(
        f"{destination}: the evidence could not be written: {error.strerror or error}. "
        "Choose a place with space and write permission."
    )


def _kept(command: Command, output: Output, work: Path, names: Sequence[str]) -> Gathered:
    """Write the output of one command, and say how it went."""
    if _says_nothing(output.content):
        output = replace(output, content=b"", total=0)
    status, detail = _status(command, output)
    content, left_out = without_secrets(output.content)
    content = without_names(content, names)
    if content:
        _write(work / command.file, content)
    return Gathered(
        file=command.file,
        command=without_names(command.shown.encode(), names).decode("utf-8", "replace"),
        status=status,
        detail=without_names(detail.encode(), names).decode("utf-8", "replace"),
        kind=command.kind,
        bytes=len(content),
        seconds=output.seconds,
        left_out=left_out,
    )


def _status(command: Command, output: Output) -> tuple[Status, str]:
    lost = output.total - len(output.content)
    last = printable(output.content[-300:].decode("utf-8", "replace").strip().split("\n")[-1], 200)
    if output.end == "missing":
        return "missing", output.detail
    if output.end == "not_started":
        return "failed", output.detail
    if output.end == "timed_out":
        held = " and cannot be killed: the kernel holds it" if output.undying else ""
        return "incomplete", f"did not end in {command.deadline_s:g} s{held}"
    if output.end == "flooded" or lost > 0:
        end = "last" if command.keep == "tail" else "first"
        return "incomplete", f"only the {end} {len(output.content)} bytes were kept"
    if output.status:
        how = f"signal {-output.status}" if output.status < 0 else f"exit status {output.status}"
        return "failed", f"{how}: {last}" if last else how
    return ("gathered", "") if output.content else ("empty", "it printed nothing")


def _says_nothing(content: bytes) -> bool:
    """Nothing at all, or journalctl's words for it."""
    if len(content) > 4096:
        return False
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    return all(
        (line.startswith(b"-- ") and line.endswith(b" --")) or line.startswith(b"No journal files")
        for line in lines
    )


def _index(gathered: Sequence[Gathered], started: datetime, names: Sequence[str]) -> bytes:
    node = os.uname().nodename
    kept = [name for name in names if not is_replaceable(name)]
    content = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "node": pseudonym(node) if names else printable(node, 255),
        "anonymous": bool(names),
        "names_not_replaced": len(kept),  # too much like a word of the texts
        "started": started.isoformat(timespec="seconds"),
        "files": [asdict(item) for item in gathered],
    }
    return (json.dumps(content, indent=2, ensure_ascii=True) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)


def _pack(work: Path, destination: Path, names: Sequence[str]) -> None:
    """Write the archive beside its place, then move it there."""
    node = os.uname().nodename
    folder = pseudonym(node) if names else "".join(c if c.isalnum() else "-" for c in node)[:100]
    packed = work.with_name(work.name + ".tar.gz")
    try:
        descriptor = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with (
            os.fdopen(descriptor, "wb") as stream,
            tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted(work.iterdir()):
                content = path.read_bytes()
                member = tarfile.TarInfo(f"evidence-{folder}/{path.name}")
                member.size = len(content)
                member.mtime = int(time.time())
                member.mode = 0o644
                archive.addfile(member, io.BytesIO(content))
        try:
            os.link(packed, destination)  # unlike rename(), never over what appeared meanwhile
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            packed.rename(destination)
    finally:
        packed.unlink(missing_ok=True)
