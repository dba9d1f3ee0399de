"""Whatever goes wrong on a rank: the test fails, the right rank is named, the next is green."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import pytest

from tests.integration.ranked import Ranked

DEADLINE_S = 2.0
FIXTURES = """
@pytest.fixture
def broken_setup(process_group):
    if process_group.rank == 1:
        raise LookupError("no data set here")

@pytest.fixture
def broken_teardown(process_group):
    yield
    if process_group.rank == 1:
        raise LookupError("left a file")

@pytest.fixture
def dies_in_teardown(process_group):
    yield
    if process_group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@pytest.fixture
def waits_in_teardown(process_group):
    yield
    if process_group.rank == 0:
        dist.barrier()

class ReprRaises(Exception):
    def __repr__(self):
        raise RuntimeError("repr")
    __str__ = __repr__

class Unpicklable(Exception):
    def __init__(self, code):
        super().__init__("fixed text")
        self.handle = threading.Lock()
"""


@dataclass(frozen=True)
class Case:
    """A test's body, run with `rank`, and what must be said of it."""

    body: str
    says: tuple[str, ...] = ()
    outcome: str = "failed"
    suspects: str = "rank 1"
    world: int = 2
    within: float = 4.0  # well under the deadline of 20 s
    deadline: float = 20.0
    fixture: str = "process_group"


def hang(body: str, *says: str, suspects: str = "rank 1", **more: object) -> Case:
    return Case(
        body,
        ("no answer within 2.", *says),
        suspects=suspects,
        within=DEADLINE_S + 3.0,
        deadline=DEADLINE_S,
        **more,  # type: ignore[arg-type]
    )


RAISES = {
    "assertion_while_peers_wait": Case(
        "assert rank == 0\nadd()",
        ("rank 1: assert 1 == 0", "rank 0: still waited", "(a consequence)"),
    ),
    "error_on_three_of_four": Case(
        "add()\nif rank: raise ValueError('bad batch')",
        ("ranks 1-3: ValueError: bad batch",),
        suspects="ranks 1-3",
        world=4,
    ),
    "assertion_on_all": Case("assert 2 + 2 == 5", ("ranks 0,1: ",), suspects="ranks 0,1"),
    "fixture_setup": Case("add()", ("no data set here",), "error in setup", fixture="broken_setup"),
    "fixture_teardown": Case(
        "add()", ("left a file",), "error in teardown", fixture="broken_teardown"
    ),
    "skip_on_one": Case(
        "if rank == 1: pytest.skip('not here')",
        ("the ranks disagree", "rank 1 skipped (not here)"),
    ),
    "xfail_on_one": Case("if rank == 1: pytest.xfail('not yet')", ("the ranks disagree",)),
    "sys_exit": Case("if rank == 1: sys.exit(3)\nadd()", ("SystemExit: 3",)),
    "sys_exit_0": Case("if rank == 1: sys.exit(0)", ("SystemExit: 0",)),
    "unpicklable": Case("if rank == 1: raise Unpicklable(7)\nadd()", ("fixed text",)),
    "repr_raises": Case("if rank == 1: raise ReprRaises()\nadd()", ("ReprRaises",)),
    "endless_message": Case(
        "if rank == 1: raise ValueError('begin' + 10_000_000 * '.')",
        ("ValueError: begin", "characters left out"),
    ),
}
DIES = {
    "os_exit_0": Case("if rank == 1: os._exit(0)\nadd()", ("died (exit code 0)",)),
    "pytest_exit": Case("if rank == 1: pytest.exit('enough')\nadd()", ("died (exit code",)),
    "sigkill": Case(
        "if rank == 1: os.kill(os.getpid(), 9)\nadd()",
        ("rank 1: died (signal SIGKILL)", "(a consequence)"),
    ),
    "sigkill_in_the_middle": Case(
        "for _ in range(5): add()\nif rank == 2: os.kill(os.getpid(), 9)\nadd()",
        ("rank 2: died (signal SIGKILL)",),
        suspects="rank 2",
        world=3,
    ),
    "segv_after_the_last_collective": Case(
        "add()\nif rank == 1: os.kill(os.getpid(), signal.SIGSEGV)",
        ("rank 1: died (signal SIGSEGV)",),
    ),
    "death_in_teardown": Case("add()", ("died (signal SIGKILL)",), fixture="dies_in_teardown"),
    "failure_then_death_in_teardown": Case(
        "assert rank == 0", ("rank 1: assert 1 == 0",), fixture="dies_in_teardown"
    ),
}
HANGS = {
    "sigstop": hang(
        "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\nadd()",
        "rank 0 wait in all_reduce at test_it.py:",
        "rank 1 stopped (SIGSTOP)",
    ),
    "sigstop_of_the_first": hang(
        "if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\nadd()",
        "rank 0 stopped (SIGSTOP)",
        "rank 1 wait in all_reduce at test_it.py:",
        suspects="rank 0",
    ),
    "infinite_loop": hang(
        "def spin():\n    while True: pass\nif rank == 1: spin()\nadd()",
        "rank 0 wait in all_reduce at test_it.py:",
        "rank 1 in spin at test_it.py:",
    ),
    "never_entering": hang(
        "def load_batch():\n    time.sleep(1000)\nif rank == 2: load_batch()\nadd()",
        "ranks 0,1,3 wait in all_reduce at test_it.py:",
        "rank 2 in load_batch at test_it.py:",
        suspects="rank 2",
        world=4,
    ),
    "one_collective_too_few": hang(
        "if rank == 0: add()", "rank 0 wait in all_reduce", "rank 1 finished"
    ),
    "skip_while_peers_wait": hang(
        "if rank == 1: pytest.skip('no')\nadd()", "rank 0 wait in all_reduce", "rank 1 finished"
    ),
    "waiting_in_teardown": hang("add()", "rank 0 wait in barrier", fixture="waits_in_teardown"),
}
ODD = {
    "wrong_shape": Case(
        "dist.all_reduce(torch.ones(4 if rank == 1 else 4000))",
        suspects="",
        within=DEADLINE_S + 3.0,
        deadline=DEADLINE_S,
    ),
    "much_output": Case(
        "for _ in range(100): print(1_000_000 * 'x')\nassert rank == 0",
        ("rank 1: assert 1 == 0",),
        within=15.0,
    ),
    "closed_stdout": Case(
        "add()\nif rank == 1: sys.stdout.close()",
        ("rank 1: ValueError: I/O operation on closed file",),
    ),
    "fork_that_comes_back": Case(
        "add()\nif rank == 1: os.fork()", ("rank 1: a process that this test", "os._exit()")
    ),
    "fork_that_raises": Case(
        "if rank == 1 and os.fork() == 0: raise ValueError\nadd()",
        ("rank 1: a process that this test",),
    ),
}


