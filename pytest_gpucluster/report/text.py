"""Text from machines, made fit to show; the words that all reports share."""

from __future__ import annotations

import re
from collections.abc import Sequence

# C0 and C1 controls, line separators, marks that turn the direction of writing, and halves of
# surrogate pairs: none of them may reach a terminal or a page.
UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
LONGEST_LINE = 400
NUMBERED = re.compile(r"(.*?)(\d+)")
MEANING = {
    "accepted": "training jobs may run here",
    "accepted_with_warnings": "training jobs may run here; read the warnings",
    "rejected": "do not run training jobs here",
    "lost": "the node was lost during the run",
    "unverified": "not accepted: something that must be checked was not",
    "rehearsed": "CPU ranks only: this accepts nothing",
}


def printable(text: str, longest: int = LONGEST_LINE) -> str:
    """One line without control characters, cut to a bearable length."""
    clean = UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.splitlines()))
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"


def figure(value: object) -> str:
    """A measured or expected value; a dash for what is not known."""
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def name_parts(component: str) -> str:
    """A component as people say it: ``GPU0,GPU1,GPU2,GPU5`` is ``GPU0 to GPU2, GPU5``."""
    names = component.split(",")
    if len(names) < 3:
        return ", ".join(names)
    return f"{', '.join(_runs(names))} ({len(names)})"


def _runs(names: Sequence[str]) -> list[str]:
    runs: list[list[str]] = []
    for name in names:
        if runs and _successor(runs[-1][-1]) == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    return [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs]


def _successor(name: str) -> str | None:
    match = NUMBERED.fullmatch(name)
    return f"{match[1]}{int(match[2]) + 1}" if match and len(match[2]) < 10 else None
