"""Leases: one user of a GPU at a time, whatever becomes of the holder."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_gpucluster.ranks.lease import lease, lease_folder
from tests.unit.leasing import HOLDER, LONG, ended, let_go, never, process, says

HOLDS_AND_STARTS = HOLDER.replace("import sys", "import subprocess, sys").replace(
    'print("holding", flush=True)',
    'print(subprocess.Popen(["sleep", "60"], stdout=2).pid, flush=True)',
)
TAKES_MANY = textwrap.dedent(
    """
    import os, random, sys
    from pathlib import Path
    from pytest_gpucluster.ranks.lease import lease
    folder, source = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    for _ in range(100):
        gpus = source.sample(["GPU-a", "GPU-b", "GPU-c", "GPU-d"], source.randint(1, 4))
        with lease(gpus, lambda text: None, folder):
            for gpu in gpus:
                (folder / gpu).touch(exist_ok=False)
            for gpu in gpus:
                (folder / gpu).unlink()
    """
)


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


def test_the_holder_is_named_with_what_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "burn_in.py"
    script.write_text(HOLDER)
    with process(tmp_path, "GPU-1", program=script) as first:
        assert says(first) == "holding"
        second = Waiting(tmp_path, "GPU-1")
        assert second.waits.wait(LONG)
        let_go(first)
        second.join()
    runs = f"burn_in.py {tmp_path} GPU-1"[:100]
    assert second.told == [f"waiting for GPU-1, held by process {first.pid} ({runs})"]


@pytest.mark.parametrize(
    ("text", "says_so"),
    [
        ('{"pid": 7, "runs": "\\u001b[31mred"}', "process 7 (?[31mred)"),
        ('{"pid": "seven"}', "another process"),
        ("[7]", "another process"),
        ("", "another process"),
        ("[" * 1000, "another process"),
    ],
)
def test_what_a_lock_file_says_is_not_trusted(tmp_path: Path, text: str, says_so: str) -> None:
    with process(tmp_path, "GPU-1") as first:
        assert says(first) == "holding"
        (tmp_path / "GPU-1.lock").write_text(text)
        second = Waiting(tmp_path, "GPU-1")
        assert second.waits.wait(LONG)
        let_go(first)
        second.join()
    assert second.told == [f"waiting for GPU-1, held by {says_so}"]


def test_what_a_killed_holder_has_started_does_not_hold_its_lease(tmp_path: Path) -> None:
    with process(tmp_path, "GPU-1", program=HOLDS_AND_STARTS) as first:
        started = int(says(first))
        first.kill()
        first.wait()
        try:
            with lease(["GPU-1"], never, tmp_path):
                os.kill(started, 0)  # it is still there
        finally:
            os.kill(started, signal.SIGKILL)


def test_a_waiter_can_be_interrupted(tmp_path: Path) -> None:
    with process(tmp_path, "GPU-1") as first:
        assert says(first) == "holding"
        with process(tmp_path, "GPU-1") as second:
            assert says(second).startswith("waiting for GPU-1")
            second.send_signal(signal.SIGINT)
            assert second.wait(LONG) == -signal.SIGINT


def test_many_processes_with_random_subsets_exclude_each_other_and_end(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ended(
            [
                stack.enter_context(process(tmp_path, str(seed), program=TAKES_MANY))
                for seed in range(4)
            ]
        )


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "leases"
    place.mkdir()
    if os.getuid() == 0:
        os.chown(place, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with (
        pytest.raises(PermissionError, match=r"leases is no folder of yours.*GPUCLUSTER_LEASES"),
        lease(["GPU-1"], never, place),
    ):
        pass
    assert not list(place.iterdir())


@pytest.mark.parametrize("what", ["file", "dangling link"])
def test_what_is_no_folder_is_refused(tmp_path: Path, what: str) -> None:
    place = tmp_path / "leases"
    if what == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path / "nowhere")
    with (
        pytest.raises(PermissionError, match=r"leases is no folder of yours"),
        lease(["GPU-1"], never, place),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["leases"]


def test_a_link_in_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "GPU-1.lock").symlink_to(tmp_path / "precious")
    with (
        pytest.raises(OSError, match=r"GPU-1\.lock cannot be opened: .*GPUCLUSTER_LEASES"),
        lease(["GPU-1"], never, tmp_path),
    ):
        pass
    assert not (tmp_path / "precious").exists()
