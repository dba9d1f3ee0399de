"""What DDP and training frameworks say of models and gradients that do not fit."""

from __future__ import annotations

import re

from pytest_gpucluster.facts.evidence.document import Document
from pytest_gpucluster.facts.evidence.rank_messages import Kinds, Messages, scan

KIND = "ddp"
TITLE = "messages of DDP and Megatron about models and gradients"

_HINTS = ("expects same model", "NaN", "appears not to match", "has inconsistent")
_KINDS: Kinds = (
    (
        "model_differs",
        re.compile(
            r"expects same model across all ranks, but Rank (?P<rank>[0-9]{1,7}) has "
            r"(?P<params>[0-9]{1,12}) params, while rank (?P<other>[0-9]{1,7}) has inconsistent "
            r"(?P<other_params>[0-9]{1,12}) params"
        ),
    ),
    (
        "shape_differs",
        re.compile(
            r"params?\[[0-9]{1,9}\] in this process with sizes \[[0-9, ]{0,80}\] "
            r"appears not to match"
        ),
    ),
    (  # NVIDIA/Megatron-LM checks gradients before they are reduced
        "nan",
        re.compile(r"[Ff]ound NaN in local .{0,120}"),
    ),
)


def recognises(document: Document) -> bool:
    """Whether one of the messages stands there."""
    return bool(scan(document, _HINTS, _KINDS).messages)


def read(document: Document) -> Messages:
    """All messages; never raises, linear in the text."""
    return scan(document, _HINTS, _KINDS)


def summary(record: Messages) -> dict[str, object]:
    """``params``: number of parameters by rank."""
    facts: dict[str, object] = {"messages": len(record.messages)}
    for message in record.messages:
        if message.kind == "model_differs":
            sides = (("rank", "params"), ("other", "other_params"))
            facts["params"] = {
                str(message.field(rank)): int(message.field(count) or 0) for rank, count in sides
            }
    nan = sorted({m.rank for m in record.messages if m.kind == "nan" and m.rank is not None})
    if nan:
        facts["nan_ranks"] = nan
    return facts
