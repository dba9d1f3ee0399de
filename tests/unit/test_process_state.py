"""What the kernel says of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from pytest_gpucluster.ranks.process_state import cpu_seconds, process_state, why_killed


def test_the_state_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert process_state(process.pid) == "stopped"
        process.kill()
    assert process_state(process.pid) == "gone"
    assert process_state(os.getpid()) == "running"


def test_cpu_time_of_a_busy_process_grows_and_of_a_sleeping_one_does_not() -> None:
    busy = "while True: pass"
    asleep = "import time; time.sleep(60)"
    with (
        subprocess.Popen([sys.executable, "-c", busy]) as first,
        subprocess.Popen([sys.executable, "-c", asleep]) as second,
    ):
        time.sleep(1.0)
        before = cpu_seconds(first.pid), cpu_seconds(second.pid)
        time.sleep(1.0)
        after = cpu_seconds(first.pid), cpu_seconds(second.pid)
        first.kill()
        second.kill()
    assert after[0] is not None
    assert before[0] is not None
    assert after[0] > before[0]
    assert after[1] == before[1]
    assert cpu_seconds(first.pid) is None


def test_a_process_that_nobody_killed_for_memory_has_no_such_reason() -> None:
    assert why_killed(os.getpid(), None) is None
