"""Dumps of /sys/class/infiniband: ``path: value`` in its many forms, and JSON.

Files: Linux, Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from pytest_gpucluster.facts.evidence.ib_ports import Ports, known_text, whole
from pytest_gpucluster.facts.sysfs import bus_id

_MAX_LINE = 1024
_MAX_JSON = 64 * 2**20
_MAX_LEAVES = 2_000_000
_NAME = r"[A-Za-z][\w.-]{0,62}"
PATH = re.compile(
    rf"(?:^|[\s/'\"]|infiniband/)(?P<device>{_NAME})"
    r"(?:/ports/(?P<port>[0-9]{1,3})/(?P<folder>(?:hw_)?counters(?:_ext)?/)?(?P<file>\w{1,64})"
    r"|/(?P<attribute>fw_ver|hca_type|board_id))"
    r"(?P<end>['\"]?)(?P<separator> ?<==|\s{0,4}[:=]\s{0,4}|\s{1,8}|$)",
    re.ASCII,
)
_PCI = re.compile(r"/([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])/infiniband", re.ASCII)
_RDMA_NAME = re.compile(r"(?:mlx[45]|bnxt_re|irdma|efa|hns|rocep|ibp|rdmap|qedr|hfi1|ib)[\w-]*")
_WITHOUT_PORT = frozenset({"state", "phys_state", "physical_state", "rate", "link_layer"})


def read_sysfs(lines: Sequence[str], ports: Ports) -> None:
    """Add what a dump says to ``ports``; a whole JSON document is parsed as JSON."""
    first = next((line.lstrip()[:1] for line in lines if line.strip()), "")
    if first in ("{", "[") and _json(lines, ports):
        return
    waiting: tuple[re.Match[str], str | None, int] | None = None
    for number, raw in enumerate(lines, 1):
        line = raw[:_MAX_LINE]
        match = PATH.search(line) if "/" in line else None
        if match and (match["file"] or "infiniband" in line):
            pci = _PCI.search(line)
            address = bus_id(pci[1]) if pci else None
            value = line[match.end() :].strip().strip("\"',")
            if match["separator"].endswith("<==") or not value:
                waiting = (match, address, number)
                continue
            waiting = None
            _take(match, value, number, address, ports, _host(line))
        elif waiting and line.strip():
            _take(waiting[0], line.strip(), number, waiting[1], ports, None)
            waiting = None
    if waiting:
        ports.stop("the dump stops before the last value")
        ports.miss(waiting[2], "a file without its value")


def _host(line: str) -> str | None:
    front = re.match(r"([A-Za-z0-9][\w.-]{0,252}): ?(?=/)", line, re.ASCII)
    return front[1] if front and front[1] not in ("cat", "grep", "head") else None


def _take(
    match: re.Match[str],
    value: str,
    line: int,
    address: str | None,
    ports: Ports,
    host: str | None,
) -> None:
    if ": No such " in f": {value}" or value.endswith(("Invalid argument", "Input/output error")):
        return  # cat's complaint, see ib_rows.read_failures
    device = match["device"]
    if match["attribute"]:
        named = "firmware" if match["attribute"] == "fw_ver" else "ca_type"
        if match["attribute"] != "board_id" and line != ports.last_line:
            ports.device(line, host, device, bus_id=address, **{named: known_text(value)})
        return
    ports.device(line, host, device, bus_id=address)
    name = "counter" if match["folder"] else match["file"]
    _file(device, int(match["port"]), name, match["file"], value, line, ports, host)


def _file(
    device: str,
    port: int,
    name: str,
    file: str,
    value: str,
    line: int,
    ports: Ports,
    host: str | None = None,
) -> None:
    values: dict[str, object] = {}
    if name == "counter":
        count = whole(value)
        if count is None:
            ports.miss(line, f"counter {file} of {device}")
            return
        values = {"counter": (file, count)}
    elif name == "state":
        values = dict(ports.state(value, line))
    elif name in ("phys_state", "physical_state"):
        values = dict(ports.physical(value, line))
    elif name == "rate":
        values = dict(ports.rate(value, line))
    elif name == "link_layer":
        values = dict(ports.layer(value, line))
    elif name == "lid":
        values = {"lid": whole(value)}
    else:
        return
    ports.port(line, host, device, port, "sysfs", **values)


def _json(lines: Sequence[str], ports: Ports) -> bool:
    """``False`` where the text is no JSON; what can be read by lines is then read so."""
    text = "\n".join(lines)
    if len(text) > _MAX_JSON:
        ports.stop(f"more than {_MAX_JSON // 2**20} MB of JSON, read by lines")
        return False
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        ports.stop(f"the JSON does not end or is damaged: {str(error)[:100]}")
        return False
    places: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        for word in re.findall(r"[\w.-]+", line[: 64 * _MAX_LINE]):
            if len(places) < _MAX_LEAVES and (_RDMA_NAME.fullmatch(word)):
                places.setdefault(word, number)
    last, ports.last_line = ports.last_line, 0  # JSON that parses has not been cut
    for path, value in _leaves(content):
        _leaf(path, value, places, ports)
    ports.last_line = last
    return True


def _leaf(path: tuple[str, ...], value: str, places: dict[str, int], ports: Ports) -> None:
    match = PATH.search("/".join(path))
    if match:
        _take(match, value, places.get(match["device"], 1), None, ports, None)
        return
    devices = [at for at, name in enumerate(path[:-1]) if _RDMA_NAME.fullmatch(name)]
    if not devices:
        return
    device, rest = path[devices[-1]], path[devices[-1] + 1 :]
    numbers = [part for part in rest[:-1] if part.isascii() and part.isdecimal()]
    port = int(numbers[0][:3]) if numbers else 1
    line = places.get(device, 1)
    if any(part in ("counters", "hw_counters") for part in rest[:-1]):
        _file(device, port, "counter", rest[-1], value, line, ports)
    elif rest[-1] in _WITHOUT_PORT:
        _file(device, port, rest[-1], rest[-1], value, line, ports)
    elif rest[-1] in ("fw_ver", "firmware"):
        ports.device(line, None, device, firmware=known_text(value))


def _leaves(content: object) -> Iterator[tuple[tuple[str, ...], str]]:
    """Strings and numbers with the keys above them; a list of objects counts by their name."""
    stack: list[tuple[tuple[str, ...], object]] = [((), content)]
    for _ in range(_MAX_LEAVES):
        if not stack:
            return
        path, node = stack.pop()
        if isinstance(node, dict):
            name = next(
                (
                    node[key]
                    for key in ("device", "name", "ca", "hca")
                    if isinstance(node.get(key), str)
                ),
                None,
            )
            inner = (*path, str(name)) if name is not None else path
            if isinstance(node.get("port"), int):
                inner = (*inner, str(node["port"]))
            for key, child in reversed(list(node.items())):
                stack.append(((*inner, str(key)), child))
        elif isinstance(node, list):
            stack.extend((path, child) for child in reversed(node))
        elif isinstance(node, (str, int, float)) and not isinstance(node, bool):
            yield path, str(node).strip()
