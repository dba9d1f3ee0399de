"""Formats of one line a port: ibdev2netdev, ``rdma link``; and what tools say when they fail."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpucluster.facts.evidence.ib_ports import IbMissing, Ports, known_text
from pytest_gpucluster.facts.sysfs import bus_id, printable

_MAX_LINE = 1024
_MAX_MISSING = 1000
_NAME = r"[A-Za-z][\w.-]{0,62}"
# ibdev2netdev: "mlx5_0 port 1 ==> ib0 (Up)"; -v: "0000:0c:00.0 mlx5_0 (MT4123 - ...) ... fw
# 20.36.1010 port 1 (ACTIVE) ==> ib0 (Up)".
ROW = re.compile(
    r"\bport\s{1,8}([0-9]{1,3})\s{1,8}(?:\((\w{1,16})\s{0,8}\)\s{1,8})?==>\s{0,16}"
    r"(?:([\w.@-]{1,64})\s{0,16})?(?:\((\w{1,16})\))?",
    re.ASCII,
)
RDMA_LINK = re.compile(
    rf"\blink ({_NAME})/([0-9]{{1,3}}):? .{{0,200}}?\bstate (\w{{1,20}}) "
    r"physical_state (\w{1,40})(?: netdev ([\w.@-]{1,64}))?",
    re.ASCII,
)
_FIRMWARE = re.compile(r"\bfw (\S{1,40})")
FAILED = re.compile(
    r"ibpanic:|ibwarn:|(?:cat|head|grep|ls): .{0,200}infiniband|Failed to (?:open|query|get) "
    r"|No IB devices found|IB device '.{1,64}' (?:failed|not found)"
)
_GONE = re.compile(
    rf"(?:IB device ['\"]({_NAME})['\"]|sys/class/infiniband/({_NAME})(?:/ports|/device|['\":])"
    rf"|device ({_NAME}) )",
    re.ASCII,
)


def read_rows(lines: Sequence[str], ports: Ports) -> None:
    """Add every row of ibdev2netdev and ``rdma link`` to ``ports``."""
    for number, raw in enumerate(lines, 1):
        line = raw[:_MAX_LINE]
        if "==>" in line and " <==" not in line:
            _ibdev2netdev(line, number, ports)
        elif "physical_state " in line and (match := RDMA_LINK.search(line)):
            host = line[: match.start()].strip().rstrip(":") or None
            ports.port(
                number,
                host,
                match[1],
                int(match[2]),
                "rdma link",
                **ports.state(match[3], number),
                **ports.physical(match[4], number),
                netdev=match[5],
            )


def _ibdev2netdev(line: str, number: int, ports: Ports) -> None:
    match = ROW.search(line)
    words = line[: match.start()].split() if match else []
    host = words.pop(0).rstrip(":") if words and words[0].endswith(":") else None
    address = bus_id(words[0]) if words else None
    if address:
        words.pop(0)
    if match is None or not words or not re.fullmatch(_NAME, words[0], re.ASCII):
        if number == ports.last_line:
            ports.stop("the last row of ibdev2netdev is not complete")
        ports.miss(number, "a row of ibdev2netdev without device and port")
        return
    firmware = _FIRMWARE.search(line, 0, match.start())
    ports.device(
        number,
        host,
        words[0],
        bus_id=address,
        firmware=known_text(firmware[1]) if firmware else None,
    )
    state = ports.state(match[2], number) if match[2] else {}
    if match[4] is None:
        ports.miss(number, "a row of ibdev2netdev without the state of its network device")
        if number == ports.last_line:
            ports.stop("the last row of ibdev2netdev is not complete")
    ports.port(
        number,
        host,
        words[0],
        int(match[1]),
        "ibdev2netdev",
        **state,
        netdev=match[3] if match[4] is not None else None,
        netdev_state=match[4],
    )


def read_failures(lines: Sequence[str], ports: Ports) -> list[IbMissing]:
    """Devices that a tool could not open and that no other line shows to be there."""
    seen = {(port.host, port.device) for port in ports.ports.values() if port.state is not None}
    missing: dict[tuple[str | None, str], IbMissing] = {}
    for number, raw in enumerate(lines, 1):
        line = raw[:_MAX_LINE]
        if not FAILED.search(line):
            continue
        text = printable(line.strip(), 300)
        gone = _GONE.search(line)
        device = next((name for name in gone.groups() if name), None) if gone else None
        front = re.match(r"([A-Za-z0-9][\w.-]{0,252}): (?=ib|cat|Failed)", line, re.ASCII)
        host = front[1] if front else None
        if device is not None and (host, device) not in seen and len(missing) < _MAX_MISSING:
            missing.setdefault((host, device), IbMissing(number, device, text, host))
        else:
            ports.miss(number, text)
        if "ibpanic" in line:
            ports.stop(f"the tool gave up at line {number}: {text}")
    return list(missing.values())
