"""What launchers and CUDA say when ranks do not start."""

from __future__ import annotations

import re

from pytest_gpucluster.facts.evidence.document import Document
from pytest_gpucluster.facts.evidence.rank_messages import Kinds, Messages, scan

KIND = "launcher"
TITLE = "messages of torchrun, mpirun and CUDA about ranks that do not start"

_HINTS = (
    "not enough slots", "ddress already in use", "EADDRINUSE", "failed to listen",
    "nvalid device ordinal", "not yet initialized", "uncorrectable ECC", "out of memory",
    "CUDA error", "CUDA failure", "busy or unavailable", "exitcode", "Signal ",
)  # fmt: skip
_KINDS: Kinds = (
    (
        "no_slots",
        re.compile(r"not enough slots available.{0,80}satisfy the (?P<wanted>[0-9]{1,7})"),
    ),
    (
        "port_in_use",
        re.compile(
            r"EADDRINUSE|[Aa]ddress already in use"
            r"|server socket has failed to listen on any local network address"
        ),
    ),
    ("bad_device", re.compile(r"(?:CUDA|cuda).{0,80}invalid device ordinal")),
    ("not_ready", re.compile(r"system not yet initialized|CUDA (?:error|failure):? 802")),
    ("uncorrectable", re.compile(r"uncorrectable ECC error encountered")),
    ("busy_device", re.compile(r"all CUDA-capable devices are busy or unavailable")),
    (
        "killed",
        re.compile(r"exitcode +: -(?P<signal>[0-9]{1,2}) \(pid: [0-9]+\)|Signal (?:9|11)\b"),
    ),
    ("out_of_memory", re.compile(r"CUDA out of memory|CUDA error: out of memory")),
)


def recognises(document: Document) -> bool:
    """Whether one of the messages stands there."""
    return bool(scan(document, _HINTS, _KINDS).messages)


def read(document: Document) -> Messages:
    """All messages; never raises, linear in the text."""
    return scan(document, _HINTS, _KINDS)


def summary(record: Messages) -> dict[str, object]:
    """``slots_requested``: what Open MPI was asked for, in vain."""
    facts: dict[str, object] = {"messages": len(record.messages)}
    for message in record.messages:
        if message.kind == "no_slots" and (wanted := message.field("wanted")):
            facts.setdefault("slots_requested", int(wanted))
            facts.setdefault("rows", 0)
    return facts
