"""NCCL's warnings, told apart by what they prove."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from pytest_gpucluster.facts.evidence.nccl_lines import NcclLine
from pytest_gpucluster.facts.sysfs import printable

WarningKind = Literal[
    "duplicate_gpu",
    "size_mismatch",
    "shm_full",
    "multicast",  # NVLS: the switch fabric refused
    "cuda",
    "no_interface",
    "no_route",
    "timed_out",
    "refused",
    "transport_retry",
    "completion_error",  # an RDMA completion with another status
    "no_provider",
    "version_mismatch",
    "port_error",  # an RDMA port or device reported an asynchronous fatal event
    "lost_peer",
    "harmless",
    "other",
]

_SHM = "/dev/shm"  # noqa: S108 - looked for in a text, never opened
_ADDRESS = r"(?P<peer>[0-9a-fA-F.:%\w-]{3,64})<[0-9]{1,5}>"
# Tried in order; the first that is found names the kind.
_KINDS: tuple[tuple[WarningKind, re.Pattern[str]], ...] = (
    (
        "duplicate_gpu",
        re.compile(
            r"Duplicate GPU detected : rank (?P<rank>[0-9]{1,6}) and rank (?P<other>[0-9]{1,6}) "
            r"both on CUDA device (?P<cuda_device>[0-9a-fA-F]{1,8})"
        ),
    ),
    (
        "size_mismatch",
        re.compile(
            rf"{_ADDRESS} collective mismatch error,? local size (?P<local>[0-9]{{1,18}}) "
            r"remote size (?P<remote>[0-9]{1,18})"
        ),
    ),
    (
        "shm_full",
        re.compile(rf"{_SHM}.{{0,200}}No space left on device(?: \((?P<errno>[0-9]+)\))?"),
    ),
    (
        "multicast",
        re.compile(r"(?:NVLS|[Mm]ulticast).{0,160}CUDA error (?P<cuda_error>[0-9]{1,4})"),
    ),
    (
        "cuda",
        re.compile(
            r"C(?:uda|UDA) (?:failure|error):? ?(?P<cuda_error>[0-9]{1,4})? ?'?"
            r"(?P<said>[^'\n]{0,120})"
        ),
    ),
    ("no_interface", re.compile(r"[Nn]o socket interface found|[Nn]o interface found in the same")),
    ("no_route", re.compile(r"No route to host|Network is unreachable")),
    ("refused", re.compile(r"Connection refused")),
    ("timed_out", re.compile(r"Connection timed out|connect.{0,40}timed? ?out", re.IGNORECASE)),
    (
        "transport_retry",
        re.compile(r"status=12\b|retry (?:counter|exceeded)|transport retry", re.IGNORECASE),
    ),
    (
        "completion_error",
        re.compile(
            r"(?:[Gg]ot completion|completion) .{0,80}?(?:status=|error )(?P<status>[0-9]+)"
        ),
    ),
    ("version_mismatch", re.compile(r"[Mm]ismatched? NCCL version|version mismatch")),
    (
        "port_error",
        re.compile(r"Got async (?:fatal )?event|async fatal event|port error|link down"),
    ),
    (
        "lost_peer",
        re.compile(
            r"Connection (?:reset|closed)|[Ss]ocket recv|Net(?:work)? ?IB.*flush error"
            r"|status=5\b|Broken pipe|remote process exited"
        ),
    ),
    ("harmless", re.compile(r"libibverbs|dlerror|No plugin found|missing internal|NUMA|MSCCL")),
)
_PEER = re.compile(rf"{_ADDRESS}")
_SIZE = re.compile(r"memory of size (?P<size>[0-9]{1,18})")
_SEGMENT = re.compile(r"shared memory segment \S{1,80} \(size (?P<segment>[0-9]{1,18})\)")


@dataclass(frozen=True)
class NcclWarning:
    """One warning: ``fields`` holds what its kind has (``rank``, ``other``, ``cuda_error``,
    ``local``, ``remote``, ...) as printed; ``peer`` the address it is about."""

    line: int
    kind: WarningKind
    text: str
    host: str | None = None
    device: int | None = None
    peer: str | None = None
    fields: dict[str, str] = field(default_factory=dict)


def classify(message: NcclLine) -> NcclWarning:
    """What a message at level WARN, or the last error that a library passed on, proves."""
    text = message.text
    kind: WarningKind = "other"
    fields: dict[str, str] = {}
    for name, pattern in _KINDS:
        if match := pattern.search(text):
            kind = name
            fields = {key: value for key, value in match.groupdict().items() if value}
            break
    if kind == "cuda" and message.place and message.place.startswith("transport/nvls"):
        kind = "multicast"
    if kind == "shm_full" and (segment := _SEGMENT.search(text)):
        fields["segment"] = segment["segment"]
    if kind == "multicast" and (size := _SIZE.search(text)):
        fields["size"] = size["size"]
    found = _PEER.search(text)
    peer = fields.pop("peer", None) or (found["peer"] if found else None)
    said = printable(text, 400)
    return NcclWarning(message.line, kind, said, message.host, message.device, peer, fields)
