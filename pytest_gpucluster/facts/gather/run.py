"""Runs commands side by side, each with its own deadline, and keeps what they printed."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_gpucluster.facts.gather.commands import Command, find

TOGETHER = 4
_FLOOD = 16  # an output this many times over its limit is stopped even if its end is wanted
_GRACE_S = 1.0
_TICK_S = 0.02
_CHUNK = 2**18
_MAX_PIPE = 2**24


@dataclass(frozen=True)
class Output:
    """How a command ended and what is left of its output, errors included.

    ``total``: bytes printed; more than ``len(content)`` if some were left out.
    """

    end: Literal["exited", "timed_out", "flooded", "missing", "not_started"]
    content: bytes = b""
    total: int = 0
    status: int | None = None
    seconds: float = 0.0
    detail: str = ""
    undying: bool = False


@dataclass
class _Child:
    command: Command
    process: subprocess.Popen[bytes]
    started: float
    parts: deque[bytes] = field(default_factory=deque)
    held: int = 0
    total: int = 0
    killed: Literal["timed_out", "flooded"] | None = None
    kill_deadline: float = 0.0


def run_commands(
    commands: Sequence[Command], take: Callable[[Command, Output], None], together: int = TOGETHER
) -> None:
    """Run ``commands``, at most ``together`` at once; ``take`` gets each as it ends.

    No command holds the others up for longer than its deadline and a second. Each leads a
    process group of its own, of which nothing is left afterwards, whatever ends this function.
    """
    waiting = deque(commands)
    children: list[_Child] = []
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or children:
                while waiting and len(children) < together:
                    command = waiting.popleft()
                    child = _start(command)
                    if isinstance(child, Output):
                        take(command, child)
                        continue
                    children.append(child)
                    assert child.process.stdout is not None
                    selector.register(child.process.stdout, selectors.EVENT_READ, child)
                for key, _ in selector.select(_TICK_S) if children else ():
                    if _receive(key.data) == 0:
                        selector.unregister(key.fileobj)
                if children and not selector.get_map():
                    time.sleep(_TICK_S)  # outputs closed, processes still there
                for child in list(children):
                    output = _advance(child)
                    if output is not None:
                        children.remove(child)
                        _close(child, selector)
                        take(child.command, output)
        finally:
            for child in children:
                _kill(child)
                _close(child, selector)


def _start(command: Command) -> _Child | Output:
    if command.needs is not None and not os.path.lexists(command.needs):
        return Output("missing", detail=f"{command.needs} does not exist")
    program = find(command.argv[0])
    if program is None:
        return Output("missing", detail=f"{command.argv[0]}: not found on PATH")
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "PAGER": "cat"}
    try:
        process = subprocess.Popen(
            [program, *command.argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=True,
            start_new_session=True,
            bufsize=0,
            env=environment,
        )
    except OSError as error:
        return Output("not_started", detail=f"{program}: {error.strerror or error}")
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return _Child(command, process, time.monotonic())


def _receive(child: _Child) -> int | None:
    """Bytes taken; 0 at the end of the output, ``None`` if there are none yet."""
    assert child.process.stdout is not None
    try:
        part = os.read(child.process.stdout.fileno(), _CHUNK)
    except BlockingIOError:
        return None
    child.total += len(part)
    limit = child.command.max_bytes
    if child.command.keep == "tail":
        child.parts.append(part)
        child.held += len(part)
        while child.held - len(child.parts[0]) >= limit:
            child.held -= len(child.parts.popleft())
    elif child.held < limit:
        child.parts.append(part[: limit - child.held])
        child.held += len(child.parts[-1])
    return len(part)


def _advance(child: _Child) -> Output | None:
    if _has_ended(child):
        _kill(child)  # what is left of its group; the pid is ours until it is reaped
        for _ in range(_MAX_PIPE // _CHUNK):
            if not _receive(child):
                break
        status = child.process.wait()
        return _output(child, child.killed or "exited", None if child.killed else status)
    now = time.monotonic()
    limit = child.command.max_bytes * (1 if child.command.keep == "head" else _FLOOD)
    if child.killed is None:
        if child.total > limit:
            child.killed = "flooded"
        elif now - child.started >= child.command.deadline_s:
            child.killed = "timed_out"
        if child.killed is not None:
            _kill(child)
            child.kill_deadline = now + _GRACE_S
    elif now >= child.kill_deadline:  # in uninterruptible sleep: a driver that hangs does that
        return _output(child, child.killed, None, undying=True)
    return None


def _output(
    child: _Child,
    end: Literal["exited", "timed_out", "flooded"],
    status: int | None,
    undying: bool = False,
) -> Output:
    content = b"".join(child.parts)
    limit = child.command.max_bytes
    content = content[-limit:] if child.command.keep == "tail" else content[:limit]
    return Output(
        end,
        content,
        child.total,
        status,
        round(time.monotonic() - child.started, 3),
        undying=undying,
    )


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
    pipe = child.process.stdout
    assert pipe is not None
    with contextlib.suppress(KeyError):
        selector.unregister(pipe)
    pipe.close()
    if child.process.poll() is None:
        threading.Thread(target=child.process.wait, daemon=True).start()
