"""From faulthandler's text: where a rank stands, and which frames are shown."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_gpucluster.ranks.stacks import fatal_stack, find_place, own_frames
from tests.unit.stack_texts import (
    ASLEEP_IN_STDLIB,
    IN_ALL_REDUCE,
    IN_BACKWARD,
    IN_OWN_CODE,
    IN_PUBLIC_BARRIER,
    OTHER_THREADS,
    stack,
)

# Where a rank stands


def test_a_rank_in_a_collective_is_placed_at_the_users_line_that_called_it() -> None:
    place = find_place(IN_ALL_REDUCE)
    assert place is not None
    assert (place.collective, place.function, place.line) == ("all_reduce", "step", 30)
    assert place.where == "train.py:30"


def test_a_collective_is_called_by_the_name_the_user_called_it_by() -> None:
    place = find_place(IN_PUBLIC_BARRIER)
    assert place is not None
    assert (place.collective, place.where) == ("barrier", "test_x.py:5")


def test_a_rank_in_its_own_code_is_placed_at_its_innermost_frame() -> None:
    place = find_place(IN_OWN_CODE)
    assert place is not None
    assert place.collective is None
    assert (place.function, place.where) == ("load_batch", "data.py:40")


def test_frames_of_the_standard_library_are_looked_through() -> None:
    place = find_place(ASLEEP_IN_STDLIB)
    assert place is not None
    assert (place.function, place.where) == ("fetch", "data.py:7")


def test_torch_outside_of_distributed_is_no_collective() -> None:
    place = find_place(IN_BACKWARD)
    assert place is not None
    assert (place.collective, place.where) == (None, "test_x.py:21")


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


def test_of_a_death_only_what_was_written_then_counts(tmp_path: Path) -> None:
    file = tmp_path / "stack"
    file.write_text(f"{IN_ALL_REDUCE}\nFatal Python error: Segmentation fault\n\n{IN_OWN_CODE}")
    place = find_place(fatal_stack(file))
    assert place is not None
    assert place.function == "load_batch"


def test_a_rank_that_was_killed_leaves_no_stack(tmp_path: Path) -> None:
    file = tmp_path / "stack"
    file.write_text(IN_ALL_REDUCE)
    assert fatal_stack(file) is None
    assert fatal_stack(tmp_path / "missing") is None
