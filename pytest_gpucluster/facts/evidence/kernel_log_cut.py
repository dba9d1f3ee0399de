"""Whether the last line of a kernel log stops inside a message that mattered."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpucluster.facts.evidence import kernel_log_lines as messages
from pytest_gpucluster.facts.evidence.kernel_log_events import AdapterEvent, Aer, SXid, Xid

_NVLINK5 = range(144, 151)
# What "caused by previous Xid 14" may have been before it was cut: 144 to 150.
_CUT_CAUSES = frozenset({1, 14, 15})
# Beginnings of messages this reader would have understood.
_BEGINNING = re.compile(
    r"(?:NVRM|NVRM:|NVRM: X|NVRM: Xi|NVRM: Xid|S?Xid(?: \([^)]{0,40}\)?:? ?)?"
    r"|nvidia-nvswitch[0-9]{0,3}:?(?: SX?i?d?)?|PCIe Bus Error: severity=\S{0,12}"
    r"|GPU has(?: fallen[a-z ]*)?|(?:O|o)ut of memory: K[a-z]{0,5}(?: process)?)\s*$"
)
# Linux: drivers/net/ethernet/mellanox/mlx5/core/events.c, mlx5_pme_error_str.
_MODULE_ERRORS = frozenset(
    {
        "power budget exceeded",
        "long range for non mlnx cable",
        "long range for non mlnx cable/module",
        "bus stuck (i2c or data shorted)",
        "bus stuck(i2c or data shorted)",
        "no eeprom/retry timeout",
        "enforce part number list",
        "unknown identifier",
        "high temperature",
        "bad or shorted cable/module",
        "pmd type is not enabled",
        "laser tec failure",
        "high current",
        "high voltage",
        "pcie system power slot exceeded",
        "high power",
        "module state machine fault",
        "unknown error",
        "unknown status",
        "unknown",
    }
)


def stops_inside(line: str, events: Sequence[object]) -> str | None:
    """The reason why the text is known to end too early, or ``None``.

    ``line`` is the last line with text and ``events`` what was read from it. A line that ends
    between two messages cannot be told from a whole log.
    """
    for event in events:
        reason = _incomplete(event, line)
        if reason:
            return reason
    if not events and (_BEGINNING.search(line[-200:]) or _half_module(line)):
        return "the last line stops inside a message of a driver"
    return None


def _incomplete(event: object, line: str) -> str | None:
    if isinstance(event, Xid):
        return _incomplete_xid(event, line.rstrip("\"'} \t"))
    if isinstance(event, SXid):
        detail = re.search(r"Data \{[^}]*\}|instance \d+\s*$", line)
        told = event.severity is not None or detail is not None
        return None if told else f"the last line stops inside SXid {event.code}"
    if isinstance(event, Aer):
        told = event.severity is not None or "severity=" not in line
        return None if told else "the last line stops inside a PCIe error report"
    if isinstance(event, AdapterEvent) and event.kind == "cable":
        said = (event.error or "").lower().replace("_", " ").strip(" .\"'")
        return None if said in _MODULE_ERRORS else "the last line stops inside a cable error"
    return None


def _incomplete_xid(event: Xid, line: str) -> str | None:
    reason = f"the last line stops inside Xid {event.code}"
    if messages.XID.search(line[-80:]) and not event.text:
        return reason  # the number itself may be half
    if event.code in _NVLINK5 and (event.link is None or not event.registers):
        return reason
    if event.code == 74 and "link" not in event.text.lower():
        return reason
    if event.code == 74 and event.link is not None and "(" in event.text and not event.registers:
        return reason
    if event.code == 154 and event.recovery_action is None:
        return reason
    if event.code == 45 and (event.cause in _CUT_CAUSES or _half_cause(event)):
        return reason
    return None


def _half_cause(event: Xid) -> bool:
    at = event.text.find("caused")
    return at >= 0 and event.cause is None


def _half_module(line: str) -> bool:
    return "mlx5_pcie_event" in line or "mlx5_port_module_event" in line
