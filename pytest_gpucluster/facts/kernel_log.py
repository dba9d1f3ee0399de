"""Kernel log lines that concern GPUs, switches, PCIe, adapters and memory."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_gpucluster.facts.model import KernelEvent, Unreadable
from pytest_gpucluster.facts.sysfs import bus_id, printable

MAX_BYTES = 16 * 2**20  # the end of the log that is looked at
_MAX_READ = 4 * MAX_BYTES  # a log that grows while it is read must not hold us for ever
_MAX_LINE = 4096
_MAX_ALIKE = 200  # events of one kind, number and device that are kept, the newest ones
_MAX_EVENTS = 10_000
_MAX_APART = 8  # lines between "The NVIDIA GPU ..." and "fallen off the bus"

_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
# "GPU-I:02" names the MIG instance; drivers before 3xx print the address without "PCI:".
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_ADDRESS})(?: [^)]{{1,40}})?\): ([0-9]{{1,6}})", re.A)
_SXID = re.compile(rf"\bSXid \((?:PCI:)?({_ADDRESS})\): ([0-9]{{1,6}})", re.ASCII)
_LOST_GPU = re.compile(rf"GPU (?:at )?(?:PCI:)?({_ADDRESS})", re.ASCII)
_AER = re.compile(r"AER: .{0,80}error (?:message )?received|PCIe Bus Error: severity=")
_MLX5_FAULT = re.compile(
    r"insufficient power|event\[error\]|high temperature|health compromised|fatal error"
    r"|internal error|tx timeout|lost connection to fw|device in error state",
    re.IGNORECASE,
)
_OOM = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process [0-9]")
_ANY_ADDRESS = re.compile(rf"(?<![0-9a-fA-F:]){_ADDRESS}", re.ASCII)
_HINTS = (
    "NVRM",
    "SXid",
    "AER:",
    "PCIe Bus Error",
    "mlx5",
    "ut of memory",
    "fallen off the bus",
)

# Linux: Documentation/ABI/testing/dev-kmsg: "level,sequence,microseconds,flags;message".
_KMSG = re.compile(r"[0-9]{1,4},[0-9]{1,20},([0-9]{1,20}),[^;]{0,200};", re.ASCII)
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_STAMPS = (
    re.compile(r"\[(\w{3} \w{3} [ 0-9]\d [0-9:]{8} \d{4})\]", re.ASCII),  # dmesg -T
    re.compile(r"\b(\d{4}-\d\d-\d\d[T ][0-9:]{8}(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)", re.ASCII),
    re.compile(r"\b([A-Z][a-z]{2} [ 0-9]\d \d\d:\d\d:\d\d) ", re.ASCII),  # syslog
    re.compile(r"\[ {0,12}([0-9]{1,12}\.[0-9]{1,9})\]", re.ASCII),  # seconds since boot
)


@dataclass(frozen=True)
class KernelLogFacts:
    """Events, oldest first; ``None`` when the log could not be read."""

    events: tuple[KernelEvent, ...] | None = None
    unreadable: tuple[Unreadable, ...] = ()


def read_kernel_log(root: Path = Path("/")) -> KernelLogFacts:
    """The live kernel log: its last 16 MB, at most 200 events of a kind, number and device.

    ``/dev/kmsg`` first, then the kernel's own buffer by klogctl(3), which some containers
    may still read. An empty log is taken for an unreadable one: containers link
    ``/dev/kmsg`` to ``/dev/null``, and no line is no proof of no error.
    """
    try:
        content = read_kmsg(root / "dev/kmsg")
        problem = "/dev/kmsg is empty (a container may link it to /dev/null)"
    except OSError as error:
        content = b""
        problem = f"/dev/kmsg: {error.strerror or error}"
    if not content and root == Path("/"):
        content = _klogctl()
    if not content:
        reason = (
            f"{problem}, so past Xid errors are unknown. Run as root or with CAP_SYSLOG and, in a "
            "container, with the host's /dev/kmsg; or judge saved `dmesg` output."
        )
        return KernelLogFacts(unreadable=(Unreadable("kernel log", reason),))
    lines = content.decode("utf-8", "replace").split("\n")
    return KernelLogFacts(_newest(parse(lines)))


def read_kmsg(path: Path) -> bytes:
    """Records of ``/dev/kmsg`` (or a file in its format), the newest 16 MB; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    parts: deque[bytes] = deque()
    held = total = 0
    try:
        while total < _MAX_READ:
            try:
                part = os.read(descriptor, 65536)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: go on with the next
                    continue
                if parts:
                    break
                raise
            if not part:
                break
            parts.append(part)
            held += len(part)
            total += len(part)
            while held > MAX_BYTES:
                held -= len(parts.popleft())
    finally:
        os.close(descriptor)
    return b"".join(parts)


