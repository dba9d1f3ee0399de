"""``nvidia-smi nvlink -s`` (state and speed), ``-e`` (error counters), ``-c`` (capabilities)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from pytest_gpucluster.facts.evidence.document import Document, Unread
from pytest_gpucluster.facts.sysfs import printable

KIND = "nvlink"
TITLE = "nvidia-smi nvlink -s or -e"

_MAX_LINE = 1024
_GPU = re.compile(r"\s*GPU ([0-9]{1,4}): (\S.{0,120}?)(?: \(UUID: ([A-Za-z0-9-]{4,60})\))?\s*")
_LINK = re.compile(r"\s*Link ([0-9]{1,3}): (.*\S)\s*")
_SPEED = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,4})?) GB/s")
_ERRORS = re.compile(r"([A-Z][A-Za-z -]{2,40}Errors?(?: \w+)?|Link recovery.{0,30}): ([0-9]{1,18})")
_NONE_ACTIVE = re.compile(r"all links are in-?active", re.IGNORECASE)


@dataclass(frozen=True)
class LinkState:
    """One link: ``speed_gbs`` in GB/s as printed, ``None`` unless active."""

    link: int
    line: int
    active: bool | None = None
    speed_gbs: float | None = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NvlinkGpu:
    """One GPU. ``none_active``: the tool said that all its links are inactive."""

    line: int
    index: int
    name: str
    uuid: str | None = None
    links: tuple[LinkState, ...] = ()
    none_active: int | None = None  # the line that says so

    @property
    def active(self) -> int:
        return sum(1 for link in self.links if link.active)

    @property
    def inactive(self) -> tuple[int, ...]:
        return tuple(link.link for link in self.links if link.active is False)


@dataclass(frozen=True)
class NvlinkRecord:
    """GPUs in order. ``states``: links and their state are told; ``counters``: errors are."""

    gpus: tuple[NvlinkGpu, ...] = ()
    states: bool = False
    counters: bool = False
    unread: tuple[Unread, ...] = ()
    cut: str | None = None


def recognises(document: Document) -> bool:
    """Whether a GPU's heading is followed by one of its links."""
    heading = False
    for line in document.lines:
        if "GPU " in line and _GPU.fullmatch(line[:_MAX_LINE]):
            heading = True
        elif heading and ("Link " in line or "nlink" in line or "Nvlink" in line):
            line = line[:_MAX_LINE]
            if _NONE_ACTIVE.search(line) or ((m := _LINK.fullmatch(line)) and _is_value(m[2])):
                return True
    return False


def _is_value(text: str) -> bool:
    return bool(text == "<inactive>" or _SPEED.fullmatch(text) or _ERRORS.match(text))


def read(document: Document) -> NvlinkRecord:
    """All GPUs and links; never raises, linear in the text."""
    gpus: dict[int, NvlinkGpu] = {}
    links: dict[int, dict[int, LinkState]] = {}
    unread: list[Unread] = []
    current: int | None = None
    last_text = last_read = 0
    for number, raw in enumerate(document.lines, 1):
        line = raw[:_MAX_LINE]
        if not line.strip():
            continue
        last_text = number
        if opening := _GPU.fullmatch(line):
            current, last_read = int(opening[1]), number
            gpus.setdefault(current, NvlinkGpu(number, current, printable(opening[2]), opening[3]))
        elif current is None:
            continue
        elif _NONE_ACTIVE.search(line):
            gpus[current] = replace(gpus[current], none_active=number)
            last_read = number
        elif entry := _LINK.fullmatch(line):
            known = links.setdefault(current, {})
            link = known.get(int(entry[1]), LinkState(int(entry[1]), number))
            if (changed := _with(link, entry[2])) is not None:
                known[link.link] = changed
                last_read = number
            elif re.match(r"[0-9<]", entry[2]):
                unread.append(Unread(number, f"link {entry[1]}: {printable(entry[2], 40)!r}"))
    found = tuple(
        replace(gpu, links=tuple(links.get(index, {}).values())) for index, gpu in gpus.items()
    )
    return NvlinkRecord(
        found,
        any(g.none_active or any(k.active is not None for k in g.links) for g in found),
        any(link.errors for gpu in found for link in gpu.links),
        tuple(unread[:100]),
        _cut(found, stops=last_text != last_read),
    )


def _with(link: LinkState, text: str) -> LinkState | None:
    if text == "<inactive>":
        return replace(link, active=False)
    if speed := _SPEED.fullmatch(text):
        return replace(link, active=True, speed_gbs=float(speed[1]))
    if error := _ERRORS.match(text):
        return replace(link, errors=link.errors | {error[1]: int(error[2])})
    return link if "false" in text or "true" in text else None


def _cut(gpus: tuple[NvlinkGpu, ...], *, stops: bool) -> str | None:
    if not gpus:
        return "no GPU"
    last = gpus[-1]
    if not last.links and last.none_active is None:
        return f"GPU{last.index} has no links listed"
    if stops:
        return "the last line stops inside a value"
    most = max(len(gpu.links) for gpu in gpus)
    if last.links and len(last.links) < most and gpus[0].name == last.name:
        return f"GPU{last.index} lists {len(last.links)} links, others {most}"
    return None


def summary(record: NvlinkRecord) -> dict[str, object]:
    """By ``GPUn``; ``link_speed_GBps`` where all active links run at one."""
    facts: dict[str, object] = {
        "gpus": len(record.gpus),
        "product": {f"GPU{g.index}": g.name for g in record.gpus},
        "links_total": {f"GPU{g.index}": len(g.links) for g in record.gpus},
        "links_active": {f"GPU{g.index}": g.active for g in record.gpus},
        "inactive_links": {f"GPU{g.index}": list(g.inactive) for g in record.gpus},
    }
    speeds = {link.speed_gbs for gpu in record.gpus for link in gpu.links if link.speed_gbs}
    if len(speeds) == 1:
        facts["link_speed_GBps"] = speeds.pop()
    errors = {
        f"GPU{gpu.index}": {link.link: link.errors for link in gpu.links if link.errors}
        for gpu in record.gpus
    }
    if record.counters:
        facts["errors"] = errors
    return facts
