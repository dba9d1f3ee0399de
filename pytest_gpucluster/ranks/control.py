"""The thread by which a rank answers while its main thread is busy or blocked."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from pytest_gpucluster.ranks import channel


def obey(control: Connection, tell: Callable[[], dict[str, Any]]) -> None:
    """Answer the leader's questions in the background, and end with it."""
    threading.Thread(target=_obey, args=(control, tell), daemon=True).start()


def _obey(control: Connection, tell: Callable[[], dict[str, Any]]) -> None:
    while True:
        try:
            question = channel.receive(control)
        except (EOFError, OSError):  # the leader is gone
            os.killpg(0, signal.SIGKILL)
            return
        try:
            answer = tell()
        except Exception as error:  # the test may have broken anything
            answer = {"unavailable": repr(error)[:1000]}
        with contextlib.suppress(OSError, ValueError, TypeError):
            channel.send(control, "told", serial=question.get("serial"), **answer)
