"""What single messages of a kernel log say: Xid, SXid, AER, mlx5, OOM killer, driver faults.

The wording is that of the drivers: NVRM and nvidia-nvswitch (github.com/NVIDIA/
open-gpu-kernel-modules), mlx5_core and PCIe AER (Linux: drivers/net/ethernet/mellanox/mlx5/
core/{events,health}.c, drivers/pci/pcie/aer.c), Linux: mm/oom_kill.c.
"""

from __future__ import annotations

import re

from pytest_gpucluster.facts.evidence.kernel_log_events import (
    AdapterEvent,
    AdapterKind,
    Aer,
    DriverFault,
    OffBus,
    OomKill,
    Severity,
    SXid,
    Xid,
)
from pytest_gpucluster.facts.evidence.kernel_log_places import full_address
from pytest_gpucluster.facts.sysfs import printable

# Every way in which the driver and old logs spell an address: with and without domain, with a
# domain of four or eight digits, with and without function.
_ADDRESS = r"(?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
XID = re.compile(
    rf"(?<![A-Za-z])Xid \((?:PCI:)?({_ADDRESS})(?:[ ,][^)]{{0,40}})?\) ?: ?([0-9]{{1,6}})(?![0-9])",
    re.ASCII,
)
SXID = re.compile(rf"\bSXid \((?:PCI:)?({_ADDRESS})\) ?: ?([0-9]{{1,6}})(?![0-9])", re.ASCII)
_SWITCH = re.compile(r"(nvidia-nvswitch[0-9]{1,3}): SXid", re.ASCII)
_FULL_ADDRESS = re.compile(
    r"(?<![0-9a-fA-F:])[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?(?![0-9a-fA-F]|:[0-9a-fA-F])",
    re.ASCII,
)
_PID = re.compile(r"pid=['\"]?([^,'\"]{0,60})['\"]?(?:, ?|$)")
_NAME = re.compile(r"name=([^,]{0,120})(?:, ?|$)")
_SEVERITY = re.compile(r"\b(non-?fatal|fatal)\b", re.IGNORECASE)
_LINK = re.compile(r"\blink (-?[0-9]{1,3})(?![0-9])", re.IGNORECASE)
_NVLINK5 = re.compile(r"([A-Z][A-Z0-9_/]{1,40}) (Fatal|Nonfatal|Non-fatal)\b")
_REGISTERS = re.compile(r" ?\((0x[0-9a-fA-F]{1,16}(?:,? ?0x[0-9a-fA-F]{1,16}){0,31})\)", re.ASCII)
_CAUSE = re.compile(r"caused by previous Xid ([0-9]{1,6})(?![0-9])", re.ASCII)
_ACTION = re.compile(
    r"recovery action changed from .{1,80}? to (?:0x[0-9a-fA-F]{1,8} \(([^)]{1,60})\)"
    r"|([A-Z][A-Za-z0-9 ]{1,60}))"
)
_GSP = re.compile(r"Timeout after ([0-9]{1,6})s of waiting for RPC response", re.ASCII)
_FUNCTION = re.compile(r"Expected function ([0-9]{1,6}) \((\w{1,80})\)", re.ASCII)
_PORT = re.compile(r"\bport:? ?([0-9]{1,4})(?![0-9])", re.IGNORECASE)

_AER_LINE = re.compile(r"AER: .{0,80}error (?:message )?received|PCIe Bus Error: severity=")
_AER_SEVERITY = re.compile(
    r"(Corrected|Correctable)|(?:Uncorrected|Uncorrectable) \((Fatal|Non-Fatal)\)", re.IGNORECASE
)
_DRIVER = re.compile(r"([A-Za-z][\w-]{1,40}) [0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:", re.ASCII)

