"""What is known of an RDMA port, put together from the outputs of several tools."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_gpucluster.facts.evidence.document import Unread
from pytest_gpucluster.facts.sysfs import printable

MAX_PORTS = 50_000
MAX_UNREAD = 100

# Linux: drivers/infiniband/core/sysfs.c; infiniband-diags prints the state in words of its own.
_STATES = {
    "NOP": "NOP",
    "DOWN": "DOWN",
    "INIT": "INIT",
    "INITIALIZE": "INIT",
    "INITIALIZING": "INIT",
    "ARMED": "ARMED",
    "ACTIVE": "ACTIVE",
    "ACTIVE_DEFER": "ACTIVE_DEFER",
}
_PHYSICAL = {
    "nop": "Nop",
    "sleep": "Sleep",
    "polling": "Polling",
    "disabled": "Disabled",
    "portconfigurationtraining": "PortConfigurationTraining",
    "linkup": "LinkUp",
    "linkerrorrecovery": "LinkErrorRecovery",
    "phytest": "Phy Test",
}
_LAYERS = ("InfiniBand", "Ethernet", "Unspecified")
_NUMBERED = re.compile(r"(?:[0-9]{1,2}: ?)?(?:PORT_)?(.{1,40}?)(?: ?\([0-9]{1,3}\))?", re.ASCII)
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(?: ?Gb/sec\b.{0,40}| ?\(.{0,30}\))?", re.ASCII)
_WIDTH = re.compile(r"([0-9]{1,2})X\b", re.ASCII)
_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,2})?) Gbps", re.ASCII)


@dataclass(frozen=True)
class IbPort:
    """One port. Rates are Gb/s and mean nothing while the port is down.

    ``state`` and ``physical_state`` are spelled as the kernel does ("ACTIVE", "LinkUp"),
    ``state_text`` and ``physical_text`` as printed. ``netdev_state`` is that of the network
    device on top, which says nothing of an InfiniBand port. ``counters`` are 8, 16 or 32 bits
    wide and stay at their ceiling.
    """

    line: int
    device: str
    port: int
    tools: tuple[str, ...] = ()  # "ibstat", "ibstatus", "ibv_devinfo", "sysfs", ...
    host: str | None = None
    state: str | None = None
    state_text: str | None = None
    physical_state: str | None = None
    physical_text: str | None = None
    rate_gbps: float | None = None
    rate_text: str | None = None
    link_layer: str | None = None
    lid: int | None = None
    netdev: str | None = None
    netdev_state: str | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class IbDevice:
    """One adapter. ``ports`` is the number it says it has."""

    line: int
    device: str
    host: str | None = None
    ports: int | None = None
    ca_type: str | None = None
    firmware: str | None = None
    bus_id: str | None = None


@dataclass(frozen=True)
class IbMissing:
    """A device that a tool knew of and could not open."""

    line: int
    device: str
    text: str
    host: str | None = None


Key = tuple[str | None, str, int]


class Ports:
    """Ports and devices while they are read; what two tools say of one is put together."""

    def __init__(self) -> None:
        self.ports: dict[Key, IbPort] = {}
        self.devices: dict[tuple[str | None, str], IbDevice] = {}
        self.unread: list[Unread] = []
        self.last_line = 0  # the last one with text: what stands there may be half a word
        self.cut: str | None = None

    def miss(self, line: int, reason: str) -> None:
        if len(self.unread) < MAX_UNREAD:
            self.unread.append(Unread(line, reason))

    def stop(self, reason: str) -> None:
        """Note why the text is known to be incomplete."""
        self.cut = self.cut or reason

    def device(self, line: int, host: str | None, name: str, **values: Any) -> None:
        key = (host, name)
        if key not in self.devices and len(self.devices) >= MAX_PORTS:
            self.miss(line, f"more than {MAX_PORTS} devices: {name} was left out")
            return
        known = self.devices.setdefault(key, IbDevice(line, name, host))
        said = {field: value for field, value in values.items() if value is not None}
        self.devices[key] = replace(known, **said)

    def port(
        self, line: int, host: str | None, name: str, port: int, tool: str, **values: Any
    ) -> None:
        """Add what is known of a port; a value that contradicts an earlier one is noted."""
        key = (host, name, port)
        known = self.ports.get(key)
        if known is None:
            if len(self.ports) >= MAX_PORTS:
                self.miss(line, f"more than {MAX_PORTS} ports: {name} port {port} was left out")
                return
            known = IbPort(line, name, port, host=host)
        said = {field: value for field, value in values.items() if value is not None}
        if "counter" in said:
            counter, count = said.pop("counter")
            said["counters"] = known.counters | {counter: count}
        for field_ in ("state", "physical_state", "rate_gbps", "link_layer", "netdev_state"):
            before = getattr(known, field_)
            if field_ in said and before is not None and said[field_] != before:
                self.miss(
                    line,
                    f"{name} port {port}: {field_.replace('_', ' ')} {said[field_]} here, "
                    f"{before} before",
                )
        if tool not in known.tools:
            said["tools"] = (*known.tools, tool)
        self.ports[key] = replace(known, **said)

    # Values as printed. What stands on the last line may have been cut.

    def state(self, text: str, line: int) -> dict[str, str]:
        word = _word(text)
        state = _STATES.get(word.upper())
        if state is None:
            self._unknown("state", word, line, _STATES)
            return {}
        return {"state": state, "state_text": _text_of(text)}

    def physical(self, text: str, line: int) -> dict[str, str]:
        word = re.sub(r"[ _]", "", _word(text)).lower()
        state = _PHYSICAL.get(word)
        if state is None:
            self._unknown("physical state", word, line, _PHYSICAL)
            return {}
        return {"physical_state": state, "physical_text": _text_of(text)}

    def layer(self, text: str, line: int) -> dict[str, str]:
        if text in _LAYERS:
            return {"link_layer": text}
        self._unknown("link layer", text, line, _LAYERS)
        return {}

    def rate(self, text: str, line: int) -> dict[str, Any]:
        match = _RATE.fullmatch(text)
        if match is None or (line == self.last_line and "Gb/sec" not in text):
            if text.strip(". "):
                self.miss(line, f"rate {printable(text, 40)!r}")
            if line == self.last_line:
                self.stop("the last line stops inside a rate")
            return {}
        return {"rate_gbps": number(float(match[1])) or None, "rate_text": text}

    def width_and_speed(self, width: str, speed: str) -> dict[str, Any]:
        lanes, per_lane = _WIDTH.match(width), _SPEED.search(speed)
        if not lanes or not per_lane:
            return {}
        return {"rate_gbps": number(int(lanes[1]) * float(per_lane[1])) or None}

    def _unknown(self, what: str, word: str, line: int, known: Any) -> None:
        if not word.strip(". "):  # "...": left out by whoever pasted it
            if not word and line == self.last_line:
                self.stop(f"the last line stops before a {what}")
            return
        self.miss(line, f"{what} {printable(word, 40)!r}")
        if line == self.last_line and any(k.lower().startswith(word.lower()) for k in known):
            self.stop(f"the last line stops inside a {what}")


def number(value: float) -> float:
    """An ``int`` where the value is whole."""
    return int(value) if value == int(value) else value


def whole(text: str) -> int | None:
    """A decimal or hexadecimal number of at most 20 digits."""
    if re.fullmatch(r"[0-9]{1,20}", text, re.ASCII):
        return int(text)
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text, re.ASCII) else None


def known_text(text: str) -> str | None:
    """``text``, or ``None`` where somebody left it out."""
    return printable(text.strip(), 120) if text.strip(". \t") and text.strip() != "N/A" else None


def _word(text: str) -> str:
    match = _NUMBERED.fullmatch(text.strip())
    return match[1] if match else text.strip()


def _text_of(text: str) -> str:
    """As printed, without the number beside it."""
    return re.sub(r"^[0-9]{1,2}: ?| ?\([0-9]{1,3}\)$", "", text.strip())
