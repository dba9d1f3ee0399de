"""Messages between the leader and its ranks: JSON, or nothing."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from pytest_gpucluster.ranks.channel import ChannelError, receive, send

Ends = tuple[Connection, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = multiprocessing.Pipe()
    yield one, other
    one.close()
    other.close()


def test_a_message_arrives_as_it_was_sent(ends: Ends) -> None:
    send(ends[0], "run", nodeid="test_ä.py::test[\u2028]", generation=3, group={"world_size": 2})
    assert receive(ends[1]) == {
        "kind": "run",
        "nodeid": "test_ä.py::test[\u2028]",
        "generation": 3,
        "group": {"world_size": 2},
    }


def test_messages_arrive_one_by_one_in_order(ends: Ends) -> None:
    for number in range(3):
        send(ends[0], "report", number=number)
    assert [receive(ends[1])["number"] for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes"])
def test_what_is_not_json_is_refused_by_the_sender(ends: Ends, value: object) -> None:
    with pytest.raises(TypeError):
        send(ends[0], "report", value=value)
    assert not ends[1].poll(), "nothing half-sent"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"[]", b'"run"', b"3", b"{}", b'{"kind": 3}', b'{"kind": null}'],
)
def test_what_is_no_message_is_refused_by_the_receiver(ends: Ends, data: bytes) -> None:
    ends[0].send_bytes(data)
    with pytest.raises(ChannelError, match=r"not JSON|not a message"):
        receive(ends[1])


class Opened:
    """Something that must never be unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a pickle was opened",)


def test_a_pickle_is_not_opened(ends: Ends) -> None:
    ends[0].send_bytes(pickle.dumps(Opened()))
    with pytest.raises(ChannelError, match="not JSON"):
        receive(ends[1])


def test_an_end_that_is_gone_is_an_end_of_file(ends: Ends) -> None:
    ends[0].close()
    with pytest.raises(EOFError):
        receive(ends[1])
