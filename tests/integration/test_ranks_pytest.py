"""What works in an ordinary pytest test works on every rank."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.integration.ranked import Ranked

CONFTEST = """
from pathlib import Path

def note(request, text):
    workerid = request.config.workerinput["workerid"]
    with (request.config.rootpath / f"notes-{workerid}.txt").open("a") as file:
        file.write(text + "\\n")

def _scoped(scope):
    @pytest.fixture(scope=scope, name=f"{scope}_value")
    def value(request):
        note(request, f"{scope} set up")
        yield scope
        note(request, f"{scope} torn down")
    return value

function_value, class_value, module_value, package_value, session_value = map(
    _scoped, ("function", "class", "module", "package", "session"))

@pytest.fixture(params=[10, 20])
def doubled(request):
    return 2 * request.param

@pytest.fixture
def ran(request):
    yield
    note(request, f"ran {request.node.name}")

@pytest.fixture
def shifted(process_group):
    return process_group.rank + 100
"""
FEATURES = """
pytestmark = pytest.mark.usefixtures("ran")

@pytest.mark.distributed(world_size=[2, 3])
def test_sum(process_group):
    assert add(process_group.rank) == sum(range(process_group.world_size))

def test_identity(process_group):
    assert process_group.exchange(process_group.rank) == [0, 1]
    assert dist.get_rank() == process_group.rank == process_group.local_rank
    assert process_group.backend == dist.get_backend() == "gloo"

@pytest.mark.parametrize("word", ["one", "two"])
def test_parametrised(process_group, word, doubled):
    assert add(doubled) == 2 * doubled
    assert process_group.exchange(word) == [word, word]

def test_through_another_fixture(shifted):
    assert add(shifted) == 201

@pytest.mark.usefixtures("process_group")
def test_through_usefixtures():
    assert add() == 2

class TestInAClass:
    def setup_method(self):
        self.value = 5

    def test_method(self, process_group, class_value):
        assert add(self.value) == 10 and class_value == "class"

    def test_other_method(self, process_group, class_value):
        assert add(self.value) == 10

def test_tmp_path(process_group, tmp_path):
    (tmp_path / "own.txt").write_text(str(process_group.rank))
    assert len(set(process_group.exchange(str(tmp_path)))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]

def test_capfd(process_group, capfd):
    os.write(1, f"from {process_group.rank}".encode())
    assert capfd.readouterr().out == f"from {process_group.rank}"

def test_output(process_group):
    print(f"hello from {process_group.rank}")

def test_monkeypatch(process_group, monkeypatch):
    monkeypatch.setenv("MY_SETTING", str(process_group.rank))
    assert os.environ["MY_SETTING"] == str(process_group.rank)

def test_monkeypatch_is_undone(process_group):
    assert "MY_SETTING" not in os.environ

def test_raises(process_group):
    with pytest.raises(ZeroDivisionError):
        process_group.rank / 0
    assert add() == 2

@pytest.mark.xfail(raises=ZeroDivisionError)
def test_xfail(process_group):
    process_group.rank / 0

@pytest.mark.xfail
def test_xpass(process_group):
    assert add() == 2

@pytest.mark.skip(reason="by mark")
def test_skip_mark(process_group):
    raise AssertionError

@pytest.mark.skipif(sys.version_info > (3,), reason="by condition")
def test_skipif(process_group):
    raise AssertionError

def test_skip(process_group):
    pytest.skip("by call")

def test_subprocess_and_fork(process_group):
    import subprocess
    subprocess.run(["true"], check=True)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert add() == 2

def test_scopes(process_group, function_value, module_value, package_value, session_value):
    assert [function_value, module_value, session_value] == ["function", "module", "session"]

def test_scopes_again(process_group, function_value, module_value, package_value, session_value):
    assert add() == 2
"""
PASSED = [
    "test_sum[ranks=2]",
    "test_sum[ranks=3]",
    "test_identity",
    "test_parametrised[10-one]",
    "test_parametrised[10-two]",
    "test_parametrised[20-one]",
    "test_parametrised[20-two]",
    "test_through_another_fixture",
    "test_through_usefixtures",
    "TestInAClass::test_method",
    "TestInAClass::test_other_method",
    "test_tmp_path",
    "test_capfd",
    "test_output",
    "test_monkeypatch",
    "test_monkeypatch_is_undone",
    "test_raises",
    "test_subprocess_and_fork",
    "test_scopes",
    "test_scopes_again",
]
SKIPPED = {"test_skip_mark": "by mark", "test_skipif": "by condition", "test_skip": "by call"}
OTHER = """
def test_the_session_goes_on(process_group, session_value, package_value, module_value):
    assert add() == 2

