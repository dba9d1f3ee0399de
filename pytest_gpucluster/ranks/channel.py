"""Messages between the leader and its ranks: JSON only, one object per message.

The pipe is private to parent and child, yet nothing is ever unpickled from it: a rank that
runs a user's test is not trusted with the leader's memory.
"""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

LONGEST_MESSAGE = 64 * 2**20  # bytes; a report larger than this is cut before it is sent


class ChannelError(RuntimeError):
    """The other side sent something that is not a message."""


def send(connection: Connection, kind: str, **fields: Any) -> None:
    """Send one message; raises TypeError or ValueError if a field is not JSON."""
    connection.send_bytes(json.dumps({"kind": kind, **fields}).encode())


def receive(connection: Connection) -> dict[str, Any]:
    """Wait for one message; raises EOFError when the other side is gone."""
    data = connection.recv_bytes(LONGEST_MESSAGE)
    try:
        message = json.loads(data)
    except ValueError as error:
        raise ChannelError(f"not JSON: {data[:80]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ChannelError(f"not a message: {data[:80]!r}")
    return message
