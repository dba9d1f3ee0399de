"""Asking NVML: the one place through which every call goes.

It says beforehand on standard error what it is about to ask, so that a parent can tell which
call never returned, and it turns NVML's ways of saying no into values.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import pynvml

from pytest_gpucluster.facts.model import Unreadable
from pytest_gpucluster.facts.sysfs import printable

# Return codes (nvml.h)
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
VERSION_MISMATCH = 25
DEPRECATED = 26

ABSENT = (NOT_SUPPORTED, DEPRECATED)  # no error: there is no such thing to read
TOO_OLD = (FUNCTION_NOT_FOUND, VERSION_MISMATCH)  # of the driver or the binding, not the GPU's

ADVICE = {
    NO_PERMISSION: "run as a user that may use the GPUs",
    8: "an external power cable of the GPU is missing or loose",
    9: "the driver is not loaded; modprobe nvidia, or install it",
    11: "the kernel delivers no interrupts of the GPU; look at the kernel log",
    12: "libnvidia-ml.so.1 is not there; install the NVIDIA driver, or start the container with it",
    FUNCTION_NOT_FOUND: "the driver is too old for this call; update it",
    GPU_IS_LOST: "the GPU has fallen off the bus; look for Xid 79, then power-cycle the node",
    16: "the GPU has to be reset; nvidia-smi -r",
    VERSION_MISMATCH: "the driver is too old for this structure; update it",
    18: "the kernel module and libnvidia-ml have different versions; reboot or reload the driver",
    999: "look for Xid and NVRM lines in the kernel log",
}
ELSE = "see what nvidia-smi says"


@dataclass(frozen=True)
class Answer:
    """What NVML said: a value, or ``reason`` and, if it came from NVML, its ``error`` code."""

    value: Any = None
    error: int | None = None
    reason: str | None = None
    call: str = ""


@dataclass
class Asker:
    """Asks about one target and keeps what went wrong.

    ``target`` holds the handles that every call starts with: none for the system, one for a
    GPU, two for a pair. Once the driver has lost the GPU nothing more is asked.
    """

    label: str = ""
    target: tuple[Any, ...] = ()
    problems: list[Unreadable] = field(default_factory=list)
    lost: str | None = None

    def attempt(self, name: str, *arguments: Any) -> Answer:
        """Call ``pynvml.<name>(*target, *arguments)``; never raises, keeps no problem."""
        if self.lost is not None:
            return Answer(error=GPU_IS_LOST, reason=self.lost)
        sys.stderr.write(f"nvml: {self.label} {name}\n" if self.label else f"nvml: {name}\n")
        sys.stderr.flush()
        call = getattr(pynvml, name, None)
        if call is None:
            return too_old(name)
        try:
            return Answer(call(*self.target, *arguments))
        except pynvml.NVMLError as error:
            said = explain(name, error.value, str(error))
            answer = Answer(error=error.value, reason=said, call=name)
        except Exception as error:  # a name that is not UTF-8, a signature of another release
            said = printable(f"{type(error).__name__}: {error}", 200)
            return Answer(reason=f"{name}: {said}; update the driver and nvidia-ml-py.")
        if answer.error == GPU_IS_LOST:
            self.lost = answer.reason
        return answer

    def ask(self, subject: str, name: str, *arguments: Any) -> Any:
        """The value, or ``None``; the reason is kept as `keep` says."""
        answer = self.attempt(name, *arguments)
        self.keep(subject, answer)
        return answer.value

    def keep(self, subject: str, answer: Answer) -> None:
        """Keep the problem of an answer under ``"GPU3 <subject>"``, once per subject.

        Not supported is no problem. A function that driver or binding lack is kept under its own
        name: no GPU is to blame, and a check that needs the value will miss it.
        """
        if answer.reason is None or answer.error in ABSENT or self.lost is not None:
            return
        full = answer.call if answer.error in TOO_OLD else f"{self.label} {subject}".strip()
        if all(problem.subject != full for problem in self.problems):
            self.problems.append(Unreadable(full, answer.reason))

    def fields(self, subject: str, wanted: dict[str, int], scope: int = 0) -> dict[str, int]:
        """The field values that the part has, by name.

        Each value has its own return code; the call succeeds even if none could be read. A
        driver that does not know a field calls it an invalid argument.
        """
        pairs = [(number, scope) for number in wanted.values()]
        answers = self.ask(subject, "nvmlDeviceGetFieldValues", pairs)
        found = {}
        for name, answer in zip(wanted, answers or (), strict=False):
            if answer.nvmlReturn == 0:
                found[name] = _decoded(answer)
            elif answer.nvmlReturn not in (INVALID_ARGUMENT, *ABSENT):
                said = explain(f"field {answer.fieldId}", answer.nvmlReturn)
                call = "nvmlDeviceGetFieldValues"
                self.keep(subject, Answer(error=answer.nvmlReturn, reason=said, call=call))
        return found


def explain(what: str, code: int, text: str = "") -> str:
    """``nvmlInit: NVML error 18 (...): the reason and the next step.``"""
    described = f" ({printable(text, 100)})" if text else ""
    return f"{what}: NVML error {code}{described}: {ADVICE.get(code, ELSE)}."


def too_old(name: str) -> Answer:
    """The answer in place of a call that the installed binding lacks."""
    reason = f"{name}: this nvidia-ml-py does not have it; pip install --upgrade nvidia-ml-py."
    return Answer(error=FUNCTION_NOT_FOUND, reason=reason, call=name)


def _decoded(answer: Any) -> int:
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    kind = int(answer.valueType)
    return int(getattr(answer.value, members[kind] if kind < len(members) else "ullVal"))


def text(value: Any) -> str | None:
    """A name from NVML: bytes in old bindings; an empty one is unknown."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return printable(value.strip(), 200) or None if isinstance(value, str) else None
