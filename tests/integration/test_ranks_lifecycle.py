"""Runs that end badly leave nothing behind, and runs beside each other do not meet."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.ranked import Ranked, wait_for

GONE_S = 3.0  # for ranks, once their leader is gone
LOOPBACK = {
    "0100007F",  # 127.0.0.1
    "00000000000000000000000001000000",  # ::1
    "0000000000000000FFFF00000100007F",  # ::ffff:127.0.0.1
}
BUSY = """
def test_busy(process_group):
    import subprocess
    child = subprocess.Popen(["sleep", "1000"])
    forked = os.fork()
    if forked == 0:
        time.sleep(1000)
    pids = process_group.exchange([os.getpid(), child.pid, forked])
    if process_group.rank == 0:
        with open("busy.tmp", "w") as file:
            json.dump(pids, file)
        os.rename("busy.tmp", "busy.json")
    if process_group.rank == 1 and os.environ.get("STOPPED"):
        os.kill(os.getpid(), signal.SIGSTOP)
    add()
    time.sleep(1000)
"""
PLAIN = """
@pytest.mark.parametrize("number", range(8))
def test_sum(process_group, number):
    assert add(number) == 2 * number
"""


def still_there(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


def listening(pids: list[int]) -> list[str]:
    """Addresses, in hexadecimal as the kernel prints them, on which these processes listen."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(str(link.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pids[0]}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1].partition(":")[0])
    return found


@pytest.mark.parametrize(
    ("number", "stopped"),
    [(signal.SIGINT, "1"), (signal.SIGKILL, ""), (signal.SIGKILL, "1")],
    ids=["ctrl-c", "kill", "kill-stopped"],
)
def test_ranks_and_what_they_started_end_with_their_leader(
    ranked: Ranked, number: signal.Signals, stopped: str
) -> None:
    ranked.write(BUSY)
    leader = ranked.start(STOPPED=stopped)
    pids = json.loads(wait_for(ranked.pytester.path / "busy.json"))
    everyone = [pid for rank in pids for pid in rank]
    assert still_there(everyone) == everyone

    addresses = listening(ranked.alive())
    assert addresses, "the rendezvous store listens"
    assert set(addresses) <= LOOPBACK

    if number == signal.SIGINT:  # a terminal sends it to the whole foreground
        os.killpg(leader.pid, number)
    else:
        os.kill(leader.pid, number)
    started = time.monotonic()
    code = leader.wait(30)
    while (left := still_there(everyone)) and time.monotonic() < started + GONE_S:
        time.sleep(0.02)
    assert not left, f"of {pids}"
    if number == signal.SIGINT:
        assert code == 2
        assert "KeyboardInterrupt" in (ranked.pytester.path / "output.txt").read_text()


def test_an_impatient_ctrl_c_leaves_nothing_behind(ranked: Ranked) -> None:
    ranked.write(BUSY)
    leader = ranked.start(STOPPED="1")
    pids = [
        pid for rank in json.loads(wait_for(ranked.pytester.path / "busy.json")) for pid in rank
    ]
    for _ in range(3):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGINT)
        time.sleep(0.05)
    leader.wait(30)
    limit = time.monotonic() + GONE_S
    while (left := still_there(pids)) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not left


def test_two_runs_at_once_do_not_meet(ranked: Ranked) -> None:
    ranked.write(PLAIN)
    runs = [ranked.start("-p", "no:cacheprovider", f"--gpucluster-report=r{n}") for n in (1, 2)]
    assert [run.wait(90) for run in runs] == [0, 0]


def test_xdist_workers_run_distributed_tests_side_by_side(ranked: Ranked) -> None:
    ranked.write(PLAIN + "\ndef test_fails(process_group): assert process_group.rank == 0\n")
    run = ranked.run("-n", "2")
    outcomes = {f"test_sum[{n}]": "passed" for n in range(8)}
    assert run.outcomes() == {**outcomes, "test_fails": "failed"}
    assert run.told()["test_fails"].suspects == "rank 1"
    assert "FAILED test_it.py::test_fails - rank 1: " in run.output


def test_the_next_test_gets_ranks_when_the_fork_server_has_died(ranked: Ranked) -> None:
    ranked.write(
        """
def test_server_dies(process_group):
    if process_group.rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    add()
    time.sleep(1000)

def test_after(process_group):
    assert add() == 2
"""
    )
    run = ranked.run()
    assert run.outcomes() == {"test_server_dies": "failed", "test_after": "passed"}
    assert "fork server" in run.told()["test_server_dies"].text


def test_a_rank_that_dies_between_two_tests_is_replaced(ranked: Ranked) -> None:
    ranked.write(
        """
def test_leaves_a_bomb(process_group):
    if process_group.rank == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()

def test_waits_without_ranks():
    time.sleep(1)

def test_after(process_group):
    assert add() == 2
"""
    )
    run = ranked.run()
    assert set(run.outcomes().values()) == {"passed"}, run.output
