"""pytest's options and other plugins' mean for distributed tests what they mean for others."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from tests.integration.ranked import Ranked

MIXED = """
def test_one(process_group):
    print("from one")
    assert add() == 2

def test_two(process_group):
    print(f"seen by {process_group.rank}")
    assert process_group.rank == 0

def test_three(process_group):
    assert process_group.rank == 1

def test_four(process_group):
    assert add() == 2
"""


def test_x_junitxml_and_durations_then_last_failed(ranked: Ranked) -> None:
    ranked.write(MIXED)
    run = ranked.run("-x", "--junitxml=out.xml", "--durations=2", "-vv")
    assert run.code == 1
    assert run.outcomes() == {"test_one": "passed", "test_two": "failed"}
    assert "stopping after 1 failures" in run.output
    assert re.search(r"\ds (setup|call) +test_it\.py::test_(one|two)", run.output)
    cases = ET.parse(run.folder / "out.xml").getroot().findall(".//testcase")
    assert [case.get("name") for case in cases] == ["test_one", "test_two"]
    failure = cases[1].find("failure")
    assert failure is not None
    assert (failure.get("message") or "").startswith("rank 1: AssertionError: assert 1 == 0")
    assert cases[0].find("failure") is None

    again = ranked.run("--lf", "--maxfail=1")
    assert again.outcomes() == {"test_two": "failed"}
    assert "run-last-failure" in again.output


def test_k_selects_and_maxfail_stops(ranked: Ranked) -> None:
    ranked.write(MIXED)
    run = ranked.run("-k", "not one", "--maxfail=2")
    assert run.outcomes() == {"test_two": "failed", "test_three": "failed"}
    assert "stopping after 2 failures" in run.output


def test_the_limit_of_pytest_timeout_ends_hanging_ranks(ranked: Ranked) -> None:
    ranked.write(
        """
@pytest.mark.timeout(2)
def test_hangs(process_group):
    if process_group.rank == 1:
        time.sleep(1000)
    add()

def test_after(process_group):
    assert add() == 2
"""
    )
    run = ranked.run("--timeout=19")
    told = run.told()
    assert run.outcomes() == {"test_hangs": "failed", "test_after": "passed"}, run.output
    assert told["test_hangs"].suspects == "rank 1"
    assert "no answer within 2." in told["test_hangs"].text
    assert "rank 0 waits in all_reduce" in told["test_hangs"].text


def test_the_number_of_ranks_is_an_option_and_more_are_not_invented(ranked: Ranked) -> None:
    ranked.write(
        """
def test_all(process_group):
    assert add() == 3

@pytest.mark.distributed(world_size=[2, 4])
def test_sizes(process_group):
    assert add() == process_group.world_size

@pytest.mark.distributed(backend="nccl")
def test_nccl(process_group):
    raise AssertionError
"""
    )
    run = ranked.run("--gpucluster-ranks=3")
    assert run.outcomes() == {
        "test_all": "passed",
        "test_sizes[ranks=2]": "passed",
        "test_sizes[ranks=4]": "skipped",
        "test_nccl": "skipped",
    }
    told = run.told()
    assert "world_size=4, but 3 CPU ranks" in told["test_sizes[ranks=4]"].text
    assert "NCCL" in told["test_nccl"].text


def test_a_rank_that_collects_something_else_fails_the_test(ranked: Ranked) -> None:
    ranked.write(
        """
def test_same(process_group):
    assert add() == 2

def test_differs(process_group, number):
    assert add() == 2
""",
        conftest="""
def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        worker = getattr(metafunc.config, "workerinput", {}).get("workerid")
        metafunc.parametrize("number", [2 if worker == "rank1" else 1])
""",
    )
    run = ranked.run()
    assert run.outcomes() == {"test_same": "passed", "test_differs[1]": "error in setup"}
    told = run.told()["test_differs[1]"]
    assert told.suspects == "rank 1"
    assert "rank 1: did not collect this test" in told.text


def test_ranks_that_cannot_collect_say_where_their_log_is(ranked: Ranked) -> None:
    ranked.write(
        "def test_never_runs(process_group): pass\n",
        conftest="""
def pytest_collection_modifyitems(config):
    if hasattr(config, "workerinput"):
        raise RuntimeError("no license on this rank")
""",
    )
    run = ranked.run()
    told = run.told()["test_never_runs"]
    assert told.outcome == "error in setup"
    assert "rank 0" in told.text
    log = re.search(r"See (\S+rank0\.log)", told.text)
    assert log is not None
    assert "no license on this rank" in (run.folder / log[1]).read_text()


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("2", "unexpected positional arguments"),
        ("size=2", "unknown argument size"),
        ("world_size=0", "world_size=0 is neither"),
        ("world_size=[]", "world_size=[] is neither"),
        ("world_size='every'", "world_size='every' is neither"),
        ("world_size=True", "world_size=True is neither"),
        ("backend='mpi'", "backend='mpi' is unknown"),
        ("isolation='none'", "isolation='none' is unknown"),
        ("timeout=0", "timeout=0 is not a positive number"),
        ("timeout='1m'", "timeout='1m' is not a positive number"),
    ],
)
@pytest.mark.parametrize("arguments", ["process_group", ""], ids=["distributed", "plain"])
def test_wrong_arguments_of_the_mark_are_usage_errors(
    pytester: pytest.Pytester, mark: str, says: str, arguments: str
) -> None:
    pytester.makepyfile(
        f"import pytest\n\n@pytest.mark.distributed({mark})\ndef test_it({arguments}): pass\n"
    )
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    told = str(result.stderr)
    assert "::test_it: @pytest.mark.distributed: " in told
    assert says in told
    assert "world_size is a number, 'all' or a list" in told