_MODULE = re.compile(
    r"Port module event(\[error\])?: module ([0-9]{1,3})(?:, ([^,]{1,60}))?(?:, ([^,]{1,80}))?",
    re.ASCII,
)
_WATTS = re.compile(r"insufficient power.{0,60}\(([0-9]{1,4}) ?W\)", re.ASCII)
_MLX5_LINK = re.compile(r"\b([\w.@-]{1,40}): Link (down|up)\b")
# First match wins. "command" is noise by itself: the firmware refused a register.
_MLX5: tuple[tuple[AdapterKind, re.Pattern[str]], ...] = (
    ("power", re.compile(r"insufficient power")),
    (
        "health",
        re.compile(
            r"health compromised|fatal error|internal error|device in error state"
            r"|unrecoverable|lost connection to fw|health recovery|fw error|assert_var",
            re.IGNORECASE,
        ),
    ),
    (
        "timeout",
        re.compile(r"tx timeout|transmit queue .{0,20}timed out|\) timeout", re.IGNORECASE),
    ),
    ("temperature", re.compile(r"high.temperature|over.?temperature", re.IGNORECASE)),
    ("command", re.compile(r"mlx5_cmd_out_err|ACCESS_REG|cmd_status|syndrome")),
)
_OOM = re.compile(r"ut of memory: Kill(?:ed)? process ([0-9]{1,10}) \(([^)]{0,60})\)?", re.ASCII)
_OOM_CALL = re.compile(r"(\S{1,60}) invoked oom-killer", re.ASCII)

_FAULTS = (
    ("assertion", re.compile(r"(?:Assertion|Check) failed:")),
    ("init_failed", re.compile(r"RmInitAdapter failed|rm_init_adapter failed")),
    ("probe_failed", re.compile(r"probe routine failed|None of the NVIDIA devices were init")),
    ("version_mismatch", re.compile(r"API mismatch")),
    ("global_fatal", re.compile(r"global fatal error")),
    ("unsupported", re.compile(r"is not supported by|only supported by")),
    ("nvlink", re.compile(r"NVLink.{0,80}\b(?:error|fail|disabled|down)", re.IGNORECASE)),
)
_LOST_GPU = re.compile(rf"GPU (?:at )?(?:PCI:)?({_ADDRESS})", re.ASCII)
_PCI_ID = re.compile(r"PCI ID: ([0-9a-fA-F]{4}:[0-9a-fA-F]{4})", re.ASCII)
_GPU_INDEX = re.compile(r"NVRM: GPU([0-9]{1,3}) ", re.ASCII)


def xids(text: str, line: int, timestamp: str | None, host: str | None) -> list[Xid]:
    """Every Xid in a message (services join several in one line)."""
    found = []
    matches = list(XID.finditer(text))
    for number, match in enumerate(matches):
        end = matches[number + 1].start() if number + 1 < len(matches) else len(text)
        rest = text[match.end() : end].lstrip(", ")
        pid, rest = _taken(_PID, rest)
        process, rest = _taken(_NAME, rest)
        code = int(match[2])
        link, registers = _link(rest)
        unit = _NVLINK5.match(rest) if 144 <= code <= 150 else None
        says = 144 <= code <= 150 or "NVLink" in rest
        severity = unit[2] if unit else (_search(_SEVERITY, rest) if says else None)
        action = _ACTION.search(rest)
        timeout = _search(_GSP, rest)
        function = _FUNCTION.search(rest)
        cause = _search(_CAUSE, rest)
        found.append(
            Xid(
                line=line,
                code=code,
                pci=match[1],
                bus_id=full_address(match[1]) or match[1],
                text=printable(rest.strip(), 400),
                pid=int(pid) if pid and pid.isascii() and pid.isdecimal() else None,
                process=None if process in (None, "", "<unknown>") else printable(process, 120),
                severity=_severity(severity),
                unit=unit[1] if unit else None,
                link=link,
                registers=registers,
                cause=int(cause) if cause else None,
                recovery_action=(action[1] or action[2]).strip() if action else None,
                timeout_s=int(timeout) if timeout else None,
                function=function[2] if function else None,
                function_number=int(function[1]) if function else None,
                timestamp=timestamp,
                host=host,
            )
        )
    return found


def sxids(text: str, line: int, timestamp: str | None, host: str | None) -> list[SXid]:
    """Every SXid in a message."""
    found = []
    matches = list(SXID.finditer(text))
    switch = _search(_SWITCH, text)
    for number, match in enumerate(matches):
        end = matches[number + 1].start() if number + 1 < len(matches) else len(text)
        rest = text[match.end() : end].lstrip(", ")
        link = _search(_LINK, rest)
        port = _search(_PORT, rest)
        found.append(
            SXid(
                line=line,
                code=int(match[2]),
                pci=match[1],
                bus_id=full_address(match[1]) or match[1],
                text=printable(rest.strip(), 400),
                switch=switch,
                severity=_severity(_search(_SEVERITY, rest)),
                link=int(link) if link else None,
                port=int(port) if port else None,
                timestamp=timestamp,
                host=host,
            )
        )
    return found


