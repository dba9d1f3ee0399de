"""The ``Fabric`` block of ``nvidia-smi -q`` and its CSV form, on their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_gpucluster.facts.evidence.document import Unread
from pytest_gpucluster.facts.sysfs import printable

_MAX_LINE = 1024
_MAX_BLOCKS = 4096
_REACH = 16  # lines from "Fabric" to the last of its values
_HEADER = re.compile(r"^(|.{0,100}?[:>|] ?)\s*Fabric\s*$")
_GPU = re.compile(r"\bGPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s*$", re.ASCII)
_VALUE = re.compile(
    r"^(.{0,100}?)\b(State|Status|Clique ?I[dD]|Cluster ?UUID|Summary|Bandwidth"
    r"|Route Recovery in progress|Route Unhealthy|Access Timeout Recovery"
    r"|Incorrect Configuration)\s{0,60}:\s{0,20}(.*?)\s*$"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_COLUMNS = ("fabric.state", "fabric.status", "fabric.cliqueId", "fabric.clusterUuid")

# nvmlGpuFabricState_t as nvidia-smi prints it, and nvmlErrorString() of those a registration
# may end with (github.com/NVIDIA/go-nvml, gen/nvml/nvml.h). Used to tell half a word from an
# unknown one.
STATES: tuple[str, ...] = ("N/A", "Not Supported", "Not Started", "In Progress", "Completed")
STATUSES: tuple[str, ...] = (
    "N/A",
    "Success",
    "Insufficient Resources",
    "Insufficient Permissions",
    "Invalid Argument",
    "Not Supported",
    "Not Found",
    "Not Ready",
    "In use by another client",
    "Timeout",
    "Unknown Error",
    "GPU is lost",
)


@dataclass(frozen=True)
class FabricBlock:
    """Registration of one GPU with the fabric, as printed; ``gpu`` where a line above says it.

    ``status`` "N/A" is normal while the state is "In Progress". ``health`` holds what newer
    drivers add, by the printed name.
    """

    line: int
    gpu: str | None = None
    state: str | None = None
    status: str | None = None
    clique_id: int | None = None
    cluster_uuid: str | None = None
    health: dict[str, str] = field(default_factory=dict)


def is_header(line: str) -> bool:
    """Whether a line begins a ``Fabric`` block."""
    return "Fabric" in line and _HEADER.match(line[:_MAX_LINE]) is not None


def read_blocks(lines: Sequence[str]) -> tuple[list[FabricBlock], list[Unread], str | None]:
    """Blocks, lines that could not be read, and why the text is known to be cut."""
    blocks: list[FabricBlock] = []
    unread: list[Unread] = []
    open_blocks: dict[str, int] = {}  # prefix of the line ("node-1:") -> index of its block
    gpus: dict[str, str] = {}
    last = next((n for n in range(len(lines), 0, -1) if lines[n - 1].strip()), 0)
    half_word = False
    for number, raw in enumerate(lines, 1):
        line = raw[:_MAX_LINE]
        if gpu := _GPU.search(line):
            if len(gpus) < _MAX_BLOCKS:
                gpus[line[: gpu.start()].strip()] = gpu[1]
            continue
        if "Fabric" in line and (header := _HEADER.match(line)):
            prefix = header[1].strip()
            if len(blocks) < _MAX_BLOCKS:
                blocks.append(FabricBlock(number, gpus.pop(prefix, None)))
                open_blocks[prefix] = len(blocks) - 1
            else:
                unread.append(Unread(number, f"more than {_MAX_BLOCKS} Fabric blocks"))
            continue
        if not open_blocks or ":" not in line:
            continue
        value = _VALUE.match(line)
        index = open_blocks.get(value[1].strip()) if value else None
        if value is None or index is None:
            continue
        if number - blocks[index].line > _REACH:
            del open_blocks[value[1].strip()]
            continue
        half_word = number == last and _is_half(value[2], value[3])
        if not half_word:
            blocks[index] = _with(blocks[index], value[2], value[3])
    cut = None
    if half_word:
        cut = "the last line stops inside a value of the Fabric block"
        unread.append(Unread(last, cut))
    elif any(block.state is None or block.status is None for block in blocks):
        cut = "a Fabric block without State and Status"
    return blocks, unread[:100], cut


def read_csv(lines: Sequence[str]) -> tuple[list[FabricBlock], str | None]:
    """Rows of ``nvidia-smi --query-gpu=...,fabric.state,fabric.status --format=csv``."""
    blocks: list[FabricBlock] = []
    header: list[str] = []
    cut = None
    for number, raw in enumerate(lines, 1):
        line = raw[:_MAX_LINE]
        if "fabric.stat" in line and "," in line:
            header = [name.strip() for name in line.split(",")]
            continue
        cells = [cell.strip() for cell in line.split(",")] if header else []
        if len(cells) < 2:
            continue
        if len(cells) != len(header):
            cut = f"line {number} has {len(cells)} of {len(header)} columns"
            continue
        row = dict(zip(header, cells, strict=True))
        state, status, clique, uuid = (row.get(name) for name in _COLUMNS)
        address = next((row[name] for name in ("pci.bus_id", "gpu_bus_id") if name in row), None)
        if len(blocks) < _MAX_BLOCKS:
            block = FabricBlock(number, printable(address, 40) if address else row.get("index"))
            for name, text in (("State", state), ("Status", status), ("CliqueId", clique)):
                block = _with(block, name, text) if text is not None else block
            blocks.append(_with(block, "ClusterUUID", uuid) if uuid else block)
    if header and not blocks and cut is None:
        cut = "a header without rows"
    return blocks, cut


def _is_half(name: str, text: str) -> bool:
    if name == "State":
        known = STATES
    elif name == "Status":
        known = STATUSES
    elif name.replace(" ", "").lower() == "clusteruuid":
        return text != "N/A" and not _UUID.fullmatch(text)
    else:
        return False
    return text not in known and any(word.startswith(text) for word in known)


def _with(block: FabricBlock, name: str, text: str) -> FabricBlock:
    said = printable(text, 200) or None
    match name.replace(" ", "").lower():
        case "state":
            return replace(block, state=said)
        case "status":
            return replace(block, status=said)
        case "cliqueid":
            number = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None
            return replace(block, clique_id=number)
        case "clusteruuid":
            return replace(block, cluster_uuid=text if _UUID.fullmatch(text) else None)
        case _:
            return replace(block, health=block.health | {name: said or ""})
