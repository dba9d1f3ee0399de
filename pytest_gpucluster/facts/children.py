"""Runs several short programs at once and outlives every one of them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

MAX_OUTPUT = 64 * 2**20
_MAX_STDERR = 8192
_GRACE_S = 1.0  # for a killed process to go; one in uninterruptible sleep does not
_TICK_S = 0.01
_CHUNK = 2**18
_MAX_PIPE = 2**24  # more than a pipe can hold when its writer has ended


@dataclass(frozen=True)
class Outcome:
    """How a child ended. ``code`` is its exit status, negative for a signal, ``None`` unless
    it ended by itself; ``undying``: it was killed and is still there."""

    end: Literal["exited", "hung", "flooded", "not_started"]
    output: bytes = b""
    last_line: str = ""
    code: int | None = None
    undying: bool = False


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    deadline: float
    output: bytearray = field(default_factory=bytearray)
    errors: bytes = b""
    killed: Literal["hung", "flooded"] | None = None
    kill_deadline: float = 0.0


def run_together(
    commands: Mapping[str, Sequence[str]], deadline_s: float, max_output: int = MAX_OUTPUT
) -> dict[str, Outcome]:
    """Run all ``commands`` at once, each for at most ``deadline_s`` seconds.

    Returns when all have ended or been killed, at the latest about a second after the
    deadline, whatever they do. Of standard error only the last line is kept. Each child
    leads a session, and whatever is left of it is killed when the child has ended.
    """
    outcomes: dict[str, Outcome] = {}
    children: dict[str, _Child] = {}
    with selectors.DefaultSelector() as selector:
        try:
            for name, command in commands.items():
                try:
                    child = children[name] = _start(command, deadline_s)
                except OSError as error:
                    outcomes[name] = Outcome("not_started", last_line=str(error))
                    continue
                for stream in (child.process.stdout, child.process.stderr):
                    assert stream is not None
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, child)
            while children:
                for key, _ in selector.select(_TICK_S):
                    if _receive(key.data, key.fileobj, max_output) == 0:
                        selector.unregister(key.fileobj)
                for name, child in list(children.items()):
                    outcome = _advance(child, max_output)
                    if outcome is not None:
                        outcomes[name] = outcome
                        _close(children.pop(name), selector)
        finally:
            for child in children.values():
                _kill(child)
            for child in children.values():
                _close(child, selector)
    return {name: outcomes[name] for name in commands}


def _start(command: Sequence[str], deadline_s: float) -> _Child:
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=True,
        start_new_session=True,
        bufsize=0,
    )
    return _Child(process, time.monotonic() + deadline_s)


def _receive(child: _Child, pipe: object, max_output: int) -> int | None:
    """Take what a pipe holds now: bytes taken, 0 at its end, ``None`` if it holds nothing yet."""
    assert child.process.stdout is not None
    assert child.process.stderr is not None
    is_output = pipe is child.process.stdout
    source = child.process.stdout if is_output else child.process.stderr
    try:
        part = os.read(source.fileno(), _CHUNK)
    except BlockingIOError:
        return None
    if not is_output:
        child.errors = (child.errors + part)[-_MAX_STDERR:]
    elif len(child.output) <= max_output:
        child.output += part
    return len(part)


def _advance(child: _Child, max_output: int) -> Outcome | None:
    """The outcome once there is one; kills the child where that is due."""
    ended = _has_ended(child)  # asked once: one that ends further down is for the next turn
    if ended:
        _kill(child)  # descendants that hold on; the pid is ours until it is reaped
        for pipe in (child.process.stdout, child.process.stderr):
            for _ in range(_MAX_PIPE // _CHUNK):
                if not _receive(child, pipe, max_output):
                    break
    now = time.monotonic()
    if child.killed is None:
        if len(child.output) > max_output:
            child.killed = "flooded"
        elif now >= child.deadline and not ended:
            child.killed = "hung"
        if child.killed is not None:
            _kill(child)
            child.kill_deadline = now + _GRACE_S
    line = _last_line(child.errors)
    if ended:
        code = child.process.wait()
        if child.killed is None:
            return Outcome("exited", bytes(child.output), line, code)
        return Outcome(child.killed, last_line=line)
    if child.killed is not None and now >= child.kill_deadline:
        return Outcome(child.killed, last_line=line, undying=True)
    return None


def _has_ended(child: _Child) -> bool:
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, child.process.pid, flags) is not None
    except ChildProcessError:  # somebody else reaped it
        return True


def _kill(child: _Child) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)


def _close(child: _Child, selector: selectors.BaseSelector) -> None:
    for pipe in (child.process.stdout, child.process.stderr):
        assert pipe is not None
        with contextlib.suppress(KeyError):
            selector.unregister(pipe)
        pipe.close()
    if child.process.poll() is None:
        # Reaped whenever it goes, and until then kept out of our way.
        threading.Thread(target=child.process.wait, daemon=True).start()


def _last_line(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
