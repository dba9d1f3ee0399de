"""Reading TOML: the tables shipped with the package, and text from users."""

from __future__ import annotations

import importlib
import sys
from importlib import resources
from typing import Any, cast

_DATA = resources.files(__package__) / "data"


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML text; raises ValueError that names line and column."""
    parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return cast("dict[str, Any]", parser.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def packaged(name: str) -> str:
    """The text of a file under ``data/``, e.g. ``"gpus.toml"``."""
    return (_DATA / name).read_text(encoding="utf-8")


def packaged_names(folder: str, suffix: str) -> tuple[str, ...]:
    """Names without suffix of the files in a folder under ``data/``, sorted."""
    entries = (_DATA / folder).iterdir()
    return tuple(sorted(e.name.removesuffix(suffix) for e in entries if e.name.endswith(suffix)))


def load_table(name: str) -> dict[str, Any]:
    """A shipped table, parsed."""
    return parse_toml(packaged(name))
