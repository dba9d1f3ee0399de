"""The report folder: complete or not there, and never taken for another run's."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpucluster.facts.evidence.saved_facts import load_facts
from pytest_gpucluster.report.files import append_line, write_atomically
from pytest_gpucluster.report.folder import (
    ReportError,
    append_measurement,
    prepare_folder,
    safe_name,
    write_report,
)
from pytest_gpucluster.verdict.validate import validate
from tests import made_up


@pytest.mark.parametrize("name", made_up.ALL)
def test_a_report_is_complete_and_valid(tmp_path: Path, name: str) -> None:
    verdict, facts = made_up.ALL[name]()
    prepare_folder(tmp_path / "report")
    written = write_report(tmp_path / "report", verdict, facts)
    assert written[-1].name == "verdict.json"
    assert validate(written[-1].read_bytes())["verdict"] == verdict.verdict
    on_disk = {path for path in (tmp_path / "report").rglob("*") if path.is_file()}
    assert on_disk == set(written)
    assert len([path for path in written if path.parent.name == "facts"]) == len(facts)


def test_facts_are_written_so_that_they_can_be_judged_again(tmp_path: Path) -> None:
    verdict, facts = made_up.healthy()
    write_report(tmp_path, verdict, facts)
    assert load_facts(tmp_path / "facts/node-003.json") == facts["node-003"]


def test_an_earlier_run_s_results_are_gone_before_the_run(tmp_path: Path) -> None:
    write_report(tmp_path, *made_up.healthy())
    append_measurement(tmp_path / "measurements.jsonl", made_up.busbw())
    prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["facts"]


def test_earlier_facts_stay_they_may_be_this_run_s_evidence(tmp_path: Path) -> None:
    write_report(tmp_path, *made_up.healthy())
    prepare_folder(tmp_path)
    assert load_facts(tmp_path / "facts/node-003.json").host.name == "node-003"


@pytest.mark.parametrize(
    "name",
    ["../../etc/cron.d/x", "/etc/passwd", "..", ".", "", ".hidden", "a/b", "a\\b", "x" * 5000,
     "n\x00", "n\n", "\udcff", "nöde", "con/../x"],
)  # fmt: skip
def test_a_node_s_name_stays_inside_the_folder(tmp_path: Path, name: str) -> None:
    verdict, facts = made_up.healthy()
    node = replace(facts["node-003"], host=replace(facts["node-003"].host, name=name))
    before = set(tmp_path.parent.iterdir())
    prepare_folder(tmp_path / "report")
    write_report(tmp_path / "report", verdict, {name: node})
    (saved,) = (tmp_path / "report/facts").iterdir()
    assert saved.suffix == ".json"
    assert not saved.name.startswith(".")
    assert set(tmp_path.iterdir()) == {tmp_path / "report"}
    assert set(tmp_path.parent.iterdir()) == before


def test_two_nodes_never_share_a_file() -> None:
    names = ["a/b", "a_b", "a\\b", "A/b", "", ".", "node", "x" * 200, "x" * 201]
    assert len({safe_name(name) for name in names}) == len(names)
    assert safe_name("node-003.rack-1") == "node-003.rack-1"


@pytest.mark.parametrize(
    ("blocked", "reason"), [("report", "it is a file"), ("report/below", "Not a directory")]
)
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, blocked: str, reason: str) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(ReportError) as caught:
        prepare_folder(tmp_path / blocked)
    assert f"{tmp_path / blocked} cannot be used: {reason}." in str(caught.value)
    assert "--gpucluster-report=DIR" in str(caught.value)
    assert (tmp_path / "report").read_text() == "mine"


def test_a_report_that_cannot_be_written_leaves_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ReportError, match="incomplete"):
        write_report(tmp_path, *made_up.healthy())
    assert not (tmp_path / "verdict.json").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    sizes = (10, 2_000_000)
    write_atomically(target, "0" * sizes[0])
    stop = threading.Event()
    seen = set()

    def read() -> None:
        while not stop.is_set():
            seen.add(len(target.read_bytes()))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        write_atomically(target, "0" * sizes[turn % 2])
    stop.set()
    reader.join()
    assert seen <= set(sizes)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    write_atomically(target, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(target, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert target.read_text() == "old"


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "out").symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "out", "new")
    assert (tmp_path / "victim").read_text() == "mine"


def test_measurements_are_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    for value in (1.0, 2.0):
        append_measurement(path, made_up.busbw(value=value, derivation="two\nlines"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["value"] for line in lines] == [1.0, 2.0]


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    writers = [
        threading.Thread(target=lambda n=n: [append_line(path, str(n) * 5000) for _ in range(50)])
        for n in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = path.read_text().splitlines()
    assert len(lines) == 200
    assert all(len(set(line)) == 1 and len(line) == 5000 for line in lines)


def test_a_measurement_that_cannot_be_kept_does_not_end_the_run(tmp_path: Path) -> None:
    append_measurement(tmp_path / "no/such/folder.jsonl", made_up.busbw())
