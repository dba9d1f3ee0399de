"""Where a message of a kernel log comes from: the host that a line names, the PCI address."""

from __future__ import annotations

import re

from pytest_gpucluster.facts.sysfs import bus_id

_HOST = re.compile(r"(?:^|\s)([A-Za-z0-9][\w.-]{0,252}) kernel: ", re.ASCII)
_FRONT = re.compile(
    r"([A-Za-z0-9][\w.-]{0,252}): (?=\[|<?[0-9]|NVRM|kern|[A-Z][a-z]{2} )", re.ASCII
)
_NO_HOST = re.compile(r"mlx5|nvidia|pcieport|[A-Za-z]+$", re.IGNORECASE)


def host_of(line: str) -> str | None:
    """The host in front of ``kernel:`` or of the whole line (pdsh), or ``None``."""
    if match := _HOST.search(line, 0, 400):
        return match[1]
    front = _FRONT.match(line)
    return front[1] if front and not _NO_HOST.match(front[1]) else None


def full_address(printed: str) -> str | None:
    """``dddd:bb:dd.f``, lower case; a missing domain and function are taken as 0."""
    return bus_id(printed if printed.count(":") == 2 else f"0000:{printed}")
