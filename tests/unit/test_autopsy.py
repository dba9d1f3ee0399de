"""From faulthandler's text: where a rank stands, and which ranks kept the others waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_gpucluster.ranks.autopsy import (
    find_place,
    narrate,
    own_frames,
    peer_was_lost,
    process_state,
    rank_list,
    suspects,
)
from pytest_gpucluster.ranks.results import RankResult, RankState

STDLIB = Path(os.__file__).parent

HARNESS = """\
  File "/venv/lib/python3.11/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call
  File "/venv/lib/python3.11/site-packages/pluggy/_callers.py", line 121 in _multicall
  File "/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/rank.py", line 190 in _run
  File "/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/rank.py", line 98 in main
"""
OTHER_THREADS = f"""\
Thread 0x00007f0000000001 (most recent call first):
  File "{STDLIB}/multiprocessing/connection.py", line 395 in _recv
  File "/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/channel.py", line 25 in receive
  File "/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/rank.py", line 124 in _obey
  File "{STDLIB}/threading.py", line 982 in run

Thread 0x00007f0000000002 (most recent call first):
  File "/home/u/loader.py", line 9 in prefetch
  File "{STDLIB}/threading.py", line 982 in run

"""
TORCH = "/venv/lib/python3.11/site-packages/torch"


def stack(*frames: str) -> str:
    own = "".join(f"  File {frame}\n" for frame in frames)
    return (
        f"{OTHER_THREADS}Current thread 0x00007f0000000003 (most recent call first):\n"
        f"{own}{HARNESS}"
    )


IN_ALL_REDUCE = stack(
    f'"{TORCH}/distributed/distributed_c10d.py", line 3007 in all_reduce',
    f'"{TORCH}/distributed/c10d_logger.py", line 83 in wrapper',
    '"/home/u/train.py", line 30 in step',
    '"/home/u/test_x.py", line 12 in test_it',
)
IN_OWN_CODE = stack(
    '"/home/u/data.py", line 40 in load_batch', '"/home/u/test_x.py", line 10 in test_it'
)
ASLEEP_IN_STDLIB = stack(
    f'"{STDLIB}/selectors.py", line 415 in select',
    f'"{STDLIB}/subprocess.py", line 2115 in _communicate',
    '"/home/u/data.py", line 7 in fetch',
)
IN_BACKWARD = stack(
    f'"{TORCH}/autograd/graph.py", line 829 in _engine_run_backward',
    f'"{TORCH}/_tensor.py", line 630 in backward',
    '"/home/u/test_x.py", line 21 in test_it',
)
IN_PUBLIC_BARRIER = stack(
    f'"{TORCH}/distributed/distributed_c10d.py", line 4731 in _wait_all',
    f'"{TORCH}/distributed/distributed_c10d.py", line 4700 in barrier',
    f'"{TORCH}/distributed/c10d_logger.py", line 83 in wrapper',
    '"/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/group.py", line 77 in barrier',
    '"/home/u/test_x.py", line 5 in test_it',
)


def result(rank: int, stack: str | None = None, state: RankState = "hung") -> RankResult:
    return RankResult(rank, state, stack=stack)


# Where a rank stands


def test_a_rank_in_a_collective_is_placed_at_the_users_line_that_called_it() -> None:
    place = find_place(IN_ALL_REDUCE)
    assert place is not None
    assert (place.collective, place.function, place.line) == ("all_reduce", "step", 30)
    assert place.describe() == "wait in all_reduce at train.py:30"


def test_a_collective_is_called_by_the_name_the_user_called_it_by() -> None:
    place = find_place(IN_PUBLIC_BARRIER)
    assert place is not None
    assert place.describe() == "wait in barrier at test_x.py:5"


def test_a_rank_in_its_own_code_is_placed_at_its_innermost_frame() -> None:
    place = find_place(IN_OWN_CODE)
    assert place is not None
    assert place.collective is None
    assert place.describe() == "in load_batch at data.py:40"


def test_frames_of_the_standard_library_are_looked_through() -> None:
    place = find_place(ASLEEP_IN_STDLIB)
    assert place is not None
    assert place.describe() == "in fetch at data.py:7"


def test_torch_outside_of_distributed_is_no_collective() -> None:
    place = find_place(IN_BACKWARD)
    assert place is not None
    assert place.describe() == "in test_it at test_x.py:21"


@pytest.mark.parametrize("text", [None, "", "garbage", OTHER_THREADS, stack()])
def test_without_a_frame_of_the_users_there_is_no_place(text: str | None) -> None:
    assert find_place(text) is None


def test_the_order_of_the_threads_does_not_matter() -> None:
    main = IN_OWN_CODE.removeprefix(OTHER_THREADS)
    place = find_place(f"{main}\n{OTHER_THREADS}")
    assert place is not None
    assert place.function == "load_batch"


# The frames shown


def test_the_frames_shown_are_the_users_and_torchs() -> None:
    shown = own_frames(IN_ALL_REDUCE)
    assert shown.splitlines()[0].endswith("line 3007 in all_reduce")
    assert '  File "/home/u/train.py", line 30 in step' in shown
    for hidden in ("_pytest", "pluggy", "ranks/rank.py", "loader.py"):
        assert hidden not in shown


def test_a_missing_stack_is_said_to_be_missing() -> None:
    assert own_frames(None).strip() == "(no stack)"


def test_faulthandlers_own_text_is_understood() -> None:
    """A process that hangs as a rank does, dumped as a rank is."""
    program = textwrap.dedent(
        """
        import faulthandler, signal, sys, time
        faulthandler.register(signal.SIGUSR1, file=sys.stdout, all_threads=True)
        def load_batch():
            print("ready", flush=True)
            time.sleep(60)
        file = "/x/pytest_gpucluster/ranks/rank.py"
        exec(compile("load_batch()", file, "exec"))
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        text = ""
        while "ranks/rank.py" not in text:
            text += process.stdout.readline()
        process.kill()
    place = find_place(text)
    assert place is not None
    assert place.function == "load_batch"


