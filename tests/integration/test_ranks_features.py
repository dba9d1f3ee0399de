"""What `process_group` and the `distributed` mark offer beyond running a test on ranks."""

from __future__ import annotations

import json
import re

from tests.integration.ranked import Ranked

OFFERS = """
from filelock import FileLock

ONLY = {"GPUCLUSTER_TEST_WORD": "hello", "NCCL_DEBUG": "WARN"}

@pytest.mark.distributed(world_size=2, env=ONLY)
def test_env(process_group):
    assert os.environ["GPUCLUSTER_TEST_WORD"] == "hello"
    assert add() == 2

@pytest.mark.distributed(world_size=2)
def test_env_is_gone(process_group):
    assert "GPUCLUSTER_TEST_WORD" not in os.environ

@pytest.mark.distributed(world_size=2, isolation="process", env=ONLY)
def test_env_in_processes(process_group):
    assert os.environ["GPUCLUSTER_TEST_WORD"] == "hello"

@pytest.mark.distributed(world_size=2)
def test_record(process_group):
    process_group.record("copy", 10.5 + process_group.rank, "GB/s")

@pytest.mark.distributed(world_size=3, timeout=15)
def test_barrier(process_group):
    process_group.barrier()
    process_group.barrier(timeout=5)
    if process_group.rank == 1:
        time.sleep(1.5)
        return
    with pytest.raises(TimeoutError, match="rank 1 did not reach the barrier within 0.5 s"):
        process_group.barrier(timeout=0.5)

@pytest.fixture(scope="session")
def data_set(tmp_path_shared):
    file = tmp_path_shared / "data.txt"
    with FileLock(tmp_path_shared / "lock"):
        if not file.exists():
            file.write_text(str(os.getpid()))
    return file.read_text()

@pytest.mark.distributed(world_size=2)
def test_shared_folder(process_group, data_set):
    assert process_group.exchange(data_set) == [data_set, data_set]

def test_shared_folder_without_ranks(tmp_path_shared):
    assert tmp_path_shared.is_dir()

@pytest.mark.distributed(world_size=4)
def test_mesh(process_group):
    mesh = process_group.mesh((2, 2), ("data", "tensor"))
    tensor = torch.ones(1) * process_group.rank
    dist.all_reduce(tensor, group=mesh["data"].get_group())
    assert tensor.item() == {0: 2, 1: 4, 2: 2, 3: 4}[process_group.rank]
"""


def test_the_offers_of_a_process_group(ranked: Ranked) -> None:
    ranked.write(OFFERS)
    run = ranked.run("-v", "--junitxml=out.xml")
    assert set(run.outcomes().values()) == {"passed"}, run.output
    assert len(run.outcomes()) == 8
    spread = re.search(r"test_barrier PASSED \(3 ranks, (\d\.\d\d)-(\d\.\d\d) s\)", run.output)
    assert spread is not None, run.output
    assert float(spread[1]) < 1.4 < float(spread[2])


def test_a_recorded_number_is_among_the_measurements(ranked: Ranked) -> None:
    ranked.write(
        """
@pytest.mark.distributed(world_size=2)
def test_record(process_group):
    process_group.record("copy", 10.5 + process_group.rank, "GB/s")
"""
    )
    arguments = ("--gpucluster", "--gpucluster-rehearse", "--gpucluster-level=inventory")
    run = ranked.run(*arguments, "test_it.py", GPUCLUSTER_EVIDENCE="")
    assert run.outcomes()["test_record"] == "passed", run.output
    verdict = json.loads((run.folder / "gpucluster-report" / "verdict.json").read_text())
    measured = [m for m in verdict["measurements"] if m["name"] == "copy"]
    assert sorted((m["value"], m["unit"], m["conditions"]["rank"]) for m in measured) == [
        (10.5, "GB/s", 0),
        (11.5, "GB/s", 1),
    ]


RECOVERY = """
def note(process_group, name):
    pids = process_group.exchange(os.getpid())
    if process_group.rank == 0:
        with open("pids.jsonl", "a") as file:
            file.write(json.dumps([name, *pids]) + "\\n")

pytestmark = pytest.mark.distributed(world_size=4, timeout=2)

def test_first(process_group):
    note(process_group, "first")

def test_fails_on_one(process_group):
    assert process_group.rank != 2
    add()

def test_after_failure(process_group):
    note(process_group, "after failure")

def test_dies_on_one(process_group):
    print("last words")
    if process_group.rank == 1:
        print("on standard error", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    add()

def test_after_death(process_group):
    note(process_group, "after death")

def test_hangs_on_one(process_group):
    if process_group.rank == 3:
        time.sleep(1000)
    add()

def test_after_hang(process_group):
    note(process_group, "after hang")

def test_dies_later(process_group):
    if process_group.rank == 0:
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    process_group.barrier()

def test_ordinary():
    time.sleep(0.5)

def test_after_late_death(process_group):
    note(process_group, "after late death")
"""


