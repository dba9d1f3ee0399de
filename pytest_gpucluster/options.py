"""Every option and ini key, declared once, and where each value came from.

Precedence: command-line option > environment (``GPUCLUSTER_LEVEL``) > ini key
(``gpucluster_level``) > default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LEVELS = ("inventory", "standard", "extended", "soak")
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
DURATION_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            listed = ", ".join(allowed[:-1]) + f" or {allowed[-1]}"
            raise ValueError(f"unknown value {text!r}. Choose {listed}.")
        return text

    return parse


def parse_flag(text: str) -> bool:
    """``1/true/yes/on`` or ``0/false/no/off``; raises ValueError otherwise."""
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(f"{text!r} is neither true nor false. Choose true or false.")


def parse_count(text: str) -> int:
    """A whole number from 1 to 4096."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 4096:
        raise ValueError(f"{text!r} is not a count. Give a whole number from 1 to 4096.")
    return number


def parse_rank(text: str) -> int:
    """A rank's number from 0."""
    if not text.isdecimal() or int(text) >= 4096:
        raise ValueError(f"{text!r} is not a rank. Give a number from 0.")
    return int(text)


def parse_duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``30m``, ``1.5h`` or ``1d``."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in DURATION_UNITS else (text, "s")
    try:
        seconds = float(number) * DURATION_UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 30 * DURATION_UNITS["d"]:
        raise ValueError(f"{text!r} is not a duration. Give for example 90s, 30m or 1h.")
    return seconds


def parse_path(text: str) -> Path:
    """A path; a leading ``~`` is the home folder."""
    if not text.strip():
        raise ValueError("an empty path. Give a file or folder.")
    return Path(text).expanduser()


@dataclass(frozen=True)
class Option:
    """One option: ``--gpucluster-NAME``, ``GPUCLUSTER_NAME``, ``gpucluster_name``."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    metavar: str | None = None  # None: a flag

    @property
    def key(self) -> str:
        return "gpucluster" + (f"_{self.name.replace('-', '_')}" if self.name else "")

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return self.key.upper()


OPTIONS = (
    Option(
        "",
        parse_flag,
        False,
        "Judge this machine: run the built-in acceptance checks and write a report.",
    ),
    Option(
        "level",
        _choice(*LEVELS),
        "standard",
        "How much to check: inventory (seconds, passive), standard (+ collectives and "
        "numerics), extended (+ GPU pairs, compute, storage), soak (+ sustained load).",
        "LEVEL",
    ),
    Option(
        "profile",
        str,
        None,
        "What this node should be: a built-in profile (hgx-h100, ...) or a TOML file.",
        "NAME|FILE",
    ),
    Option(
        "save-profile",
        parse_path,
        None,
        "Write a profile from this (known good) node.",
        "FILE",
    ),
    Option(
        "rehearse",
        parse_flag,
        False,
        "Run everything that can run on CPU ranks (Gloo). Accepts nothing: the verdict is "
        "'rehearsed'.",
    ),
    Option(
        "ranks",
        parse_count,
        None,
        "How many CPU ranks a rehearsal uses (default 2).",
        "N",
    ),
    Option(
        "missing",
        _choice("auto", "skip", "fail"),
        "auto",
        "What an unmet requires_* mark does: auto (fail where the node should have it, skip "
        "where it should not), skip or fail.",
        "POLICY",
    ),
    Option(
        "evidence",
        parse_path,
        None,
        "Judge saved facts (facts/NODE.json of an earlier run) instead of this machine.",
        "FILE",
    ),
    Option(
        "report",
        parse_path,
        Path("gpucluster-report"),
        "Folder for the report, the verdict, the facts and the ranks' logs.",
        "DIR",
    ),
    Option(
        "timeout",
        parse_duration,
        120.0,
        "Deadline of one distributed test, unless its mark sets one (default 120s).",
        "DURATION",
    ),
    Option(
        "debug-rank",
        parse_rank,
        None,
        "The rank on which --pdb, --trace and breakpoint() get the terminal.",
        "RANK",
    ),
    Option(
        "soak",
        parse_duration,
        1800.0,
        "How long level soak keeps the node under load (default 30m).",
        "DURATION",
    ),
)


@dataclass(frozen=True)
class Setting:
    """A resolved value and its source: option, an environment variable, ini or default."""

    value: Any
    source: str


@dataclass(frozen=True)
class Settings:
    """All resolved settings by option name."""

    by_name: Mapping[str, Setting]

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name].value

    def source(self, name: str) -> str:
        return self.by_name[name].source

    @property
    def enabled(self) -> bool:
        """``--gpucluster`` was given: this run is an acceptance."""
        return bool(self[""])

    def level_includes(self, level: str) -> bool:
        """Whether checks of ``level`` belong to the chosen level."""
        return LEVELS.index(level) <= LEVELS.index(self["level"])


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and ini key with pytest."""
    group = parser.getgroup("gpucluster", "GPU cluster acceptance (write --option=value)")
    for option in OPTIONS:
        extra: dict[str, Any] = (
            {"action": "store_true"} if option.metavar is None else {"metavar": option.metavar}
        )
        group.addoption(option.flag, dest=option.key, default=None, help=option.help, **extra)
        parser.addini(option.key, option.help, type="string", default=None)


def resolve(config: pytest.Config, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force; raises `pytest.UsageError` naming the offending source."""
    return Settings({option.name: _resolve_one(option, config, environ) for option in OPTIONS})


def defaults() -> Settings:
    """The settings of a run that only prints help."""
    return Settings({option.name: Setting(option.default, "default") for option in OPTIONS})


def _resolve_one(option: Option, config: pytest.Config, environ: Mapping[str, str]) -> Setting:
    given = config.getoption(option.key)
    if given is not None:
        if given is True:
            return Setting(True, "option")
        return Setting(_parsed(option, given, option.flag), "option")
    if environ.get(option.variable):
        name = option.variable
        return Setting(_parsed(option, environ[name], name), f"environment {name}")
    ini = config.getini(option.key)
    if ini not in (None, ""):
        return Setting(_parsed(option, str(ini), f"ini key {option.key}"), "ini")
    return Setting(option.default, "default")


def _parsed(option: Option, text: str, where: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        raise pytest.UsageError(f"{where}={text}: {error}") from None
