"""Setting ranks free that wait for one which will not come.

Nothing but a closed connection ends a collective of Gloo. A rank that leaves its group closes
its own, which frees the ranks next to it, and these in turn free theirs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from multiprocessing.connection import wait

from pytest_gpucluster.ranks import channel
from pytest_gpucluster.ranks.agent import RunningRank


def leave(member: RunningRank) -> None:
    """Tell a rank that has finished its test to leave the group."""
    with contextlib.suppress(OSError):
        channel.send(member.connection, "leave")


def free(
    finished: Mapping[int, RunningRank], waiting: Mapping[int, RunningRank], seconds: float
) -> set[int]:
    """Let the finished leave, and each waiting rank once it has given up.

    What the waiting report is dropped: their test is over. Returns the ranks that still wait
    after ``seconds``, died, or can join no further group.
    """
    for member in finished.values():
        leave(member)
    stuck, dead = dict(waiting), set[int]()
    limit = time.monotonic() + seconds
    while stuck:
        by_connection = {member.connection: member for member in stuck.values()}
        ready = wait(list(by_connection), max(0.0, limit - time.monotonic()))
        if not ready:
            break
        for connection in ready:
            member = by_connection[connection]  # type: ignore[index]
            try:
                message = channel.receive(member.connection)
            except (EOFError, OSError, channel.ChannelError):
                dead.add(member.rank)
                del stuck[member.rank]
                continue
            if message["kind"] in ("done", "unknown_test"):
                del stuck[member.rank]
                if message.get("broken"):
                    dead.add(member.rank)
                else:
                    leave(member)
    return dead | set(stuck)
