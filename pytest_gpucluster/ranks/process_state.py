"""What the kernel says of a rank's process: state, CPU time, and whether memory ran out."""

from __future__ import annotations

import os
import re
from pathlib import Path

STATES = {"R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "stopped"}


def process_state(pid: int) -> str:
    """``running``, ``sleeping``, ``uninterruptible``, ``stopped``, ``zombie`` or ``gone``."""
    fields = _stat(pid)
    if fields is None:
        return "gone"
    return STATES.get(fields[0], "zombie" if fields[0] == "Z" else fields[0])


def cpu_seconds(pid: int) -> float | None:
    """CPU time used so far, user and system; ``None`` if the process is gone."""
    fields = _stat(pid)
    if fields is None:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name (which may hold blanks and brackets)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 12 else None


def why_killed(pid: int, kills_before: int | None) -> str | None:
    """Whether the kernel killed ``pid`` for lack of memory, as far as that can be known.

    ``kills_before`` is what `cgroup_oom_kills` said earlier.
    """
    line = _oom_kill_line(pid)
    if line is not None:
        return f"the kernel's log: {line}"
    kills = cgroup_oom_kills()
    if kills is not None and kills_before is not None and kills > kills_before:
        return "the kernel killed a process of this control group for lack of memory"
    return None


def _oom_kill_line(pid: int) -> str | None:
    try:
        kernel_log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    wanted = re.compile(rf"Killed process {pid} |task=[^,]*,pid={pid},")
    found = None
    try:
        while True:
            try:
                record = os.read(kernel_log, 8192).decode(errors="replace")
            except BrokenPipeError:  # overwritten while it was read
                continue
            if wanted.search(record):
                found = record.partition(";")[2].splitlines()[0]
    except OSError:  # nothing more to read
        return found
    finally:
        os.close(kernel_log)


def cgroup_oom_kills() -> int | None:
    """How often the kernel killed for memory in this control group so far (cgroup v2)."""
    try:
        own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].split("\n")[0]
        events = Path(f"/sys/fs/cgroup{own}/memory.events").read_text()
        return int(re.findall(r"^oom_kill (\d+)", events, re.M)[0])
    except (OSError, IndexError, ValueError):
        return None
