"""Other plugins and pytest's interactive options, over tests on ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.integration.ranked import Ranked

LIBRARY = """\
def on_rank(rank):
    if rank == 0:
        return "zero"
    if rank == 1:
        return "one"
    return "never"
"""


def lines_covered(ranked: Ranked) -> set[int]:
    command = [sys.executable, "-m", "coverage", "json", "-q", "-o", "out.json"]
    subprocess.run(command, cwd=ranked.pytester.path, check=True)
    files = json.loads((ranked.pytester.path / "out.json").read_text())["files"]
    return set(files["library.py"]["executed_lines"])


@pytest.mark.parametrize(("isolation", "workers"), [("shared", "2"), ("process", "0")])
def test_coverage_counts_what_every_rank_ran(ranked: Ranked, isolation: str, workers: str) -> None:
    ranked.pytester.makepyfile(library=LIBRARY)
    ranked.write(
        f"""
import library

@pytest.mark.distributed(world_size=2, isolation="{isolation}")
def test_it(process_group):
    library.on_rank(process_group.rank)
"""
    )
    run = ranked.run("--cov=library", "-n", workers, "--cov-report=term-missing")
    assert run.outcomes() == {"test_it": "passed"}
    assert lines_covered(ranked) == {1, 2, 3, 4, 5}
    assert re.search(r"library\.py +6 +1 +83%", run.output), run.output
    left = [path.name for path in ranked.pytester.path.glob(".coverage.*")]
    assert not left


def test_a_failing_test_is_run_again_on_ranks(ranked: Ranked) -> None:
    ranked.write(
        """
@pytest.mark.flaky(reruns=2)
def test_second_time_lucky(process_group, request, pytestconfig):
    marker = pytestconfig.rootpath / f"tried-{process_group.rank}"
    tried = marker.exists()
    marker.touch()
    assert tried or process_group.rank == 0
    assert add() == 2

def test_never_lucky(process_group):
    assert process_group.rank == 0

def test_after(process_group):
    assert add() == 2
"""
    )
    run = ranked.run("--reruns=1", "-v")
    assert run.told()["test_never_lucky"].suspects == "rank 1"
    assert "2 passed" in run.output
    assert "1 failed" in run.output
    assert "2 rerun" in run.output
    assert len(re.findall(r"test_second_time_lucky RERUN", run.output)) == 1


def test_reruns_can_be_limited_to_some_errors(ranked: Ranked) -> None:
    ranked.write("def test_it(process_group):\n    raise ValueError('bad batch')\n")
    assert "1 failed, 1 rerun" in ranked.run("--reruns=1", "--only-rerun=ValueError").output
    assert "= 1 failed in " in ranked.run("--reruns=1", "--rerun-except=bad batch").output


def test_with_s_output_comes_as_it_is_printed_with_its_rank(ranked: Ranked) -> None:
    ranked.write(
        """
def test_it(process_group):
    print(f"hello from {process_group.rank}")
    process_group.barrier()
    if process_group.rank == 0:
        print("half", end=" ")
        print("a line")
        os.system("echo from a child process")
"""
    )
    run = ranked.run("-s")
    assert run.outcomes() == {"test_it": "passed"}
    shown = [line for line in run.output.splitlines() if line.startswith("[rank ")]
    assert "[rank 0] hello from 0" in shown
    assert "[rank 1] hello from 1" in shown
    assert "[rank 0] half a line" in shown
    assert "[rank 0] from a child process" in shown
    assert not any("test session starts" in line for line in shown)


def debugged(ranked: Ranked, typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*map(str, ranked.pytester._getpytestargs()), *arguments]
    with pytest.MonkeyPatch.context() as patch:
        for key, value in ranked.environment().items():
            patch.setenv(key, value)
        return subprocess.run(
            command,
            cwd=ranked.pytester.path,
            input=typed,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


DEBUGGED = """
def test_it(process_group):
    secret = 6000 + process_group.rank
    assert process_group.rank != 1

