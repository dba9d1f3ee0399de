"""What is noted of collectives: the same on ranks that agree, another text where they do not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, sys, warnings
from pathlib import Path
import torch, torch.distributed as dist
from pytest_gpucluster.ranks.observe import Observer
from pytest_gpucluster.ranks.progress import Progress
warnings.simplefilter("ignore")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
observer = Observer(Progress(Path(sys.argv[1])))
t, out = torch.ones(2, 3), torch.empty(2, 3)
notes = []
for call in sys.argv[2:]:
    observer.begin(True)
    exec(call)
    group = observer.signatures().get("0", {"calls": []})
    notes.append({"calls": group["calls"], "digest": observer.digest().get("0")})
observer.begin(False)
dist.all_reduce(t)
notes.append(observer.digest())
print(json.dumps(notes))
"""


def notes(tmp_path: Path, *calls: str) -> list[Any]:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "page"), *calls]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: list[Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    calls = (
        "dist.all_reduce(t)",
        "dist.all_reduce(t.view(-1))",
        "dist.all_reduce(t, op=dist.ReduceOp.MAX)",
        "dist.all_reduce(t.double())",
        "dist.broadcast(t, 0)",
        "dist.all_gather([out], t)",
        "dist.all_gather_into_tensor(out, t)",
        "dist.reduce_scatter_tensor(out, t)",
        "dist.all_to_all_single(out, t)",
        "dist.gather(t, [out], dst=0)",
        "dist.scatter(out, [t], src=0)",
        "dist.barrier()",
        "dist.all_reduce(t); dist.all_reduce(t)",
        "try: dist.broadcast(t, 5)\nexcept Exception: pass",
    )
    found = notes(tmp_path_factory.mktemp("observe"), *calls)
    return {**dict(zip(calls, found, strict=False)), "off": found[-1]}


def test_a_call_is_noted_with_its_shape_type_and_operation(noted: dict[str, Any]) -> None:
    texts = {call: [text for _, text in note["calls"]] for call, note in noted.items() if note}
    assert texts["dist.all_reduce(t)"] == ["all_reduce [2, 3] float32 sum"]
    assert texts["dist.all_reduce(t, op=dist.ReduceOp.MAX)"] == ["all_reduce [2, 3] float32 max"]
    assert texts["dist.broadcast(t, 0)"] == ["broadcast [2, 3] float32 root 0"]
    assert texts["dist.barrier()"] == ["barrier"]
    for call, text in texts.items():
        if not call.startswith("try"):
            assert text, f"{call} was not noted"


def test_only_what_must_agree_makes_the_key(noted: dict[str, Any]) -> None:
    keys = {call: note["calls"][0][0] for call, note in noted.items() if note and note["calls"]}
    assert keys["dist.all_reduce(t)"] == keys["dist.all_reduce(t.view(-1))"]
    others = [key for call, key in keys.items() if "view" not in call and ";" not in call]
    assert len(set(others)) == len(others)


def test_the_digest_tells_sequences_apart(noted: dict[str, Any]) -> None:
    once = noted["dist.all_reduce(t)"]["digest"]
    twice = noted["dist.all_reduce(t); dist.all_reduce(t)"]["digest"]
    assert once[:2] == [[0], 1]
    assert twice[:2] == [[0], 2]
    assert once[2] != twice[2]
    assert once == noted["dist.all_reduce(t.view(-1))"]["digest"]


def test_nothing_is_noted_of_a_call_that_raised_or_while_off(noted: dict[str, Any]) -> None:
    failed = next(note for call, note in noted.items() if call.startswith("try"))
    assert failed["calls"] == []
    assert noted["off"] == {}