def source(cases: dict[str, Case]) -> str:
    """Each case followed by a test that must pass, in a chain over the same ranks."""
    text = FIXTURES + "def test_ranks_are_started(process_group): pass\n"
    for name, case in cases.items():
        body = textwrap.indent(case.body, "    ")
        fixtures = sorted({"process_group", case.fixture})
        text += textwrap.dedent(
            f"""
            @pytest.mark.distributed(world_size={case.world}, timeout={case.deadline})
            def test_{name}({", ".join(fixtures)}):
                rank = process_group.rank
            """
        )
        text += body + "\n"
        text += textwrap.dedent(
            f"""
            @pytest.mark.distributed(world_size={case.world})
            def test_after_{name}(process_group):
                assert add() == {case.world}
            """
        )
    return text


def mismatches(ranked: Ranked, cases: dict[str, Case]) -> list[str]:
    ranked.write(source(cases))
    run = ranked.run()
    told = run.told()
    found = [] if run.code == 1 else [f"exit code {run.code}\n{run.output}"]
    for name, case in cases.items():
        if f"test_{name}" not in told:
            found.append(f"{name}: did not run")
            continue
        got = told[f"test_{name}"]
        facts = f"{name}: {got.outcome}, {got.suspects}, {got.took:.1f} s, {got.text[:2000]}"
        if got.outcome != case.outcome or (case.suspects and got.suspects != case.suspects):
            found.append(facts)
        found += [f"{facts}\nlacks {words!r}" for words in case.says if words not in got.text]
        if got.took > case.within:
            found.append(f"{facts}\ntook longer than {case.within} s")
        after = told[f"test_after_{name}"]
        if after.outcome != "passed":
            found.append(f"after {name}: {after.outcome}, {after.text}")
    return found


@pytest.mark.parametrize("cases", [RAISES, {**DIES, **ODD}, HANGS], ids=["raises", "dies", "hangs"])
def test_the_rank_at_fault_is_named_and_the_next_test_is_green(
    ranked: Ranked, cases: dict[str, Case]
) -> None:
    found = mismatches(ranked, cases)
    assert not found, "\n\n".join(found)