def test_beside_them_is_an_ordinary_one():
    assert not dist.is_initialized()
"""
REUSE = """
KEPT = []

def note(process_group, name):
    pids = process_group.exchange(os.getpid())
    if process_group.rank == 0:
        with open("pids.jsonl", "a") as file:
            file.write(json.dumps([name, *pids]) + "\\n")

def test_first(process_group):
    note(process_group, "first")
    KEPT.append(process_group.torch_group)

def test_shared(process_group):
    note(process_group, "shared")
    assert KEPT[-1] is process_group.torch_group

@pytest.mark.distributed(isolation="group")
def test_group(process_group):
    note(process_group, "group")
    assert KEPT[-1] is not process_group.torch_group
    KEPT.append(process_group.torch_group)
    assert add() == 2

@pytest.mark.distributed(isolation="group")
def test_group_again(process_group):
    note(process_group, "group again")
    assert KEPT[-1] is not process_group.torch_group
    assert add() == 2

@pytest.mark.distributed(isolation="process")
def test_process(process_group, session_value):
    note(process_group, "process")
    assert add() == 2

@pytest.mark.distributed(isolation="process")
def test_process_again(process_group, session_value):
    note(process_group, "process again")
    assert not KEPT
    assert add() == 2

def test_after(process_group):
    note(process_group, "after")
    assert add() == 2
"""


def notes(folder: Path, rank: int) -> Counter[str]:
    return Counter((folder / f"notes-rank{rank}.txt").read_text().splitlines())


def test_features_of_pytest_work_on_every_rank(ranked: Ranked) -> None:
    ranked.write(FEATURES, conftest=CONFTEST)
    ranked.write(OTHER, name="test_other")
    run = ranked.run()
    told = run.told()
    assert run.code == 0, run.output
    outcomes = {
        **dict.fromkeys(PASSED, "passed"),
        **dict.fromkeys(SKIPPED, "skipped"),
        "test_xfail": "xfailed",
        "test_xpass": "xpassed",
        "test_the_session_goes_on": "passed",
        "test_beside_them_is_an_ordinary_one": "passed",
    }
    assert run.outcomes() == outcomes
    for name, reason in SKIPPED.items():
        assert reason in told[name].text
    assert "Captured stdout call [rank 0]\n[rank 0] hello from 0" in told["test_output"].sections
    assert "Captured stdout call [rank 1]\n[rank 1] hello from 1" in told["test_output"].sections

    everywhere = {f"ran {name.rpartition('::')[2]}" for name in PASSED}
    for rank in (0, 1):
        noted = notes(run.folder, rank)
        assert everywhere <= set(noted) | {"ran test_sum[ranks=3]"}
        for scope, times in (("function", 2), ("class", 1), ("module", 2), ("session", 1)):
            seen = (noted[f"{scope} set up"], noted[f"{scope} torn down"])
            assert seen == (times, times), f"{scope} fixture on rank {rank}"
    assert "ran test_sum[ranks=3]" in notes(run.folder, 2)


def test_ranks_are_kept_groups_and_processes_are_renewed_on_demand(ranked: Ranked) -> None:
    ranked.write(REUSE, conftest=CONFTEST)
    run = ranked.run()
    assert run.code == 0, run.output
    lines = (run.folder / "pids.jsonl").read_text().splitlines()
    pids = {name: tuple(ranks) for name, *ranks in map(json.loads, lines)}
    assert pids["first"] == pids["shared"] == pids["group"] == pids["group again"]
    assert pids["after"] == pids["first"], "the kept ranks wait while others run a test"
    fresh = [pids[name] for name in ("first", "process", "process again")]
    assert len({pid for ranks in fresh for pid in ranks}) == 6, "six processes, none used twice"
    for rank in (0, 1):
        noted = notes(run.folder, rank)
        assert (noted["session set up"], noted["session torn down"]) == (2, 2)


def test_a_failure_does_not_leave_wide_fixtures_without_their_end(ranked: Ranked) -> None:
    ranked.write(
        """
def test_fails(process_group, session_value):
    assert add() == 3

def test_next(process_group, session_value):
    assert add() == 2
""",
        conftest=CONFTEST,
    )
    run = ranked.run()
    assert run.outcomes() == {"test_fails": "failed", "test_next": "passed"}
    for rank in (0, 1):
        noted = notes(run.folder, rank)
        assert (noted["session set up"], noted["session torn down"]) == (2, 2)
