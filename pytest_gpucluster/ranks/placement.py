"""Who am I, who leads: read from the environment that a launcher sets.

One machine is supported today: pytest runs once and starts its own ranks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

# (launcher, variable with the number of processes, variable with this one's number)
LAUNCHERS = (
    ("torchrun", "WORLD_SIZE", "RANK"),
    ("Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MPI", "PMI_SIZE", "PMI_RANK"),
)


class PlacementError(RuntimeError):
    """The launcher's environment cannot be used; the message names the variables."""


@dataclass(frozen=True)
class Placement:
    """Where this session stands among the processes of a launch."""

    launcher: str  # "alone" where there is none
    node: str
    job: str | None = None

    def describe(self) -> str:
        """One line for the header."""
        if self.launcher == "alone":
            return f"one machine: {self.node}"
        job = f" job {self.job}" if self.job else ""
        return f"{self.launcher}{job}: one machine, {self.node}"


def find_placement(environ: Mapping[str, str] = os.environ) -> Placement:
    """Read the launcher's variables; raises `PlacementError` for several processes."""
    node = environ.get("SLURMD_NODENAME") or socket.gethostname()
    for launcher, size_name, rank_name in LAUNCHERS:
        size, number = environ.get(size_name), environ.get(rank_name)
        if size is None or number is None:
            continue
        if not (size.isdecimal() and number.isdecimal() and int(number) < int(size)):
            raise PlacementError(
                f"{launcher} environment: {size_name}={size!r} and {rank_name}={number!r} do not "
                "fit together. Unset both, or start through the launcher again."
            )
        if int(size) > 1:
            raise PlacementError(
                f"{launcher} started {size} processes ({size_name}={size}, {rank_name}={number}). "
                "One pytest per node starts its own ranks: start one process on one node."
            )
        return Placement(launcher, node, environ.get("SLURM_JOB_ID"))
    return Placement("alone", node)