def test_after(process_group):
    assert add() == 2
"""


def test_pdb_opens_on_the_chosen_rank_after_a_failure(ranked: Ranked) -> None:
    ranked.write(DEBUGGED)
    run = debugged(ranked, "p secret + 77\nc\n", "--pdb", "--gpucluster-debug-rank=1")
    assert "6078" in run.stdout
    assert "(Pdb)" in run.stdout
    assert "1 failed, 1 passed" in run.stdout


def test_leaving_the_debugger_ends_the_session(ranked: Ranked) -> None:
    ranked.write(DEBUGGED)
    run = debugged(ranked, "q\n", "--pdb", "--gpucluster-debug-rank=1")
    assert "1 failed" in run.stdout
    assert "the debugger was left" in run.stdout
    assert "passed" not in run.stdout


def test_trace_stops_at_the_start_of_a_test(ranked: Ranked) -> None:
    ranked.write("def test_it(process_group):\n    value = 41\n    assert add() == 2\n")
    run = debugged(ranked, "n\nn\np value + 1\nc\n", "--trace", "--gpucluster-debug-rank=0")
    assert "42" in run.stdout
    assert "1 passed" in run.stdout


def test_a_breakpoint_needs_the_rank_to_be_chosen_and_no_option_else(ranked: Ranked) -> None:
    ranked.write(
        "def test_it(process_group):\n"
        "    value = 6\n"
        "    if process_group.rank == 1:\n"
        "        breakpoint()\n"
        "    assert add() == 2\n"
    )
    run = debugged(ranked, "p value * 7\nc\n", "--gpucluster-debug-rank=1")
    assert "42" in run.stdout
    assert "1 passed" in run.stdout


def test_a_debugger_without_a_chosen_rank_is_refused(ranked: Ranked) -> None:
    ranked.write(DEBUGGED)
    run = ranked.run("--pdb")
    assert run.code == 4
    assert "--gpucluster-debug-rank=0" in run.output


ACCEPTANCE = ("--gpucluster", "--gpucluster-rehearse", "--gpucluster-level=inventory")


def test_what_passes_only_when_run_again_is_a_warning(ranked: Ranked) -> None:
    ranked.write(
        """
@pytest.mark.distributed(world_size=2)
def test_lucky(process_group, pytestconfig):
    marker = pytestconfig.rootpath / f"tried-{process_group.rank}"
    tried = marker.exists()
    marker.touch()
    assert tried or process_group.rank == 0
"""
    )
    run = ranked.run(*ACCEPTANCE, "--reruns=1", "test_it.py", GPUCLUSTER_EVIDENCE="")
    assert run.code == 0, run.output
    verdict = json.loads((run.folder / "gpucluster-report" / "verdict.json").read_text())
    found = verdict["nodes"][0]["findings"]
    assert [(f["severity"], f["code"], f["component"]) for f in found] == [
        ("warn", "check.flaky", "rank 1")
    ]


def test_a_built_in_check_is_not_forgiven_when_it_passes_the_second_time(ranked: Ranked) -> None:
    ranked.pytester.makepyfile(
        once="""
import pytest

calls = []

@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    calls.append(pyfuncitem.name)
    if calls.count("test_python") == 1 and pyfuncitem.name == "test_python":
        raise OSError("once")
    return (yield)
"""
    )
    check = "gpucluster/test_software.py::test_python"
    run = ranked.run(*ACCEPTANCE, "--reruns=1", "-p", "once", GPUCLUSTER_EVIDENCE="")
    assert "1 rerun" in run.output
    assert run.code == 8, run.output
    verdict = json.loads((run.folder / "gpucluster-report" / "verdict.json").read_text())
    gaps = [entry for entry in verdict["nodes"][0]["unverified"] if entry["check"] == check]
    assert "OSError: once" in gaps[0]["reason"]
