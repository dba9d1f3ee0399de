"""Ranks killed at random moments: no outcome is ever wrong, and nothing is left behind.

A thread of the test on the victim kills its own process after a random delay. A test whose
victim died before it had reported is failed and names that rank, and only that one; one whose
victim lived on long enough has passed. ``RANDOM_KILLS=200`` makes it 200 of them.
"""

from __future__ import annotations

import json
import os
import random

from tests.integration.ranked import Ranked

SEED = 20261201
KILLS = int(os.environ.get("RANDOM_KILLS", "50"))
LONGEST_DELAY_S = 0.012

SOURCE = """
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
KILLS = json.load(open("kills.json"))

def kill_later(delay, number):
    # Not threading.Timer: its thread would have to be scheduled before it can wait.
    def kill():
        time.sleep(delay)
        os.kill(os.getpid(), number)
    threading.Thread(target=kill, daemon=True).start()

@pytest.mark.parametrize("number", range(len(KILLS)))
@pytest.mark.distributed(world_size=2, timeout=15)
def test_kill(process_group, number):
    victim, delay, kind = KILLS[number]
    if process_group.rank == victim:
        kill_later(delay, SIGNALS[kind])
    for _ in range(8):
        assert add() == 2

@pytest.mark.distributed(world_size=2)
def test_after_all(process_group):
    assert add() == 2
"""


def test_random_kills_give_no_wrong_outcome(ranked: Ranked) -> None:
    source = random.Random(SEED)
    kills = [
        (source.randrange(2), source.uniform(0, LONGEST_DELAY_S), source.randrange(3))
        for _ in range(KILLS)
    ]
    (ranked.pytester.path / "kills.json").write_text(json.dumps(kills))
    ranked.write(SOURCE)
    before = {path.name for path in ranked.pytester.path.iterdir()}
    told = ranked.run("-p", "no:cacheprovider").told()
    assert told.pop("test_after_all").outcome == "passed"
    assert len(told) == KILLS
    wrong = []
    failed = 0
    for number, (victim, _, _) in enumerate(kills):
        got = told[f"test_kill[{number}]"]
        if got.outcome == "passed":
            continue
        failed += 1
        # The victim of the test before may have lived on into this one.
        earlier = kills[number - 1][0] if number else victim
        rightly = {f"rank {victim}", f"rank {earlier}"}
        rightly |= {"ranks 0,1"} if victim != earlier else set()
        if got.suspects not in rightly or "died" not in got.text:
            wrong.append(f"{number}, rank {victim}: {got.outcome}, {got.suspects}, {got.text}")
    assert not wrong, "\n\n".join(wrong)
    assert KILLS / 4 < failed < KILLS, "some must die in time, and some too late"
    written = {path.name for path in ranked.pytester.path.iterdir()} - before
    assert written <= {"gpucluster-report", "events.jsonl", "__pycache__", "stdout", "stderr"} | {
        name for name in written if name.startswith("runpytest")
    }
