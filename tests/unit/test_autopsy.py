"""Which ranks kept the others waiting, and the story that is told of a hang."""

from __future__ import annotations

import pytest

from pytest_gpucluster.ranks.autopsy import narrate, peer_was_lost, suspects
from pytest_gpucluster.ranks.naming import rank_list
from pytest_gpucluster.ranks.results import RankResult, RankState
from tests.unit.stack_texts import IN_ALL_REDUCE, IN_OWN_CODE


def result(rank: int, stack: str | None = None, state: RankState = "hung") -> RankResult:
    return RankResult(rank, state, stack=stack)


# Who is to blame


def test_the_rank_that_is_elsewhere_is_the_suspect() -> None:
    ranks = [result(0, IN_ALL_REDUCE), result(1, IN_OWN_CODE), result(2, IN_ALL_REDUCE)]
    assert suspects(ranks) == [1]


def test_nobody_is_the_suspect_when_all_wait_or_nobody_does() -> None:
    assert suspects([result(0, IN_ALL_REDUCE), result(1, IN_ALL_REDUCE)]) == []
    assert suspects([result(0, IN_OWN_CODE), result(1, IN_OWN_CODE)]) == []


def test_a_rank_that_gave_no_stack_is_a_suspect() -> None:
    assert suspects([result(0, IN_ALL_REDUCE), result(1, None)]) == [1]


def test_a_stopped_rank_is_a_suspect_even_inside_a_collective() -> None:
    stopped = result(1, IN_ALL_REDUCE)
    stopped.ended = "stopped (SIGSTOP)"
    assert suspects([result(0, IN_ALL_REDUCE), stopped]) == [1]


def test_a_rank_that_finished_while_the_rest_wait_for_it_is_the_suspect() -> None:
    waiting = [result(0, IN_ALL_REDUCE), result(2, IN_ALL_REDUCE)]
    assert suspects([*waiting, result(1, state="done")]) == [1]
    assert suspects([result(0, IN_OWN_CODE), result(1, state="done")]) == [0]


def test_a_rank_that_waits_for_many_that_finished_called_one_too_many() -> None:
    done = [result(0, state="done"), result(2, state="done")]
    assert suspects([*done, result(1, IN_ALL_REDUCE)]) == [1]


def test_between_one_that_waits_and_one_that_finished_nobody_can_tell() -> None:
    assert suspects([result(0, IN_ALL_REDUCE), result(1, state="done")]) == [0, 1]


def test_the_story_joins_ranks_that_are_at_the_same_place() -> None:
    dead = RankResult(4, "died", ended="signal SIGKILL")
    stopped = result(5, IN_ALL_REDUCE)
    stopped.ended = "stopped (SIGSTOP)"
    ranks = [
        result(0, IN_ALL_REDUCE),
        result(1, IN_OWN_CODE),
        result(2, IN_ALL_REDUCE),
        result(3, state="done"),
        dead,
        stopped,
        result(6, None),
    ]
    assert narrate(ranks) == (
        "ranks 0,2 wait in all_reduce at train.py:30; rank 1 is in load_batch at data.py:40; "
        "rank 3 finished; rank 4 died (signal SIGKILL); rank 5 stopped (SIGSTOP); "
        "rank 6 gave no stack"
    )


def test_the_story_says_which_collective_and_how_busy() -> None:
    waiting = result(0, IN_ALL_REDUCE)
    waiting.told = {
        "flight": {
            "entries": [
                {
                    "process_group": ["0", "default_pg"],
                    "collective_seq_id": 5,
                    "profiling_name": "gloo:all_reduce",
                    "input_sizes": [[1024]],
                    "input_dtypes": ["Float"],
                    "retired": False,
                }
            ]
        }
    }
    spinning = result(1, IN_OWN_CODE)
    spinning.activity = "uses the CPU"
    assert narrate([waiting, spinning]) == (
        "rank 0 waits in all_reduce at train.py:30 (number 5 of its group: all_reduce [1024] "
        "Float); "
        "rank 1 is in load_batch at data.py:40, uses the CPU"
    )


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0,1"),
        ([3, 0, 1], "ranks 0,1,3"),
        ([7, 6, 5, 4, 3, 2, 1], "ranks 1-7"),
        ([1, 2, 3], "ranks 1-3"),
    ],
)
def test_lists_of_ranks(ranks: list[int], text: str) -> None:
    assert rank_list(ranks) == text


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]",
        "RuntimeError: [gloo/pair.cc:525] Read error [10.0.0.1]: Connection reset by peer",
        "DistNetworkError: Connection refused",
        "RuntimeError: [gloo/buffer.cc] Timed out waiting 1800000ms for recv operation to complete",
        "DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network",
        "RuntimeError: Gloo connectFullMesh failed with [../pair.cc:144] no error",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_messages_that_only_say_that_a_peer_went_away(text: str) -> None:
    assert peer_was_lost(text)


@pytest.mark.parametrize(
    "text",
    [
        "assert 3 == 4",
        "ValueError: the connection of layers 3 and 4 is wrong",
        "torch.OutOfMemoryError: CUDA out of memory",
        "DistBackendError: NCCL error: unhandled cuda error",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ],
)
def test_messages_that_say_what_went_wrong(text: str) -> None:
    assert not peer_was_lost(text)