def test_only_the_guilty_ranks_are_replaced(ranked: Ranked) -> None:
    ranked.write(RECOVERY)
    run = ranked.run()
    failed = {"test_fails_on_one", "test_dies_on_one", "test_hangs_on_one"}
    assert {n for n, outcome in run.outcomes().items() if outcome != "passed"} == failed
    lines = (run.folder / "pids.jsonl").read_text().splitlines()
    pids = {name: ranks for name, *ranks in map(json.loads, lines)}

    def replaced(before: str, after: str) -> list[int]:
        return [rank for rank in range(4) if pids[before][rank] != pids[after][rank]]

    assert replaced("first", "after failure") == [2]
    assert replaced("after failure", "after death") == [1]
    assert replaced("after death", "after hang") == [3]
    assert replaced("after hang", "after late death") == [0]
    assert re.search(r"rank 0 \(signal SIGKILL\) died after a test that had passed", run.output)

    told = run.told()["test_dies_on_one"]
    assert "Captured stdout when it died [rank 1]\n[rank 1] last words" in told.sections
    assert "Captured stderr when it died [rank 1]\n[rank 1] on standard error" in told.sections
    kept = sorted(path.name for path in (run.folder / "gpucluster-report" / "ranks").glob("*.txt"))
    assert kept == [
        f"test_it.py__test_{name}-rank{rank}.txt"
        for name in ("dies_on_one", "hangs_on_one")
        for rank in range(4)
    ]
    text = (run.folder / "gpucluster-report" / "ranks" / kept[4]).read_text()
    assert "all_reduce" in text
    assert "collective_seq_id" in text


def test_warnings_as_errors_do_not_stop_ranks(ranked: Ranked) -> None:
    ranked.write("def test_it(process_group):\n    assert add() == 2\n")
    run = ranked.run("-W", "error")
    assert run.outcomes() == {"test_it": "passed"}, run.output


PROCESSES = """
import subprocess
pytestmark = pytest.mark.distributed(world_size=2, isolation="process", timeout=4)

def test_leaves_a_child(process_group):
    child = subprocess.Popen(["sleep", "600"])
    with open(f"child-{process_group.rank}", "w") as file:
        file.write(str(child.pid))

def test_child_is_gone(process_group):
    pid = int(open(f"child-{process_group.rank}").read())
    limit = time.monotonic() + 2
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < limit:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")

def test_fails(process_group):
    assert process_group.rank == 0
    add()

def test_dies(process_group):
    if process_group.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    add()

def test_hangs(process_group):
    if process_group.rank == 1:
        time.sleep(1000)
    add()

def test_changes_the_process(process_group):
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    sys.modules[__name__].CHANGED = True

def test_is_not_changed(process_group):
    assert torch.get_default_dtype() == torch.float32
    assert not hasattr(sys.modules[__name__], "CHANGED")
    assert add() == 2
"""


def test_processes_of_their_own_fail_and_recover_like_kept_ones(ranked: Ranked) -> None:
    ranked.write(PROCESSES)
    told = ranked.run().told()
    failed = {name: entry.suspects for name, entry in told.items() if entry.outcome != "passed"}
    assert failed == {"test_fails": "rank 1", "test_dies": "rank 1", "test_hangs": "rank 1"}
    assert "died (signal SIGSEGV)" in told["test_dies"].text
    assert "rank 0 waits in all_reduce" in told["test_hangs"].text
    assert told["test_fails"].took < 2
    assert told["test_is_not_changed"].took < 2


def test_a_rank_whose_peer_died_while_the_group_was_made_is_replaced(ranked: Ranked) -> None:
    ranked.write(
        """
def test_first(process_group):
    assert add() == 2

@pytest.fixture
def before_the_group(pytestconfig):
    worker = pytestconfig.workerinput["workerid"]
    if worker == "rank1":
        os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.distributed(world_size=2, isolation="group", timeout=4)
def test_dies(before_the_group, process_group):
    add()

@pytest.mark.distributed(world_size=2, timeout=4)
def test_after(process_group):
    assert add() == 2
"""
    )
    told = ranked.run().told()
    assert told["test_dies"].suspects == "rank 1"
    assert "died (signal SIGKILL)" in told["test_dies"].text
    assert told["test_after"].outcome == "passed", told["test_after"].text
