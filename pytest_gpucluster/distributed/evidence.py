"""What is kept of a hang or a death, beside the ranks' logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucluster.ranks.results import GroupResult, RankResult


def keep(folder: Path, nodeid: str, outcome: GroupResult) -> None:
    """Write ``TEST-rankN.txt`` for each rank if one was cut off or died.

    Stack, last collective, torch's flight recorder and the calls of the test: everything the
    story in the report was made from.
    """
    if all(result.state in ("done", "unknown_test") for result in outcome.ranks):
        return
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in nodeid)[-100:]
    for result in outcome.ranks:
        (folder / f"{name}-rank{result.rank}.txt").write_text(_describe(result), encoding="utf-8")


def _describe(result: RankResult) -> str:
    return "\n\n".join(
        (
            f"rank {result.rank}: {result.state} {result.ended or ''}".rstrip(),
            f"process: {result.activity or 'unknown'}",
            result.standing.describe() if result.standing else "last collective: unknown",
            f"stack:\n{result.stack or '(none)'}",
            *(f"last {stream}:\n{text}" for stream, text in result.last_output),
            f"answer:\n{json.dumps(result.told, indent=1)}\n",
        )
    )
