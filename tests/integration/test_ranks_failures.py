"""Whatever goes wrong on a rank: the test fails, the right rank is named, the next is green."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import pytest

from pytest_gpucluster.ranks.naming import rank_list
from tests.integration.ranked import Ranked

DEADLINE_S = 1.5
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
    """A test's body, run with `rank`, and what must be said of it.

    Rank 1 is at fault. In ``says`` and ``suspects`` the words `{others}`, `{wait}` and `{all}`
    stand for the remaining ranks, "waits" or "wait", and all ranks.
    """

    body: str
    says: tuple[str, ...] = ()
    outcome: str = "failed"
    suspects: str = "rank 1"
    within: float = 3.0
    deadline: float = 20.0
    fixture: str = "process_group"

    def said(self, text: str, world: int) -> str:
        others = [rank for rank in range(world) if rank != 1]
        return text.format(
            others=rank_list(others),
            wait="waits" if len(others) == 1 else "wait",
            all=rank_list(range(world)),
            # Between two ranks that differ nobody can tell which is wrong.
            odd="rank 1" if world > 2 else "ranks 0,1",
        )


def hang(body: str, *says: str, **more: object) -> Case:
    return Case(
        body,
        ("no answer within", *says),
        within=DEADLINE_S + 3.0,
        deadline=DEADLINE_S,
        **more,  # type: ignore[arg-type]
    )


RAISES = {
    "assertion_while_peers_wait": Case(
        "assert rank != 1\nadd()", ("rank 1: assert 1 != 1", "{others}: ", "(a consequence)")
    ),
    "error_on_all_but_one": Case(
        "add()\nif rank != 1: raise ValueError('bad batch')",
        ("{others}: ValueError: bad batch",),
        suspects="{others}",
    ),
    "assertion_on_all": Case("assert 2 + 2 == 5", ("{all}: ",), suspects="{all}"),
    "fixture_setup": Case("add()", ("no data set here",), "error in setup", fixture="broken_setup"),
    "fixture_teardown": Case(
        "add()", ("left a file",), "error in teardown", fixture="broken_teardown"
    ),
    "skip_on_one": Case(
        "if rank == 1: pytest.skip('not here')",
        ("the ranks disagree", "rank 1 skipped (not here)"),
        suspects="",
    ),
    "xfail_on_one": Case(
        "if rank == 1: pytest.xfail('not yet')", ("the ranks disagree",), suspects=""
    ),
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
        ("rank 1: died (signal SIGKILL)", "no collective had been called", "(a consequence)"),
    ),
    "sigkill_in_the_middle": Case(
        "for _ in range(5): add()\nprint('nearly there')\nif rank == 1: os.kill(os.getpid(), 9)\n"
        "add()",
        (
            "rank 1: died (signal SIGKILL)",
            "last collective: number 5, all_reduce [1] float32 sum",
        ),
    ),
    "segv_after_the_last_collective": Case(
        "add()\nif rank == 1: os.kill(os.getpid(), signal.SIGSEGV)",
        ("rank 1: died (signal SIGSEGV)", "in test_segv_after_the_last_collective"),
    ),
    "death_in_teardown": Case(
        "add()", ("died (signal SIGKILL)",), "error in teardown", fixture="dies_in_teardown"
    ),
    "failure_then_death_in_teardown": Case(
        "assert rank != 1", ("rank 1: assert 1 != 1",), fixture="dies_in_teardown"
    ),
}
HANGS = {
    "sigstop": hang(
        "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\nadd()",
        "{others} {wait} in all_reduce at test_it.py:7 (number 1: all_reduce [1] float32 sum)",
        "rank 1 stopped (SIGSTOP)",
    ),
    "infinite_loop": hang(
        "def spin():\n    while True: pass\nif rank == 1: spin()\nadd()",
        "{others} {wait} in all_reduce",
        "rank 1 is in spin at test_it.py:",
        "uses the CPU",
    ),
    "never_entering": hang(
        "def load_batch():\n    time.sleep(1000)\nif rank == 1: load_batch()\nadd()",
        "{others} {wait} in all_reduce",
        "rank 1 is in load_batch at test_it.py:",
        "sleeping",
    ),
    "one_collective_too_few": hang(
        "if rank != 1: add()", "{others} {wait} in all_reduce", "rank 1 finished", suspects="{odd}"
    ),
    "one_collective_too_many": hang(
        "add()\nif rank == 1: add()",
        "rank 1 waits in all_reduce at test_it.py:7 (number 2: all_reduce",
        suspects="{odd}",
    ),
    "skip_while_peers_wait": hang(
        "if rank == 1: pytest.skip('no')\nadd()", "rank 1 finished", suspects="{odd}"
    ),
    "waiting_in_teardown": hang(
        "add()",
        "rank 0 waits in barrier",
        outcome="error in teardown",
        fixture="waits_in_teardown",
        suspects="",
    ),
    "wrong_operation": hang(
        "tensor = torch.ones(4)\n"
        "dist.broadcast(tensor, 0) if rank == 1 else dist.all_reduce(tensor)",
        "Number 1 is",
        "{others}: all_reduce [4] float32 sum",
        "rank 1: broadcast [4] float32 root 0",
        suspects="{odd}",
    ),
}
# What is wrong may pass on every rank, abort one, or leave all waiting.
DIFFERS = {
    "wrong_shape": Case(
        "dist.all_reduce(torch.ones(4 if rank == 1 else 4000))",
        ("rank 1: all_reduce [4] float32 sum", "{others}: all_reduce [4000] float32 sum"),
        suspects="{odd}",
        within=DEADLINE_S + 3.0,
        deadline=DEADLINE_S,
    ),
    "wrong_dtype": Case(
        "dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank == 1 else torch.float32))",
        ("rank 1: all_reduce [4] int32 sum", "{others}: all_reduce [4] float32 sum"),
        suspects="{odd}",
    ),
    "wrong_reduction": Case(
        "dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)",
        ("rank 1: all_reduce [4] float32 max", "{others}: all_reduce [4] float32 sum"),
        suspects="{odd}",
    ),
    "one_send_too_many": Case(
        "add()\nif rank == 1: dist.broadcast(torch.ones(4), 1, async_op=True)",
        ("Number 2 is", "rank 1: broadcast [4] float32 root 1", "{others}: nothing more"),
        suspects="{odd}",
    ),
}
ODD = {
    "much_output": Case(
        "for _ in range(100): print(1_000_000 * 'x')\nassert rank != 1",
        ("rank 1: assert 1 != 1",),
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


def source(cases: dict[str, Case], world: int) -> str:
    """Each case followed by a test that must pass, in a chain over the same ranks."""
    text = FIXTURES + f"pytestmark = pytest.mark.distributed(world_size={world})\n"
    text += "def test_ranks_are_started(process_group): pass\n"
    for name, case in cases.items():
        fixtures = sorted({"process_group", case.fixture})
        text += textwrap.dedent(
            f"""
            @pytest.mark.distributed(world_size={world}, timeout={case.deadline})
            def test_{name}({", ".join(fixtures)}):
                rank = process_group.rank
            """
        )
        text += textwrap.indent(case.body, "    ") + "\n"
        text += f"def test_after_{name}(process_group):\n    assert add() == {world}\n"
    return text


def mismatches(ranked: Ranked, cases: dict[str, Case], world: int) -> list[str]:
    ranked.write(source(cases, world))
    run = ranked.run()
    told = run.told()
    found = [] if run.code == 1 else [f"exit code {run.code}\n{run.output}"]
    for name, case in cases.items():
        if f"test_{name}" not in told:
            found.append(f"{name}: did not run")
            continue
        got = told[f"test_{name}"]
        facts = f"{name}: {got.outcome}, {got.suspects}, {got.took:.1f} s, {got.text[:2000]}"
        suspects = case.said(case.suspects, world)
        if got.outcome != case.outcome or (suspects and got.suspects != suspects):
            found.append(facts)
        expected = [case.said(words, world) for words in case.says]
        found += [f"{facts}\nlacks {words!r}" for words in expected if words not in got.text]
        if got.took > case.within:
            found.append(f"{facts}\ntook longer than {case.within} s")
        after = told[f"test_after_{name}"]
        if after.outcome != "passed":
            found.append(f"after {name}: {after.outcome}, {after.text}")
    return found


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    "cases",
    [RAISES, {**DIES, **ODD}, {**HANGS, **DIFFERS}],
    ids=["raises", "dies", "hangs"],
)
def test_the_rank_at_fault_is_named_and_the_next_test_is_green(
    ranked: Ranked, cases: dict[str, Case], world: int
) -> None:
    found = mismatches(ranked, cases, world)
    assert not found, "\n\n".join(found)