def aer(text: str, line: int, timestamp: str | None, host: str | None) -> Aer | None:
    """A PCIe error report, or ``None``."""
    match = _AER_LINE.search(text)
    if match is None:
        return None
    # A port reports, the address after the message is the device that erred.
    addresses = _FULL_ADDRESS.findall(text)
    pci = (addresses[0 if match[0].startswith("PCIe") else -1]) if addresses else None
    word = _AER_SEVERITY.search(text)
    return Aer(
        line=line,
        text=printable(text.strip(), 400),
        severity=("corrected" if word[1] else _severity(word[2])) if word else None,
        pci=pci,
        bus_id=full_address(pci) if pci else None,
        driver=_search(_DRIVER, text),
        timestamp=timestamp,
        host=host,
    )


def adapter(text: str, line: int, timestamp: str | None, host: str | None) -> AdapterEvent | None:
    """A line of the mlx5 driver that says more than its version, or ``None``."""
    kind: AdapterKind | None = None
    module = _MODULE.search(text)
    link = _MLX5_LINK.search(text)
    if module:
        said = f"{module[3] or ''} {module[4] or ''}".lower().replace("_", " ")
        if "high temperature" in said:
            kind = "temperature"
        elif module[1]:
            kind = "cable"
        elif "unplugged" in said:
            kind = "unplugged"
    elif link:
        kind = "link_down" if link[2] == "down" else "link_up"
    else:
        kind = next((name for name, pattern in _MLX5 if pattern.search(text)), None)
    if kind is None:
        return None
    pci = _search(_FULL_ADDRESS, text, 0)
    watts = _search(_WATTS, text)
    return AdapterEvent(
        line=line,
        kind=kind,
        text=printable(text.strip(), 400),
        pci=pci,
        bus_id=full_address(pci) if pci else None,
        module=int(module[2]) if module else None,
        error=(module[4] or module[3]) if module and module[1] else None,
        watts=int(watts) if watts else None,
        netdev=link[1] if link else None,
        timestamp=timestamp,
        host=host,
    )


def oom(text: str, line: int, timestamp: str | None, host: str | None) -> OomKill | None:
    """A message of the OOM killer, or ``None``."""
    said = printable(text.strip(), 400)
    if match := _OOM.search(text):
        return OomKill(line, "killed", said, int(match[1]), match[2] or None, timestamp, host)
    if match := _OOM_CALL.search(text):
        return OomKill(line, "invoked", said, None, match[1], timestamp, host)
    return None


def fault(text: str, line: int, timestamp: str | None, host: str | None) -> DriverFault | None:
    """A failure that NVRM reports without an Xid, or ``None``."""
    kind = next((name for name, pattern in _FAULTS if pattern.search(text)), None)
    if kind is None:
        return None
    pci = _search(_FULL_ADDRESS, text, 0)
    index = _search(_GPU_INDEX, text)
    return DriverFault(
        line=line,
        kind=kind,
        text=printable(text.strip(), 400),
        pci=pci,
        bus_id=full_address(pci) if pci else None,
        gpu=int(index) if index else None,
        timestamp=timestamp,
        host=host,
    )


def off_bus(text: str, line: int, timestamp: str | None, host: str | None) -> OffBus:
    """A message about a lost GPU, or the first line of one ("The NVIDIA GPU 0000:b3:00.0")."""
    pci = _search(_LOST_GPU, text)
    return OffBus(
        line=line,
        text=printable(text.strip(), 400),
        pci=pci,
        bus_id=full_address(pci) if pci else None,
        pci_id=_search(_PCI_ID, text),
        timestamp=timestamp,
        host=host,
    )


def _taken(pattern: re.Pattern[str], text: str) -> tuple[str | None, str]:
    match = pattern.match(text)
    return (match[1].strip(), text[match.end() :]) if match else (None, text)


def _search(pattern: re.Pattern[str], text: str, group: int = 1) -> str | None:
    match = pattern.search(text)
    return match[group] if match else None


def _severity(word: str | None) -> Severity | None:
    if word is None:
        return None
    return "nonfatal" if word.lower().startswith("non") else "fatal"


def _link(text: str) -> tuple[int | None, tuple[str, ...]]:
    match = _LINK.search(text)
    if match is None:
        return None, ()
    registers = _REGISTERS.match(text, match.end())
    values = tuple(re.findall(r"0x[0-9a-fA-F]+", registers[1])) if registers else ()
    return int(match[1]), values
