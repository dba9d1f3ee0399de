"""How ranks are called in what people read."""

from __future__ import annotations

from collections.abc import Sequence


def rank_list(ranks: Sequence[int]) -> str:
    """``rank 2``, ``ranks 0,1,3`` or ``ranks 1-7``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]}-{ordered[-1]}"
    return "ranks " + ",".join(map(str, ordered))