# Who is to blame


def test_the_rank_that_is_elsewhere_is_the_suspect() -> None:
    ranks = [result(0, IN_ALL_REDUCE), result(1, IN_OWN_CODE), result(2, IN_ALL_REDUCE)]
    assert suspects(ranks) == [1]


def test_nobody_is_the_suspect_when_all_wait_or_nobody_does() -> None:
    assert suspects([result(0, IN_ALL_REDUCE), result(1, IN_ALL_REDUCE)]) == []
    assert suspects([result(0, IN_OWN_CODE), result(1, IN_OWN_CODE)]) == []


def test_a_rank_that_gave_no_stack_is_a_suspect() -> None:
    assert suspects([result(0, IN_ALL_REDUCE), result(1, None)]) == [1]


def test_a_stopped_rank_is_a_suspect_even_inside_a_collective() -> None:
    stopped = result(1, IN_ALL_REDUCE)
    stopped.ended = "stopped (SIGSTOP)"
    assert suspects([result(0, IN_ALL_REDUCE), stopped]) == [1]


def test_a_rank_that_finished_while_the_rest_wait_for_it_is_the_suspect() -> None:
    assert suspects([result(0, IN_ALL_REDUCE), result(1, state="done")]) == [1]
    assert suspects([result(0, IN_OWN_CODE), result(1, state="done")]) == [0]


def test_the_story_joins_ranks_that_are_at_the_same_place() -> None:
    dead = RankResult(4, "died", ended="signal SIGKILL")
    stopped = result(5, IN_ALL_REDUCE)
    stopped.ended = "stopped (SIGSTOP)"
    ranks = [
        result(0, IN_ALL_REDUCE),
        result(1, IN_OWN_CODE),
        result(2, IN_ALL_REDUCE),
        result(3, state="done"),
        dead,
        stopped,
        result(6, None),
    ]
    assert narrate(ranks) == (
        "ranks 0,2 wait in all_reduce at train.py:30; rank 1 in load_batch at data.py:40; "
        "rank 3 finished; rank 4 died (signal SIGKILL); rank 5 stopped (SIGSTOP); "
        "rank 6 gave no stack"
    )


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0,1"),
        ([3, 0, 1], "ranks 0,1,3"),
        ([7, 6, 5, 4, 3, 2, 1], "ranks 1-7"),
        ([1, 2, 3], "ranks 1-3"),
    ],
)
def test_lists_of_ranks(ranks: list[int], text: str) -> None:
    assert rank_list(ranks) == text


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]",
        "RuntimeError: [gloo/pair.cc:525] Read error [10.0.0.1]: Connection reset by peer",
        "DistNetworkError: Connection refused",
        "RuntimeError: [gloo/buffer.cc] Timed out waiting 1800000ms for recv operation to complete",
        "DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network",
        "RuntimeError: Gloo connectFullMesh failed with [../pair.cc:144] no error",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_messages_that_only_say_that_a_peer_went_away(text: str) -> None:
    assert peer_was_lost(text)


@pytest.mark.parametrize(
    "text",
    [
        "assert 3 == 4",
        "ValueError: the connection of layers 3 and 4 is wrong",
        "torch.OutOfMemoryError: CUDA out of memory",
        "DistBackendError: NCCL error: unhandled cuda error",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_messages_that_say_what_went_wrong(text: str) -> None:
    assert not peer_was_lost(text)


def test_the_state_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert process_state(process.pid) == "stopped"
        process.kill()
    assert process_state(process.pid) == "gone"
    assert process_state(os.getpid()) == "running"
