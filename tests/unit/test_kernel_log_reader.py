"""Kernel log lines in the forms in which people and kernels hand them over."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.facts import kernel_log
from pytest_gpucluster.facts.kernel_log import MAX_BYTES, parse, read_kernel_log, read_kmsg
from pytest_gpucluster.facts.model import KernelEvent, to_json

XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."


def only(*lines: str) -> KernelEvent:
    (event,) = parse(lines)
    return event


def write_log(root: Path, content: str | bytes) -> None:
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize(
    ("line", "timestamp"),
    [
        (XID_79, None),
        (f"[ 1843.308145] {XID_79}", "1843.308145"),
        (f"[Sun Dec  1 14:54:40 2024] {XID_79}", "Sun Dec  1 14:54:40 2024"),
        (f"Error: May 19 07:08:57 n1 kernel: [680111.6] {XID_79}", "May 19 07:08:57"),
        (f"2026-11-30T23:59:01,123456+00:00 {XID_79}", "2026-11-30T23:59:01,123456+00:00"),
        (f"3,1877,1843308145,-;{XID_79}", "1843.308145"),
        (f"4,1877,1843000012,c,caller=T99;{XID_79}", "1843.000012"),
    ],
)
def test_xid_in_every_kind_of_log(line: str, timestamp: str | None) -> None:
    event = only(line)
    assert (event.kind, event.code, event.bus_id) == ("xid", 79, "0000:3b:00.0")
    assert event.timestamp == timestamp
    assert event.text.endswith("GPU has fallen off the bus.")


@pytest.mark.parametrize(
    ("place", "code", "bus_id"),
    [
        ("(PCI:0000:10:1c): 63, pid=9, Row Remapper: marked", 63, "0000:10:1c.0"),
        ("(PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1", 149, "0019:01:00.0"),
        ("(PCI:0000:0F:00): 64, pid='<unknown>', name=<unknown>", 64, "0000:0f:00.0"),
        ("(PCI:0000:01:00 GPU-I:02): 43, pid=1", 43, "0000:01:00.0"),
        ("(0000:03:00): 31, Ch 00000008", 31, "0000:03:00.0"),
    ],
)
def test_xid_addresses(place: str, code: int, bus_id: str) -> None:
    event = only(f"NVRM: Xid {place}")
    assert (event.kind, event.code, event.bus_id) == ("xid", code, bus_id)


def test_switch_error_is_not_taken_for_an_xid() -> None:
    event = only("[ 77.5] nvidia-nvswitch3: SXid (PCI:0000:a5:00.0): 12028, Non-fatal, Link 32")
    assert (event.kind, event.code, event.bus_id) == ("sxid", 12028, "0000:a5:00.0")


def test_gpu_lost_without_xid_over_three_lines() -> None:
    event = only(
        "[ 10.000001] usb 1-1: new device",
        "[ 10.100001] NVRM: The NVIDIA GPU 0000:5e:00.0",
        "               NVRM: (PCI ID: 10de:2330) installed in this system has",
        "[ 10.100003] usb 1-1: gone",
        "               NVRM: fallen off the bus and is not responding to commands.",
    )
    assert (event.kind, event.code, event.bus_id) == ("off_bus", None, "0000:5e:00.0")
    assert (event.line, event.timestamp) == (2, "10.100001")
    assert "not responding" in event.text


def test_gpu_lost_in_one_record_of_the_kernel() -> None:
    event = only(
        r"3,5,10100001,-;NVRM: The NVIDIA GPU 0000:5e:00.0\x0aNVRM: (PCI ID: 10de:2330) installed"
        r"\x0aNVRM: in this system has fallen off the bus and is not responding to commands."
    )
    assert (event.kind, event.bus_id) == ("off_bus", "0000:5e:00.0")


def test_lost_gpu_is_not_blamed_on_one_named_long_before() -> None:
    lines = ["NVRM: The NVIDIA GPU 0000:5e:00.0 is fine", *["noise NVRM"] * 20]
    event = only(*lines, "NVRM: fallen off the bus")
    assert event.bus_id is None


def test_driver_echo_of_xid_79_is_an_event_of_its_own() -> None:
    events = parse([XID_79, "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."])
    assert [(event.kind, event.bus_id, event.line) for event in events] == [
        ("xid", "0000:3b:00.0", 1),
        ("off_bus", "0000:3b:00.0", 2),
    ]


@pytest.mark.parametrize(
    ("line", "kind", "bus_id"),
    [
        (
            "pcieport 0000:80:01.0: AER: Multiple Corrected error received: 0000:81:00.0",
            "aer",
            "0000:81:00.0",
        ),
        (
            "pcieport 0000:80:01.0: AER: Correctable error message received from 0000:81:00.0",
            "aer",
            "0000:81:00.0",
        ),
        ("pcieport 0000:80:01.0: AER: Corrected error received: id=0800", "aer", "0000:80:01.0"),
        (
            "nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
            "aer",
            "0000:81:00.0",
        ),
        (
            "mlx5_core 0000:9c:00.0: mlx5_pcie_event:301:(pid 7): Detected insufficient power on",
            "mlx5",
            "0000:9c:00.0",
        ),
        (
            "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 3, Cable error",
            "mlx5",
            None,
        ),
        ("Out of memory: Killed process 812 (python3) total-vm:1kB", "oom", None),
        ("Memory cgroup out of memory: Killed process 812 (python3)", "oom", None),
    ],
)
def test_other_events(line: str, kind: str, bus_id: str | None) -> None:
    event = only(f"[    5.000000] {line}")
    assert (event.kind, event.bus_id, event.code) == (kind, bus_id, None)


@pytest.mark.parametrize(
    "line",
    [
        "mlx5_core 0000:d2:00.0: ACCESS_REG(0x805) op_mod(0x1) failed, syndrome (0x305684)",
        "mlx5_core 0000:d2:00.0: firmware version: 28.39.1002",
        "NVRM: GPU at PCI:0000:0b:00: GPU-0f3c9d1e",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01",
        "NVRM: Xid (PCI:../../etc): 79",
        "NVRM: Xid (PCI:0000:3b:00): seventy-nine",
        "pcieport 0000:80:01.0: AER: enabled with IRQ 40",
        " SUBSYSTEM=pci",
        "",
    ],
)
def test_lines_that_are_no_events(line: str) -> None:
    assert parse([line]) == ()


def test_cause_at_the_end_of_a_line_is_kept() -> None:
    event = only("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, Ch 00000001 caused by previous Xid 149")
    assert event.code == 45
    assert event.text.endswith("previous Xid 149")


@given(st.lists(st.text() | st.sampled_from([XID_79, "NVRM: The NVIDIA GPU 0000:5e:00.0"])))
def test_any_text_is_survived_and_printable(lines: list[str]) -> None:
    events = parse(lines)
    assert sum(event.kind == "xid" for event in events) >= lines.count(XID_79)
    assert all(event.text.isprintable() for event in events)


def test_long_and_hostile_lines_cost_little() -> None:
    lines = [
        "NVRM: Xid (PCI:" + "0" * 2**20,
        "AER: " + "error " * 2**18,
        "NVRM " + "GPU at " * 2**17,
        f"{XID_79}\x1b[2J\x00" + "A" * 2**20,
    ]
    started = time.process_time()
    (event,) = parse(lines)
    assert time.process_time() - started < 0.5
    assert len(event.text) <= 400
    assert "\x1b" not in event.text


def test_live_log(tmp_path: Path) -> None:
    write_log(tmp_path, f"6,1,100,-;Linux version\n SUBSYSTEM=x\n3,2,2000001,-;{XID_79}\n")
    facts = read_kernel_log(tmp_path)
    assert facts.unreadable == ()
    assert facts.events is not None
    (event,) = facts.events
    assert (event.code, event.line, event.timestamp) == (79, 3, "2.000001")


def test_live_log_without_events_is_good_news(tmp_path: Path) -> None:
    write_log(tmp_path, "6,1,100,-;Linux version\n")
    assert read_kernel_log(tmp_path).events == ()


def test_binary_log(tmp_path: Path) -> None:
    write_log(tmp_path, os.urandom(2**18) + f"\n3,2,2000001,-;{XID_79}\n".encode())
    facts = read_kernel_log(tmp_path)
    assert facts.events is not None
    assert facts.events[-1].code == 79
    to_json(facts)


@pytest.mark.parametrize("kind", ["absent", "empty", "null", "directory"])
def test_no_log_is_not_an_empty_log(tmp_path: Path, kind: str) -> None:
    (tmp_path / "dev").mkdir()
    log = tmp_path / "dev/kmsg"
    if kind == "empty":
        log.touch()
    elif kind == "null":
        log.symlink_to("/dev/null")
    elif kind == "directory":
        log.mkdir()
    facts = read_kernel_log(tmp_path)
    assert facts.events is None
    (problem,) = facts.unreadable
    assert problem.subject == "kernel log"
    assert "/dev/kmsg" in problem.reason
    assert "root" in problem.reason


def test_kernel_buffer_is_read_where_its_device_may_not_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel_log, "read_kmsg", refuse)
    monkeypatch.setattr(kernel_log, "_klogctl", lambda: f"<3>[    7.5] {XID_79}\n".encode())
    facts = read_kernel_log()
    assert facts.unreadable == ()
    assert facts.events is not None
    assert [(event.code, event.timestamp) for event in facts.events] == [(79, "7.5")]
    monkeypatch.setattr(kernel_log, "_klogctl", lambda: b"")
    (problem,) = read_kernel_log().unreadable
    assert "Operation not permitted" in problem.reason


def test_only_the_newest_part_of_a_long_log_is_held(tmp_path: Path) -> None:
    line = b"6,1,100,-;" + b"x" * 1013 + b"\n"
    write_log(tmp_path, line * (MAX_BYTES // 1024 + 4096) + f"3,2,2,-;{XID_79}\n".encode())
    content = read_kmsg(tmp_path / "dev/kmsg")
    assert len(content) <= MAX_BYTES
    assert content.endswith(b"off the bus.\n")


def test_a_storm_does_not_bury_the_rare_event(tmp_path: Path) -> None:
    storm = "3,1,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid=1\n" * 5000
    write_log(tmp_path, f"3,2,2,-;{XID_79}\n{storm}")
    events = read_kernel_log(tmp_path).events
    assert events is not None
    assert len(events) == 201
    assert events[0].code == 79
    assert events[-1].line == 5001
