"""Asking NVML: one function through which every call goes.

It says beforehand what it is about to ask (on standard error), so that a parent can tell which
call never returned, and it turns NVML's ways of saying no into values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pynvml

from pytest_gpucluster.facts.model import Unreadable

T = TypeVar("T")

# Not there, as opposed to not answering: the part or the driver has no such thing.
ABSENT = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
)


class GpuLost(Exception):
    """The driver cannot reach this GPU any more."""


@dataclass
class Asker:
    """Asks about one GPU (or the system, without a label) and remembers what went wrong."""

    label: str = ""
    problems: list[Unreadable] = field(default_factory=list)

    def ask(self, subject: str, name: str, *arguments: Any) -> Any:
        """The answer of ``pynvml.<name>(*arguments)``, ``None`` where there is none.

        Not supported is just ``None``; another error is kept under ``"GPU3 <subject>"`` as well.
        Raises `GpuLost`.
        """
        sys.stderr.write(f"nvml: {self.label} {name}\n" if self.label else f"nvml: {name}\n")
        sys.stderr.flush()
        try:
            return getattr(pynvml, name)(*arguments)
        except AttributeError:
            return None  # an older binding than this call
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLost(f"NVML error {error.value}: {error}") from None
            if error.value not in ABSENT:
                self.note(subject, f"{name}: NVML error {error.value}: {error}")
            return None

    def note(self, subject: str, reason: str) -> None:
        """Keep a problem once per subject."""
        full = f"{self.label} {subject}".strip()
        if all(problem.subject != full for problem in self.problems):
            self.problems.append(Unreadable(full, reason))


def text(value: Any) -> str | None:
    """A name from NVML: bytes in old bindings; an empty one is unknown."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        return None
    cleaned = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)
    return cleaned.strip()[:200] or None


def scaled(value: Any, factor: float) -> float | None:
    """``value x factor``, ``None`` stays ``None``."""
    return None if value is None else float(value) * factor


def flag(value: Any) -> bool | None:
    """NVML's 0 and 1 as a truth value."""
    return None if value is None else bool(value)


def first(value: Any, convert: Callable[[Any], T]) -> T | None:
    """The first of a pair (current, pending)."""
    return None if value is None else convert(value[0])
