"""Gathering evidence with commands that print, hang, fail and flood."""

from __future__ import annotations

import json
import os
import tarfile
import time
from pathlib import Path

import pytest

from pytest_gpucluster.facts.evidence.saved_facts import load_facts
from pytest_gpucluster.facts.gather import Gathered, GatherError, folder, gather
from pytest_gpucluster.facts.gather.commands import Command, commands
from pytest_gpucluster.facts.gather.dump import infiniband
from pytest_gpucluster.facts.gather.redact import pseudonym

FAKES = {
    "prints": "echo first; echo second >&2",
    "fails": "echo half an answer; echo 'ibpanic: it broke' >&2; exit 3",
    "dies": "echo words; kill -SEGV $$",
    "silent": "exit 0",
    "hangs": "echo before; echo $$ > $PIDS/hangs; sleep 600 & echo $! > $PIDS/child; wait",
    "deaf": "trap '' TERM INT; echo $$ > $PIDS/deaf; while :; do sleep 1; done",
    "leaves": "sleep 600 >/dev/null 2>&1 & echo $! > $PIDS/left; echo done",
    "floods": "exec head -c 1073741824 /dev/zero",
    "endless": "while :; do printf 'a line of a log\\n'; done",
    "log": "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done",
    "speaks": "echo NAME=$LC_ALL",
    "secretive": "echo HF_TOKEN=hf_abcdefghijklmnopqrstuvwx; uname -n",
}


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of fake commands; returns the folder where they leave their process ids."""
    folder, pids = tmp_path / "bin", tmp_path / "pids"
    folder.mkdir()
    pids.mkdir()
    for name, script in FAKES.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PIDS", str(pids))
    return pids


def command(name: str, **values: object) -> Command:
    return Command(f"{name}.txt", (name,), "ib", **{"deadline_s": 20.0, **values})  # type: ignore[arg-type]


def one(tmp_path: Path, name: str, **values: object) -> tuple[Gathered, bytes]:
    destination = tmp_path / "evidence"
    (result,) = gather(destination, table=[command(name, **values)])
    path = destination / f"{name}.txt"
    assert path.exists() == result.written
    return result, path.read_bytes() if path.exists() else b""


def is_running(path: Path) -> bool:
    """Whether the process whose id is in ``path`` is there and no zombie."""
    try:
        status = Path(f"/proc/{path.read_text().strip()}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def is_gone(path: Path) -> bool:
    deadline = time.monotonic() + 5
    while is_running(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_output_and_errors_are_kept(tmp_path: Path, fakes: Path) -> None:
    result, content = one(tmp_path, "prints")
    assert (result.status, result.detail, result.kind) == ("gathered", "", "ib")
    assert content == b"first\nsecond\n"
    assert result.bytes == len(content)


def test_failure_keeps_what_was_printed(tmp_path: Path, fakes: Path) -> None:
    result, content = one(tmp_path, "fails")
    assert result.status == "failed"
    assert result.detail == "exit status 3: ibpanic: it broke"
    assert b"half an answer" in content


def test_death_by_signal(tmp_path: Path, fakes: Path) -> None:
    result, _ = one(tmp_path, "dies")
    assert (result.status, result.detail) == ("failed", "signal 11: words")


def test_silence_is_no_file(tmp_path: Path, fakes: Path) -> None:
    result, _ = one(tmp_path, "silent")
    assert (result.status, result.written) == ("empty", False)


def test_journal_without_entries_is_silence(tmp_path: Path, fakes: Path) -> None:
    script = fakes.parent / "bin" / "silent"
    script.write_text("#!/bin/sh\necho No journal files were found.\necho '-- No entries --'\n")
    result, _ = one(tmp_path, "silent")
    assert (result.status, result.written) == ("empty", False)


def test_missing_tool_and_file(tmp_path: Path, fakes: Path) -> None:
    result, _ = one(tmp_path, "no-such-tool")
    assert (result.status, result.detail) == ("missing", "no-such-tool: not found on PATH")
    result, _ = one(tmp_path / "b", "prints", needs="/no/such/log")
    assert (result.status, result.detail) == ("missing", "/no/such/log does not exist")


def test_command_that_cannot_be_started(tmp_path: Path, fakes: Path) -> None:
    (fakes.parent / "bin" / "prints").write_bytes(b"\x7fELF nonsense")
    result, _ = one(tmp_path, "prints")
    assert result.status == "failed"
    assert "prints" in result.detail


@pytest.mark.parametrize("name", ["hangs", "deaf"])
def test_a_command_that_hangs_is_killed_with_its_children(
    tmp_path: Path, fakes: Path, name: str
) -> None:
    started = time.monotonic()
    result, content = one(tmp_path, name, deadline_s=1.0)
    assert time.monotonic() - started < 10
    assert (result.status, result.detail) == ("incomplete", "did not end in 1 s")
    assert content == (b"before\n" if name == "hangs" else b"")
    assert all(is_gone(path) for path in fakes.iterdir())
    assert any(fakes.iterdir())


def test_nothing_is_left_of_a_command_that_ended(tmp_path: Path, fakes: Path) -> None:
    result, _ = one(tmp_path, "leaves")
    assert result.status == "gathered"
    assert is_gone(fakes / "left")


def test_slow_commands_run_side_by_side(tmp_path: Path, fakes: Path) -> None:
    table = [Command(f"{i}.txt", ("hangs",), deadline_s=1.5) for i in range(4)]
    started = time.monotonic()
    results = gather(tmp_path / "e", table=[*table, command("prints")])
    assert time.monotonic() - started < 5
    assert [r.status for r in results] == ["incomplete"] * 4 + ["gathered"]


@pytest.mark.parametrize("name", ["floods", "endless"])
def test_flood_is_stopped_at_its_limit(tmp_path: Path, fakes: Path, name: str) -> None:
    result, content = one(tmp_path, name, max_bytes=100_000)
    assert result.status == "incomplete"
    assert result.detail == "only the first 100000 bytes were kept"
    assert len(content) == 100_000
    assert result.seconds < 10


def test_endless_log_is_stopped_as_well(tmp_path: Path, fakes: Path) -> None:
    result, content = one(tmp_path, "endless", max_bytes=50_000, keep="tail")
    assert result.status == "incomplete"
    assert len(content) == 50_000


def test_of_a_long_log_the_end_is_kept(tmp_path: Path, fakes: Path) -> None:
    result, content = one(tmp_path, "log", max_bytes=4000, keep="tail")
    assert (result.status, result.detail) == ("incomplete", "only the last 4000 bytes were kept")
    assert content.endswith(b"line 2999\n")
    assert len(content) == 4000


def test_commands_speak_plain_english(tmp_path: Path, fakes: Path) -> None:
    assert one(tmp_path, "speaks")[1] == b"NAME=C\n"


def test_index_lists_everything(tmp_path: Path, fakes: Path) -> None:
    table = [command("prints"), command("no-such-tool"), command("fails")]
    results = gather(tmp_path / "e", table=table)
    index = json.loads((tmp_path / "e" / "index.json").read_text())
    assert index["format"] == "pytest-gpucluster evidence"
    assert index["schema_version"] == 1
    assert index["node"] == os.uname().nodename
    assert [(f["file"], f["status"]) for f in index["files"]] == [
        ("prints.txt", "gathered"),
        ("no-such-tool.txt", "missing"),
        ("fails.txt", "failed"),
    ]
    assert [f["bytes"] for f in index["files"]] == [r.bytes for r in results]
    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == [
        "fails.txt", "index.json", "prints.txt",
    ]  # fmt: skip


def test_evidence_is_for_its_owner_only(tmp_path: Path, fakes: Path) -> None:
    gather(tmp_path / "e", table=[command("prints")])
    gather(tmp_path / "e.tar.gz", table=[command("prints")])
    assert (tmp_path / "e").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "e" / "prints.txt", tmp_path / "e.tar.gz"):
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz"])
def test_archive(tmp_path: Path, fakes: Path, suffix: str) -> None:
    gather(tmp_path / f"node{suffix}", table=[command("prints"), command("silent")])
    with tarfile.open(tmp_path / f"node{suffix}") as archive:
        members = archive.getmembers()
        assert all(member.isfile() and member.uid == 0 for member in members)
        folders = {member.name.partition("/")[0] for member in members}
        assert len(folders) == 1
        assert {member.name.partition("/")[2] for member in members} == {
            "index.json", "prints.txt",
        }  # fmt: skip
        content = archive.extractfile(f"{folders.pop()}/prints.txt")
        assert content is not None
        assert content.read() == b"first\nsecond\n"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_secrets_are_left_out_and_counted(tmp_path: Path, fakes: Path) -> None:
    result, content = one(tmp_path, "secretive")
    assert content.startswith(b"HF_TOKEN=[left out]\n")
    assert result.left_out == 1


def test_anonymous(tmp_path: Path, fakes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rack7-gpu042"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", name, "6", "#1", "x")))
    script = fakes.parent / "bin" / "secretive"
    script.write_text(f"#!/bin/sh\necho {name} kernel: up; echo {name}.example.com\nexit 1\n")
    table = [command("secretive")]
    (result,) = gather(tmp_path / "e", anonymous=True, table=table)
    gather(tmp_path / "e.tgz", anonymous=True, table=table)
    hidden = pseudonym(name)
    assert (tmp_path / "e" / "secretive.txt").read_text() == f"{hidden} kernel: up\n{hidden}\n"
    assert result.detail == f"exit status 1: {hidden}"
    index = (tmp_path / "e" / "index.json").read_text()
    assert json.loads(index)["node"] == hidden
    assert name not in index
    with tarfile.open(tmp_path / "e.tgz") as archive:
        assert all(name not in member.name for member in archive)
    gather(tmp_path / "named", table=table)
    assert name in (tmp_path / "named" / "secretive.txt").read_text()


def test_nothing_is_overwritten(tmp_path: Path, fakes: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    archive = tmp_path / "a.tar.gz"
    archive.write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    for destination in (full, archive, link, full / "mine.txt"):
        with pytest.raises(GatherError, match="exists"):
            gather(destination, table=[command("prints")])
    assert (full / "mine.txt").read_text() == "mine"
    assert archive.read_text() == "mine"
    gather(tmp_path / "empty", table=[command("prints")])
    assert (tmp_path / "empty" / "index.json").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path, fakes: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GatherError, match="could not be written"):
        gather(tmp_path / "file" / "e", table=[command("prints")])


def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, fakes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(content: bytes) -> tuple[bytes, int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "without_secrets", interrupt)
    place = tmp_path / "place"
    with pytest.raises(KeyboardInterrupt):
        gather(place / "e", table=[command("hangs"), command("prints")])
    assert list(place.iterdir()) == []
    assert all(is_gone(path) for path in fakes.iterdir())


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = {entry.argv[0] for entry in commands() if "/" not in entry.argv[0]}
    assert {"nvidia-smi", "dmesg", "journalctl", "ibstat", "dcgmi", "lspci"} <= tools
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in tools:
        (folder / tool).write_text(f'#!/bin/sh\necho {tool} "$@"\n')
        (folder / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_SECRET_TOKEN", "hidden")
    monkeypatch.setenv("HOME_SWEET", "home")
    results = {result.file: result for result in gather(tmp_path / "e")}
    assert len(results) == len(commands())
    assert all(entry.deadline_s <= 180 for entry in commands())
    text = (tmp_path / "e" / "topo-p2p-read.txt").read_text()
    assert text == "nvidia-smi topo -p2p r\n"
    environment = (tmp_path / "e" / "environment.txt").read_text()
    assert "NCCL_DEBUG=INFO\n" in environment
    assert "hidden" not in environment
    assert "HOME_SWEET" not in environment
    assert results["facts.json"].status == "gathered"
    assert load_facts(tmp_path / "e" / "facts.json").host.name == os.uname().nodename
    assert str(os.getpid()) not in results["facts.json"].command


def test_sysfs_dump(tmp_path: Path) -> None:
    real = tmp_path / "sys/devices/pci0000:00/0000:0c:00.0/infiniband/mlx5_0"
    port = real / "ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    (port / "counters/link_downed").write_text("255\n")
    (real / "fw_ver").write_text("28.39.1002\n")
    base = tmp_path / "sys/class/infiniband"
    base.mkdir(parents=True)
    (base / "mlx5_0").symlink_to(real)
    (base / "mlx5_8").mkdir()
    name = "/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_0"
    assert list(infiniband(tmp_path)) == [
        f"{name}/fw_ver: 28.39.1002",
        f"{name}/ports/1/state: 4: ACTIVE",
        f"{name}/ports/1/rate: 200 Gb/sec (4X HDR)",
        f"{name}/ports/1/counters/link_downed: 255",
        "cat: /sys/class/infiniband/mlx5_8/ports: No such file or directory",
    ]
