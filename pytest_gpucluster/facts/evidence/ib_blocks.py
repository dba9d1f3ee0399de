"""The block formats: ibstat, ibstatus, ibv_devinfo, alone or behind a host's name.

Formats: github.com/linux-rdma/rdma-core (infiniband-diags/ibstat.c, ibstatus.in,
libibverbs/examples/devinfo.c).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_gpucluster.facts.evidence.ib_ports import Ports, known_text, whole

_MAX_LINE = 1024
_NAME = r"[A-Za-z][\w.-]{0,62}"
# What pdsh, mpirun, srun and container logs put in front of every line.
_FRONT = re.compile(
    r"(\[[0-9]{1,6},[0-9]{1,6}\]<\w{1,8}>:? ?|[0-9]{1,6}: |[A-Za-z0-9][\w.-]{0,252}: )", re.ASCII
)
_STAMP = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,16} (?:stdout [FP] |stderr [FP] )?", re.ASCII
)
ANCHOR = re.compile(
    rf"(?:CA:? '(?P<ibstat>{_NAME})'|hca_id:\s{{0,8}}(?P<ibv_devinfo>{_NAME})"
    rf"|Infiniband device '(?P<ibstatus>{_NAME})' port (?P<port>[0-9]{{1,3}}) status:?)\s*$",
    re.ASCII,
)
_TOOLS = ("ibstat", "ibv_devinfo", "ibstatus")
_PORT = re.compile(r"(?:Port ([0-9]{1,3}):|port:\s{1,8}([0-9]{1,3}))", re.ASCII)
_KEY = re.compile(r"([A-Za-z][A-Za-z_ ]{1,30}?)\s{0,4}:\s{0,40}(.*)")


@dataclass
class _Block:
    tool: str
    device: str
    host: str | None
    line: int
    port: int | None = None
    expected: int | None = None
    found: set[int] = field(default_factory=set)
    complete: bool = False
    width: str = ""


def read_blocks(lines: Sequence[str], ports: Ports) -> None:
    """Add every port of the blocks in ``lines`` to ``ports``."""
    open_blocks: dict[str, _Block] = {}
    every: list[_Block] = []
    for number, raw in enumerate(lines, 1):
        line = _STAMP.sub("", raw[:_MAX_LINE].rstrip(), count=1) if raw[:2] == "20" else raw
        line = line[:_MAX_LINE].rstrip()
        if not line:
            continue
        if "'" in line or "hca_id" in line:
            anchor = ANCHOR.search(line)
            if anchor:
                front = line[: anchor.start()].strip()
                block = _Block(
                    next(tool for tool in _TOOLS if anchor[tool]),
                    anchor["ibstat"] or anchor["ibv_devinfo"] or anchor["ibstatus"],
                    front.rstrip(":") or None,
                    number,
                )
                ports.device(number, block.host, block.device)
                if anchor["port"]:
                    _begin(block, int(anchor["port"]), number, ports)
                open_blocks[front] = block
                every.append(block)
                continue
        if open_blocks:
            _value(line, number, open_blocks, ports)
    _look_at_end(every, ports)


def _value(line: str, number: int, open_blocks: dict[str, _Block], ports: Ports) -> None:
    front = _FRONT.match(line)
    block = None
    if front:
        block = open_blocks.get(front[1].strip())
    rest = line[front.end() :] if front and block else line
    block = block or open_blocks.get("")
    if block is None:
        return
    rest = rest.strip()
    if block.tool != "ibstatus" and (port := _PORT.fullmatch(rest)):
        _begin(block, int(port[1] or port[2]), number, ports)
        return
    pair = _KEY.fullmatch(rest)
    if pair:
        _take(block, pair[1].lower().replace(" ", "_"), pair[2].strip(), number, ports)


def _begin(block: _Block, port: int, number: int, ports: Ports) -> None:
    block.port = port
    block.found.add(port)
    block.complete = False
    ports.port(number, block.host, block.device, port, block.tool)


def _take(block: _Block, key: str, text: str, line: int, ports: Ports) -> None:
    if key in ("number_of_ports", "phys_port_cnt"):
        block.expected = whole(text)
        ports.device(line, block.host, block.device, ports=block.expected)
    elif key in ("firmware_version", "fw_ver") and line != ports.last_line:
        ports.device(line, block.host, block.device, firmware=known_text(text))
    elif key == "ca_type":
        ports.device(line, block.host, block.device, ca_type=known_text(text))
    if block.port is None:
        return
    values: dict[str, object] = {}
    if key == "state":
        values = dict(ports.state(text, line))
    elif key in ("physical_state", "phys_state"):
        values = dict(ports.physical(text, line))
    elif key == "rate":
        values = dict(ports.rate(text, line))
    elif key == "active_width":
        block.width = text
    elif key == "active_speed":
        values = dict(ports.width_and_speed(block.width, text))
    elif key == "link_layer":
        values = dict(ports.layer(text, line))
        block.complete = bool(values)  # it ends a port
    elif key in ("base_lid", "port_lid"):
        values = {"lid": whole(text)}
    if values:
        ports.port(line, block.host, block.device, block.port, block.tool, **values)


def _look_at_end(blocks: list[_Block], ports: Ports) -> None:
    for block in blocks:
        name = f"{block.tool}: {block.device}"
        if block.tool != "ibstatus" and (not block.found or len(block.found) < _wanted(block)):
            ports.stop(f"{name} has {len(block.found)} of {block.expected or 'its'} ports")
        elif not block.complete:
            ports.stop(f"{name} port {block.port} stops before its link layer")


def _wanted(block: _Block) -> int:
    return block.expected if block.expected is not None and block.expected < 256 else 1
