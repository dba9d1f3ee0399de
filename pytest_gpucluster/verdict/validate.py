"""``verdict.json`` against its schema."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


class VerdictError(ValueError):
    """A verdict that is not one; the message says where and why."""


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that ships with the package."""
    text = files("pytest_gpucluster.verdict").joinpath("schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def validate(text: str | bytes, origin: str = "verdict.json") -> dict[str, Any]:
    """Parse and validate untrusted JSON; raises `VerdictError` naming every wrong place."""
    from jsonschema import Draft202012Validator

    try:
        verdict = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise VerdictError(f"{origin}: not JSON: {error}") from None
    errors = sorted(Draft202012Validator(schema()).iter_errors(verdict), key=lambda e: list(e.path))
    if errors:
        listed = "; ".join(f"{error.json_path}: {error.message[:300]}" for error in errors[:10])
        raise VerdictError(f"{origin}: {listed}")
    found: dict[str, Any] = verdict
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
