"""Leases of CPU cores: groups share a machine, wait in turn, and never starve each other."""

from __future__ import annotations

import os
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_gpucluster.ranks.lease import lease_cores
from tests.unit.leasing import ended, let_go, never, process, says

CORES = (0, 1, 2, 3)
CORE_HOLDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from pytest_gpucluster.ranks.lease import lease_cores
    count, folder = int(sys.argv[2]), Path(sys.argv[1])
    with lease_cores(count, lambda text: print(text, flush=True), folder, (0, 1, 2, 3)):
        print("holding", flush=True)
        sys.stdin.readline()
    print("released", flush=True)
    """
)
# Whoever holds N cores finds N of four seats empty, or the cores were given out twice.
TAKES_MANY = textwrap.dedent(
    """
    import contextlib, random, sys
    from pathlib import Path
    from pytest_gpucluster.ranks.lease import lease_cores
    folder, source = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    for _ in range(100):
        count = source.randint(1, 5)
        with lease_cores(count, lambda text: None, folder, (0, 1, 2, 3)):
            mine = []
            for seat in range(4):
                with contextlib.suppress(FileExistsError):
                    (folder / f"seat{seat}").touch(exist_ok=False)
                    mine.append(seat)
                if len(mine) == min(count, 4):
                    break
            else:
                sys.exit(f"{count} cores, but seats {mine}")
            for seat in mine:
                (folder / f"seat{seat}").unlink()
    """
)
KEEPS_TAKING = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from pytest_gpucluster.ranks.lease import lease_cores
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    print("taking", flush=True)
    while not (folder / "enough").exists():
        with lease_cores(count, lambda text: None, folder, (0, 1, 2, 3)):
            time.sleep(0.01)
    """
)


def test_groups_share_a_machine_as_long_as_there_are_cores(tmp_path: Path) -> None:
    with process(tmp_path, "2", program=CORE_HOLDER) as first:
        assert says(first) == "holding"
        with lease_cores(2, never, tmp_path, CORES):
            pass


def test_a_group_waits_for_cores_and_is_told_who_has_them(tmp_path: Path) -> None:
    with process(tmp_path, "3", program=CORE_HOLDER) as first:
        assert says(first) == "holding"
        with process(tmp_path, "2", program=CORE_HOLDER) as second:
            assert says(second) == f"waiting for 2 CPU cores, held by process {first.pid}"
            let_go(first)
            assert says(second) == "holding"


def test_more_cores_than_there_are_means_all_of_them(tmp_path: Path) -> None:
    with process(tmp_path, "100", program=CORE_HOLDER) as first:
        assert says(first) == "holding"
        with process(tmp_path, "1", program=CORE_HOLDER) as second:
            assert says(second).startswith("waiting for 1 CPU core,")
            let_go(first)
            assert says(second) == "holding"


def test_a_killed_holder_or_waiter_blocks_nobody(tmp_path: Path) -> None:
    with process(tmp_path, "3", program=CORE_HOLDER) as first:
        assert says(first) == "holding"
        with process(tmp_path, "4", program=CORE_HOLDER) as second:
            assert says(second).startswith("waiting for 4")
            second.kill()
            second.wait()
        with lease_cores(1, never, tmp_path, CORES):
            pass
        first.kill()
        first.wait()
    with lease_cores(4, never, tmp_path, CORES):
        pass


def test_who_waits_behind_another_is_told_of_that_one_too(tmp_path: Path) -> None:
    with process(tmp_path, "3", program=CORE_HOLDER) as first:
        assert says(first) == "holding"
        with process(tmp_path, "4", program=CORE_HOLDER) as second:
            assert says(second) == f"waiting for 4 CPU cores, held by process {first.pid}"
            with process(tmp_path, "1", program=CORE_HOLDER) as third:
                said = says(third)
                assert said.startswith(f"waiting for 1 CPU core after process {second.pid}, held")
                assert f"process {first.pid}" in said
                let_go(first)
                assert says(second) == "holding"
                let_go(second)
                assert says(third) == "holding"


def test_what_a_killed_holder_wrote_names_nobody(tmp_path: Path) -> None:
    with process(tmp_path, "2", program=CORE_HOLDER) as first:
        assert says(first) == "holding"
        first.kill()
    with process(tmp_path, "1", program=CORE_HOLDER) as second:
        assert says(second) == "holding"
        with process(tmp_path, "4", program=CORE_HOLDER) as third:
            assert says(third) == f"waiting for 4 CPU cores, held by process {second.pid}"


def test_many_processes_never_hold_more_than_there_is_and_all_end(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ended(
            [
                stack.enter_context(process(tmp_path, str(seed), program=TAKES_MANY))
                for seed in range(4)
            ]
        )


def test_a_large_request_is_not_starved_by_small_ones(tmp_path: Path) -> None:
    with ExitStack() as stack:
        small = [
            stack.enter_context(process(tmp_path, count, program=KEEPS_TAKING))
            for count in ("1", "1", "2", "2")
        ]
        assert {says(child) for child in small} == {"taking"}
        with process(tmp_path, "4", program=CORE_HOLDER) as large:
            while (said := says(large)) != "holding":
                assert said.startswith("waiting for 4 CPU cores")
            (tmp_path / "enough").touch()
            let_go(large)
        ended(small)


def test_a_group_takes_no_more_locks_than_cores(tmp_path: Path) -> None:
    """On a node with hundreds of cores, looking at each would cost more than a test."""
    with lease_cores(2, never, tmp_path, range(200)):
        assert len(list(tmp_path.glob("core[0-9]*.lock"))) == 2


def test_the_cores_are_those_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 9})
    with lease_cores(100, never, tmp_path):
        locks = {path.name for path in tmp_path.glob("core[0-9]*.lock")}
    assert locks == {"core5.lock", "core9.lock"}
