"""torch's flight recorder: which collectives each rank of a group has enqueued and finished.

It records NCCL and Gloo alike, also what is called from C++. torch's own analyser fails on
Gloo's records, so they are joined here.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_gpucluster.ranks.differences import Difference, difference

KEPT = 200  # newest records kept per rank
# NCCL has a recorder of its own in CUDA builds.
RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


@dataclass(frozen=True)
class Collective:
    """One record. ``number`` is the sequence number within ``group``."""

    group: str
    number: int
    operation: str  # "all_reduce"
    sizes: str  # "[1024] Float"
    done: bool

    def describe(self) -> str:
        """``number 5 of its group: all_reduce [1024] Float``."""
        return f"number {self.number} of its group: {self.operation} {self.sizes}".strip()


def dump(since_ns: int) -> dict[str, Any]:
    """On a rank: the newest records as JSON values, or why there are none.

    ``since_ns`` is when the rank joined its group (`time.time_ns`): older records belong to
    groups that no longer exist, whose names and numbers came again.
    """
    try:
        c10d: Any = importlib.import_module("torch._C._distributed_c10d")
    except ImportError as error:
        return {"unavailable": str(error)}
    entries: list[Any] = []
    status: dict[str, Any] = {}
    for name in RECORDERS:
        recorder = getattr(c10d, name, None)
        if recorder is not None:
            try:
                told = json.loads(recorder(True, False))
            except (RuntimeError, ValueError, TypeError) as error:
                return {"unavailable": f"{name}: {error}"}
            entries += told.get("entries", [])
            status.update(told.get("pg_status", {}))
    fresh = [entry for entry in entries if int(entry.get("time_created_ns") or 0) >= since_ns]
    return {"entries": fresh[-KEPT:], "pg_status": status}


def parse(record: Mapping[str, Any]) -> tuple[Collective, ...]:
    """The collectives of a dump, oldest first; point-to-point and unreadable ones left out."""
    found = []
    for entry in record.get("entries", ()):
        try:
            if entry.get("is_p2p"):
                continue
            found.append(
                Collective(
                    group=str(entry["process_group"][0]),
                    number=int(entry["collective_seq_id"]),
                    operation=str(entry["profiling_name"]).rpartition(":")[2],
                    sizes=_sizes(entry.get("input_sizes"), entry.get("input_dtypes")),
                    done=bool(entry.get("retired")) or entry.get("state") == "completed",
                )
            )
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            continue  # another version's layout: the stacks still tell
    return tuple(found)


def _sizes(sizes: Any, dtypes: Any) -> str:
    if not isinstance(sizes, list) or not sizes:
        return ""
    dtype = f" {dtypes[0]}" if isinstance(dtypes, list) and dtypes else ""
    several = f"{len(sizes)} x " if len(sizes) > 1 else ""
    return f"{several}{sizes[0]}{dtype}"


def pending(record: Mapping[str, Any]) -> Collective | None:
    """The oldest collective that has not finished, if there is one."""
    return next((entry for entry in parse(record) if not entry.done), None)


def clash(records: Mapping[int, Mapping[str, Any]]) -> Difference | None:
    """The lowest number of a group under which the ranks recorded different operations.

    Sizes are compared for the operations that need them equal.
    """
    table: dict[tuple[str, int], dict[int, Collective]] = {}
    for rank, record in records.items():
        for entry in parse(record):
            table.setdefault((entry.group, entry.number), {})[rank] = entry
    for (_, number), by_rank in sorted(table.items()):
        keys = {_key(entry) for entry in by_rank.values()}
        if len(keys) > 1:
            said: dict[str, list[int]] = {}
            for rank, entry in by_rank.items():
                said.setdefault(f"{entry.operation} {entry.sizes}".strip(), []).append(rank)
            return difference(number, said)
    return None


def _key(entry: Collective) -> str:
    same_size = entry.operation in ("all_reduce", "broadcast", "reduce", "all_gather_single")
    return f"{entry.operation} {entry.sizes if same_size else ''}"
