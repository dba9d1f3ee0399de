"""Pickled plain data (dicts, lists, numbers, text) as JSON; nothing is ever executed."""

from __future__ import annotations

import io
import json
import pickle

LONGEST = 2**26  # characters of JSON


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"it wants {module}.{name}, which is not plain data")

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("it refers to something outside")


def is_pickle(data: bytes) -> bool:
    """Whether the bytes open like a pickle of protocol 2 or later."""
    return len(data) > 2 and data[0] == 0x80 and 2 <= data[1] <= 5


def as_json(data: bytes) -> str:
    """The data as JSON; raises ValueError where it is not plain, broken, or too large."""
    try:
        value = _PlainData(io.BytesIO(data)).load()
        parts = []
        length = 0
        for part in json.JSONEncoder(default=_readable).iterencode(value):
            length += len(part)
            if length > LONGEST:
                raise ValueError(f"more than {LONGEST} characters")
            parts.append(part)
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"too large or too deep: {type(error).__name__}") from None
    except Exception as error:  # whatever a broken pickle makes the unpickler raise
        raise ValueError(str(error)[:200]) from None
    return "".join(parts)


def _readable(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    raise ValueError(f"a {type(value).__name__} is not plain data")