def parse(lines: Iterable[str]) -> tuple[KernelEvent, ...]:
    """Events in kernel log lines, as ``/dev/kmsg``, dmesg, syslog or journalctl print them.

    Line numbers count from 1. Timestamps are kept as printed; those of ``/dev/kmsg`` become
    seconds since boot. ``NVRM: Xid`` 79 stays an ``xid``; ``off_bus`` is the driver's own
    message about a lost GPU, which may come with no Xid at all and over three lines.
    """
    events = []
    opening: KernelEvent | None = None  # "The NVIDIA GPU 0000:b3:00.0", message still to come
    for number, raw in enumerate(lines, 1):
        line = raw[:_MAX_LINE]
        if not any(hint in line for hint in _HINTS):
            continue
        message, stamp = split_line(line)
        if opening and number - (opening.line or 0) > _MAX_APART:
            opening = None
        event = _event(message, stamp, number, opening is not None)
        if opening and event is not None and event.kind == "off_bus" and event.bus_id is None:
            event = KernelEvent(
                "off_bus",
                printable(f"{opening.text} {event.text}", 400),
                bus_id=opening.bus_id,
                timestamp=opening.timestamp,
                line=opening.line,
            )
        if event is not None:
            events.append(event)
            opening = None
        elif "NVRM: The NVIDIA GPU" in message and (match := _LOST_GPU.search(message)):
            opening = KernelEvent(
                "off_bus", _text(message), bus_id=bus_id(match[1]), timestamp=stamp, line=number
            )
    return tuple(events)


def _event(message: str, stamp: str | None, number: int, begun: bool) -> KernelEvent | None:
    text = _text(message)
    if match := _XID.search(message):
        return KernelEvent("xid", text, int(match[2]), bus_id(match[1]), stamp, number)
    if match := _SXID.search(message):
        return KernelEvent("sxid", text, int(match[2]), bus_id(match[1]), stamp, number)
    if "fallen off the bus" in message and (begun or "NVRM" in message):
        match = _LOST_GPU.search(message)
        lost = bus_id(match[1]) if match else None
        return KernelEvent("off_bus", text, None, lost, stamp, number)
    addresses = _ANY_ADDRESS.findall(message)
    if match := _AER.search(message):
        # The port reports, the address after it is the device that erred.
        index = 0 if match[0].startswith("PCIe") else -1
        blamed = bus_id(addresses[index]) if addresses else None
        return KernelEvent("aer", text, None, blamed, stamp, number)
    if "mlx5" in message and _MLX5_FAULT.search(message):
        adapter = bus_id(addresses[0]) if addresses else None
        return KernelEvent("mlx5", text, None, adapter, stamp, number)
    if _OOM.search(message):
        return KernelEvent("oom", text, None, None, stamp, number)
    return None


def split_line(line: str) -> tuple[str, str | None]:
    """The message and the timestamp, as printed, of one line in any form of a kernel log."""
    record = _KMSG.match(line)
    if record:
        message = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), line[record.end() :])
        seconds, microseconds = divmod(int(record[1]), 1_000_000)
        return message, f"{seconds}.{microseconds:06d}"
    for pattern in _STAMPS:
        match = pattern.search(line, 0, 160)
        if match:
            return line, match[1]
    return line, None


def _text(message: str) -> str:
    return printable(message.strip(), 400)


def _newest(events: tuple[KernelEvent, ...]) -> tuple[KernelEvent, ...]:
    alike: Counter[tuple[str, int | None, str | None]] = Counter()
    kept = []
    for event in reversed(events):
        key = (event.kind, event.code, event.bus_id)
        alike[key] += 1
        if alike[key] <= _MAX_ALIKE:
            kept.append(event)
    return tuple(reversed(kept[:_MAX_EVENTS]))


def _klogctl() -> bytes:
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        klogctl = ctypes.CDLL(None).klogctl
        size = klogctl(10, None, 0)  # SYSLOG_ACTION_SIZE_BUFFER
        if 0 < size <= _MAX_READ:
            buffer = ctypes.create_string_buffer(size)
            length = klogctl(3, buffer, size)  # SYSLOG_ACTION_READ_ALL: reads, clears nothing
            return buffer.raw[: max(length, 0)][-MAX_BYTES:]
    return b""
