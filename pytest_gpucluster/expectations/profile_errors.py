"""What is wrong with a profile, in words: key, what was given, what is allowed."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.expectations.tables import packaged

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

SHOWN_CHARACTERS = 80
SPECIFIER = 'a version specifier, e.g. ">=535" or ">=12.4,<14"'
PATTERNS = {
    "^[1-9]\\.[0-9]$": 'an NVLink version in quotes, e.g. "4.0"',
    "^[a-z0-9_]+\\.[a-z0-9_]+$": 'a finding code, e.g. "persistence.off"',
    "^[A-Za-z0-9][A-Za-z0-9._-]*$": "letters, digits, dot, underscore and hyphen",
}


class ProfileError(ValueError):
    """A profile that cannot be used; the message says where, why and what is allowed."""


@cache
def profile_schema() -> dict[str, Any]:
    """The shipped JSON schema of a profile."""
    schema: dict[str, Any] = json.loads(packaged("profile.schema.json"))
    return schema


def problems_of(data: dict[str, Any]) -> list[str]:
    """Everything wrong with parsed TOML, one line each; empty if it is valid."""
    from jsonschema import Draft202012Validator

    if endless := [f"{key} = {value}: not a finite number." for key, value in _endless(data)]:
        return endless  # a NaN satisfies every bound
    validator = Draft202012Validator(profile_schema(), format_checker=_format_checker())
    errors = sorted(validator.iter_errors(data), key=lambda e: [str(p) for p in e.absolute_path])
    return list(dict.fromkeys(line for error in errors for line in _lines(error)))


def nearest(word: str, choices: Iterable[str]) -> str:
    """`` Did you mean ...?``, or nothing when no choice is close."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def shown(value: object) -> str:
    """A given value on one line, shortened."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _lines(error: ValidationError) -> Iterator[str]:
    schema: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    key = _dotted(error.absolute_path)
    if error.validator != "additionalProperties":
        yield f"{key} = {shown(error.instance)}: must be {_allowed(schema)}."
        return
    known = list(schema["properties"])
    given: dict[str, Any] = error.instance if isinstance(error.instance, dict) else {}
    for name, value in given.items():
        if name not in known:
            place = f"{key}.{name}" if key else name
            yield (
                f"unknown key {_printable(place)} = {shown(value)}."
                f"{nearest(name, known)} Allowed here: {', '.join(known)}."
            )


def _allowed(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(str(choice) for choice in schema["enum"])
    kind = schema.get("type")
    if kind == "boolean":
        return "true or false"
    if kind == "object":
        return f"a table with {', '.join(schema['properties'])}"
    if kind == "array":
        some = "a list of one or more entries" if schema.get("minItems") else "a list"
        return f"{some} in brackets, each {_allowed(schema['items'])}"
    if kind == "string":
        return _allowed_text(schema)
    noun = "a whole number" if kind == "integer" else "a number"
    if "exclusiveMinimum" in schema:
        return f"{noun} above {schema['exclusiveMinimum']}, at most {schema['maximum']}"
    return f"{noun} from {schema['minimum']} to {schema['maximum']}"


def _allowed_text(schema: dict[str, Any]) -> str:
    if schema.get("format") == "version-specifier":
        return SPECIFIER
    if "pattern" in schema:
        return PATTERNS[schema["pattern"]]
    least = "non-empty " if schema.get("minLength") else ""
    most = f" of at most {schema['maxLength']} characters" if "maxLength" in schema else ""
    return f"{least}text in quotes{most}"


def _dotted(path: Iterable[str | int]) -> str:
    key = ""
    for part in path:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _printable(text: str) -> str:
    return text if text.isprintable() else shown(text)


def _endless(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield _dotted(path), value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _endless(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _endless(inner, (*path, index))


def _format_checker() -> Any:
    from jsonschema import FormatChecker
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    checker = FormatChecker(formats=())

    @checker.checks("version-specifier", raises=InvalidSpecifier)
    def _is_specifier(value: object) -> bool:
        return not isinstance(value, str) or len(SpecifierSet(value)) > 0

    return checker
