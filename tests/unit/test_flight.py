"""torch's flight recorder: read on a rank, joined over ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from pytest_gpucluster.ranks import flight


def entry(number: int, operation: str = "all_reduce", **more: Any) -> dict[str, Any]:
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "profiling_name": f"gloo:{operation}",
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "retired": True,
        **more,
    }


def record(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"entries": list(entries)}


def test_the_oldest_unfinished_collective_is_what_a_rank_waits_for() -> None:
    waiting = flight.pending(record(entry(1), entry(2, retired=False), entry(3, retired=False)))
    assert waiting is not None
    assert waiting.describe() == "number 2 of its group: all_reduce [1024] Float"
    assert flight.pending(record(entry(1))) is None
    assert flight.pending({"unavailable": "no recorder"}) is None


def test_records_of_other_layouts_and_point_to_point_are_left_out() -> None:
    odd = {"entries": [entry(1, is_p2p=True), {}, 7, entry("x"), entry(2)]}  # type: ignore[arg-type]
    assert [collective.number for collective in flight.parse(odd)] == [2]


def test_ranks_that_recorded_different_operations_clash() -> None:
    found = flight.clash(
        {
            0: record(entry(4), entry(5)),
            1: record(entry(4), entry(5, "broadcast")),
            2: record(entry(4), entry(5)),
        }
    )
    assert found is not None
    assert (found.number, found.odd) == (5, (1,))
    assert "rank 1: broadcast [1024] Float" in found.describe()


def test_sizes_clash_only_where_they_must_be_equal() -> None:
    def two(operation: str) -> dict[int, dict[str, Any]]:
        return {0: record(entry(1, operation)), 1: record(entry(1, operation, input_sizes=[[7]]))}

    assert flight.clash(two("all_reduce")) is not None
    assert flight.clash(two("all_to_all")) is None


def test_what_torch_records_is_read_from_the_time_asked_for() -> None:
    program = """
import json, time, torch, torch.distributed as dist
from pytest_gpucluster.ranks import flight
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
between = time.time_ns()
dist.broadcast(torch.ones(5), 0)
said = [[c.operation, c.number, c.sizes, c.done] for c in flight.parse(flight.dump(0))]
later = [c.operation for c in flight.parse(flight.dump(between))]
print(json.dumps([said, later]))
"""
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    said, later = json.loads(output.splitlines()[-1])
    assert said == [["all_reduce", 1, "[3] Float", True], ["broadcast", 2, "[5] Float", True]]
    assert later == ["broadcast"]
