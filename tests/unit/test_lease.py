"""Leases: one user of a GPU at a time, whatever becomes of the holder."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_gpucluster.ranks.lease import lease, lease_cores, lease_folder

LONG = 30  # seconds after which a test is lost, not slow

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
HOLDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from pytest_gpucluster.ranks.lease import lease
    with lease(sys.argv[2:], lambda text: print(text, flush=True), Path(sys.argv[1])):
        print("holding", flush=True)
        sys.stdin.readline()
    print("released", flush=True)
    """
)


@contextmanager
def process(
    folder: Path, *resources: str, program: str = HOLDER
) -> Iterator[subprocess.Popen[str]]:
    """Another process that takes the lease and keeps it until it reads a line."""
    command = [sys.executable, "-c", program, str(folder), *resources]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as child:  # type: ignore[call-overload]
        try:
            yield child
        finally:
            child.kill()


def says(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def let_go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


class Waiting:
    """A thread that takes a lease and tells what happens."""

    def __init__(self, folder: Path, *resources: str) -> None:
        self.told: list[str] = []
        self.waits = threading.Event()
        self.held = threading.Event()
        self._thread = threading.Thread(target=self._take, args=(folder, resources), daemon=True)
        self._thread.start()

    def _take(self, folder: Path, resources: tuple[str, ...]) -> None:
        with lease(resources, self._tell, folder):
            self.held.set()

    def _tell(self, text: str) -> None:
        self.told.append(text)
        self.waits.set()

    def join(self) -> None:
        self._thread.join(LONG)
        assert not self._thread.is_alive()


def never(text: str) -> None:
    pytest.fail(f"nobody holds it, yet: {text}")


def test_two_processes_exclude_each_other(tmp_path: Path) -> None:
    with process(tmp_path, "GPU-1") as first:
        assert says(first) == "holding"
        second = Waiting(tmp_path, "GPU-1")
        assert second.waits.wait(LONG)
        assert not second.held.wait(0.3)
        let_go(first)
        assert says(first) == "released"
        assert second.held.wait(LONG)
        second.join()


def test_the_one_who_waits_is_told_once_what_and_who(tmp_path: Path) -> None:
    with process(tmp_path, "GPU-1") as first:
        assert says(first) == "holding"
        second = Waiting(tmp_path, "GPU-1")
        assert second.waits.wait(LONG)
        assert not second.held.wait(0.3)
        let_go(first)
        second.join()
    assert second.told == [f"waiting for GPU-1, held by process {first.pid}"]


def test_a_holder_that_left_no_name_is_another_process(tmp_path: Path) -> None:
    with process(tmp_path, "GPU-1") as first:
        assert says(first) == "holding"
        (tmp_path / "GPU-1.lock").write_text("not json")
        second = Waiting(tmp_path, "GPU-1")
        assert second.waits.wait(LONG)
        let_go(first)
        second.join()
    assert second.told == ["waiting for GPU-1, held by another process"]


def test_a_killed_holder_leaves_its_lease_free_at_once(tmp_path: Path) -> None:
    with process(tmp_path, "GPU-1") as first:
        assert says(first) == "holding"
        first.kill()
        first.wait()
        assert (tmp_path / "GPU-1.lock").read_text(), "it had no time to tidy up"
        with lease(["GPU-1"], never, tmp_path):
            pass


def test_different_resources_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with process(tmp_path, "GPU-1") as first:
        assert says(first) == "holding"
        with lease(["GPU-2"], never, tmp_path):
            pass


def test_a_lease_of_several_waits_for_each_of_them(tmp_path: Path) -> None:
    with process(tmp_path, "GPU-2") as first:
        assert says(first) == "holding"
        second = Waiting(tmp_path, "GPU-1", "GPU-2", "GPU-3")
        assert second.waits.wait(LONG)
        let_go(first)
        second.join()
    assert second.told == [f"waiting for GPU-2, held by process {first.pid}"]


def test_resources_named_in_opposite_order_do_not_deadlock(tmp_path: Path) -> None:
    """Both take GPU-1 first: the one who waits for it holds nothing the other needs."""
    with process(tmp_path, "GPU-2", "GPU-1") as first:
        assert says(first) == "holding"
        second = Waiting(tmp_path, "GPU-1", "GPU-2")
        third = Waiting(tmp_path, "GPU-2", "GPU-1")
        assert second.waits.wait(LONG)
        assert third.waits.wait(LONG)
        assert second.told == third.told == [f"waiting for GPU-1, held by process {first.pid}"]
        let_go(first)
        second.join()
        third.join()


def test_a_resource_named_twice_is_taken_once(tmp_path: Path) -> None:
    with lease(["GPU-1", "GPU-1"], never, tmp_path):
        pass


def test_a_lease_can_be_taken_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lease(["GPU-1"], never, tmp_path):
        raise ZeroDivisionError
    with lease(["GPU-1"], never, tmp_path):
        pass
    assert (tmp_path / "GPU-1.lock").read_text() == "", "nobody is named as its holder"


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "leases"
    with lease(["../../evil/GPU"], never, place):
        assert {path.parent for path in tmp_path.rglob("*.lock")} == {place}


def test_the_folder_is_private_and_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCLUSTER_LEASES", str(tmp_path / "site"))
    with lease(["GPU-1"], never):
        pass
    assert (tmp_path / "site").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("GPUCLUSTER_LEASES")
    assert lease_folder() == Path(f"/tmp/gpucluster-leases-{os.getuid()}")


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leases").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(PermissionError, match="GPUCLUSTER_LEASES"),
        lease(["GPU-1"], never, tmp_path / "leases"),
    ):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


# Cores


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
            assert says(second).startswith("waiting for 1 CPU cores")
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


def test_many_at_once_never_hold_more_than_there_is_and_all_come_to_an_end(
    tmp_path: Path,
) -> None:
    held: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    def work(seed: int) -> None:
        for count in random.Random(seed).choices(range(1, 5), k=25):
            with lease_cores(count, lambda _: None, tmp_path, CORES):
                with lock:
                    held.append(count)
                    most.append(sum(held))
                with lock:
                    held.remove(count)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert max(most) <= len(CORES)
