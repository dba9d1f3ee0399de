"""Kernel logs in the forms in which people hand them over."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.facts.evidence.document import Document
from pytest_gpucluster.facts.evidence.kernel_log_events import AdapterEvent, Xid
from pytest_gpucluster.facts.evidence.kernel_log_text import KernelLog, read, recognises, summary
from pytest_gpucluster.facts.kernel_log import parse
from pytest_gpucluster.facts.model import from_json, to_json

XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."
LOG = f"""[    0.000000] Linux version 6.8.0
[   11.250000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build
[  310.000001] {XID_79}
[  310.000002] NVRM: Xid (PCI:0000:5e:00): 149, pid=12, name=ray::W, NETIR_LINK_EVT Fatal XC0 i0 \
Link 07 (0x02a 0x0 0x1 0x0 0x0 0x4)
[  311.000001] nvidia-nvswitch3: SXid (PCI:0000:a5:00.0): 20034, Fatal, Link 32 LTSSM Fault Up
[  312.000001] mlx5_core 0000:9c:00.0: Port module event[error]: module 1, Cable error, High Temp\
erature
[  313.000001] NVRM: The NVIDIA GPU 0000:d8:00.0
               NVRM: (PCI ID: 10de:2330) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[  314.000001] Out of memory: Killed process 812 (python3) total-vm:1kB
"""


def log(text: str) -> KernelLog:
    return read(Document("dmesg.txt", tuple(text.split("\n"))))


def xid(line: str) -> Xid:
    (event,) = log(line).xids
    return event


def adapter(line: str) -> AdapterEvent:
    (event,) = log(line).adapters
    return event


@pytest.mark.parametrize(
    ("front", "timestamp", "host"),
    [
        ("", None, None),
        ("[ 1843.308145] ", "1843.308145", None),
        ("[Sun Dec  1 14:54:40 2024] gpu-17 kernel: ", "Sun Dec  1 14:54:40 2024", "gpu-17"),
        ("Error: May 19 07:08:57 gpu-17 kernel: [68.5] ", "May 19 07:08:57", "gpu-17"),
        ("2026-11-30T23:59:01,123456+00:00 ", "2026-11-30T23:59:01,123456+00:00", None),
        ("2026-11-30T23:59:01+0000 gpu-17 kernel: ", "2026-11-30T23:59:01+0000", "gpu-17"),
        ("3,1877,1843308145,-;", "1843.308145", None),
        ("<3>[    7.500000] ", "7.500000", None),
        ("gpu-17: [ 1843.308145] ", "1843.308145", "gpu-17"),
        ("kern  :err   : [ 1843.308145] ", "1843.308145", None),
        ("2026-11-30T23:59:01.5Z stderr F ", "2026-11-30T23:59:01.5Z", None),
        ('2026-11-30 23:59:01,gpu-17,kernel,"', "2026-11-30 23:59:01", None),
        ("> > ", None, None),
    ],
)
def test_prefixes(front: str, timestamp: str | None, host: str | None) -> None:
    event = xid(front + XID_79)
    assert (event.code, event.bus_id, event.line) == (79, "0000:3b:00.0", 1)
    assert (event.timestamp, event.host) == (timestamp, host)
    assert recognises(Document("x", (front + XID_79,)))


@pytest.mark.parametrize(
    ("place", "pci", "bus_id"),
    [
        ("(PCI:0000:10:1c)", "0000:10:1c", "0000:10:1c.0"),
        ("(PCI:0019:01:00)", "0019:01:00", "0019:01:00.0"),
        ("(PCI:0000:0F:00.0)", "0000:0F:00.0", "0000:0f:00.0"),
        ("(PCI:00000000:0f:00)", "00000000:0f:00", "0000:0f:00.0"),
        ("(0000:03:00)", "0000:03:00", "0000:03:00.0"),
        ("(0f:00)", "0f:00", "0000:0f:00.0"),
        ("(PCI:0000:01:00 GPU-I:02)", "0000:01:00", "0000:01:00.0"),
    ],
)
def test_addresses(place: str, pci: str, bus_id: str) -> None:
    event = xid(f"NVRM: Xid {place}: 48, pid=7, DBE")
    assert (event.pci, event.bus_id, event.code) == (pci, bus_id, 48)


@pytest.mark.parametrize(
    ("fields", "pid", "process", "text"),
    [
        ("pid=12, name=python3, Ch 08", 12, "python3", "Ch 08"),
        ("pid='<unknown>', name=<unknown>, Ch 08", None, None, "Ch 08"),
        ("pid=12, Ch 08", 12, None, "Ch 08"),
        ("pid=12, name=ray::Worker, Ch 08", 12, "ray::Worker", "Ch 08"),
        ("pid=12, name=nvc:[driver], Ch 08", 12, "nvc:[driver]", "Ch 08"),
        ("pid=12, name=KMS thread, Ch 08", 12, "KMS thread", "Ch 08"),
        ("Ch 08", None, None, "Ch 08"),
    ],
)
def test_processes(fields: str, pid: int | None, process: str | None, text: str) -> None:
    event = xid(f"NVRM: Xid (PCI:0000:01:00): 43, {fields}")
    assert (event.pid, event.process, event.text) == (pid, process, text)


@pytest.mark.parametrize(
    ("text", "severity", "unit", "link"),
    [
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x1 0x2)", "nonfatal", "RLW_RXPIPE", 13),
        ("149, pid=1, name=a, NETIR Fatal XC0 i0 Link -1 (0x1 0x2)", "fatal", "NETIR", -1),
        ("144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x1 0x2)", "nonfatal", "SAW_MVB", 0),
        ("150, mse-watchdog Fatal XC0 i0 Link 02 (0x1 0x2)", "fatal", None, 2),
    ],
)
def test_nvlink_errors_say_how_bad_they_are(
    text: str, severity: str, unit: str | None, link: int
) -> None:
    event = xid(f"NVRM: Xid (PCI:0018:01:00): {text}")
    assert (event.severity, event.unit, event.link) == (severity, unit, link)
    assert event.registers == ("0x1", "0x2")


def test_link_glued_to_its_registers() -> None:
    event = xid(
        "NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error "
        "detected on link 9(0x0, 0x10000, 0x0, 0x0, 0x0, 0x0, 0x0)"
    )
    assert (event.link, event.severity, len(event.registers)) == (9, "fatal", 7)
    assert event.registers[1] == "0x10000"


def test_a_number_in_parentheses_is_no_register_without_a_link() -> None:
    assert xid("NVRM: Xid (PCI:0000:0f:00): 64, Row Remapper Error: (0x2ee) - x").registers == ()


def test_cause_at_the_end_of_the_line() -> None:
    record = log("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=a, Ch 1 caused by previous Xid 149")
    assert (record.xids[0].code, record.xids[0].cause, record.cut) == (45, 149, None)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("changed from 0x0 (None) to 0x2 (OS Reboot)", "OS Reboot"),
        ("changed from 0x0 (None) to 0x1 (GPU Reset Required)", "GPU Reset Required"),
        ("changed from None to Node Reboot Required", "Node Reboot Required"),
    ],
)
def test_recovery_action(text: str, action: str) -> None:
    assert xid(f"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action {text}").recovery_action == (
        action
    )


def test_gsp_timeout() -> None:
    event = xid(
        "NVRM: Xid (PCI:0000:97:00): 119, pid=5, name=kit, Timeout after 45s of waiting for RPC "
        "response from GPU6 GSP! Expected function 76 (GSP_RM_CONTROL) sequence 3 (0x2 0x8)."
    )
    assert (event.timeout_s, event.function, event.function_number) == (45, "GSP_RM_CONTROL", 76)


def test_switch_error_of_three_lines() -> None:
    record = log(
        "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 12028, Data {0x1, 0x2}\n"
        "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress PRIV error\n"
        "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 12028, Severity 0 Engine instance 32 Sub-engine"
        " instance 00"
    )
    assert record.xids == ()
    assert [event.severity for event in record.sxids] == [None, "nonfatal", None]
    assert record.sxids[1].link == 32
    assert {event.switch for event in record.sxids} == {"nvidia-nvswitch2"}
    facts = summary(record)
    assert (facts["sxids"], facts["sxid_lines"], facts["pci"]) == ([12028], 3, "0000:c4:00.0")


@pytest.mark.parametrize(
    "text",
    [
        (
            "[ 9.1] NVRM: The NVIDIA GPU 0000:5e:00.0\n"
            "       NVRM: (PCI ID: 10de:2330) installed in this system has\n"
            "       NVRM: fallen off the bus and is not responding to commands."
        ),
        (
            "[ 9.1] NVRM: The NVIDIA GPU 0000:5e:00.0 (PCI ID: 10de:2330)\n"
            "       has fallen off the bus and is not responding to commands."
        ),
        (
            "NVRM: The NVIDIA GPU 0000:5e:00.0 (PCI ID: 10de:2330) installed in this system has "
            "fallen off the bus and is not responding to commands."
        ),
        (
            "3,5,9100000,-;NVRM: The NVIDIA GPU 0000:5e:00.0\\x0aNVRM: (PCI ID: 10de:2330) has"
            "\\x0aNVRM: this system has fallen off the bus and is not responding to commands."
        ),
        (
            "[ 9.1] NVRM: The NVIDIA GPU 0000:5e:00.0\n[ 9.1] usb 1-1: gone\n"
            "       NVRM: (PCI ID: 10de:2330) has\n[ 9.1] usb 1-2: gone\n"
            "       NVRM: fallen off the bus and is not responding to commands."
        ),
    ],
)
def test_gpu_lost_without_xid(text: str) -> None:
    record = log(text)
    (lost,) = record.off_bus
    assert (lost.bus_id, lost.pci_id, lost.line) == ("0000:5e:00.0", "10de:2330", 1)
    assert (record.xids, record.cut) == ((), None)


def test_the_live_reader_knows_a_lost_gpu_without_the_drivers_name_in_every_line() -> None:
    (event,) = parse(
        [
            "NVRM: The NVIDIA GPU 0000:5e:00.0 (PCI ID: 10de:2330) installed in this system",
            "       has fallen off the bus and is not responding to commands.",
        ]
    )
    assert (event.kind, event.bus_id) == ("off_bus", "0000:5e:00.0")
    assert parse(["RuntimeError: the GPU has fallen off the bus"]) == ()


def test_lost_gpu_of_another_host_is_not_blamed() -> None:
    record = log(
        "gpu-1 kernel: NVRM: The NVIDIA GPU 0000:5e:00.0\n"
        "gpu-2 kernel: NVRM: fallen off the bus and is not responding to commands."
    )
    assert record.off_bus[0].bus_id is None


def test_lost_gpu_is_not_blamed_on_one_named_long_before() -> None:
    noise = "NVRM: hello\n" * 12
    record = log(f"NVRM: The NVIDIA GPU 0000:5e:00.0\n{noise}NVRM: fallen off the bus")
    assert record.off_bus[0].bus_id is None


def test_words_of_an_application_are_no_lost_gpu() -> None:
    assert log("RuntimeError: CUDA error: the GPU has fallen off the bus").off_bus == ()


@pytest.mark.parametrize(
    ("line", "severity", "bus_id", "driver"),
    [
        (
            "pcieport 0000:80:01.0: AER: Multiple Corrected error received: 0000:81:00.0",
            "corrected",
            "0000:81:00.0",
            "pcieport",
        ),
        (
            "nvidia 0000:81:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Link",
            "nonfatal",
            "0000:81:00.0",
            "nvidia",
        ),
        (
            "nvidia 0000:81:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=x",
            "fatal",
            "0000:81:00.0",
            "nvidia",
        ),
    ],
)
def test_pcie_errors(line: str, severity: str, bus_id: str, driver: str) -> None:
    (event,) = log(line).aer
    assert (event.severity, event.bus_id, event.driver) == (severity, bus_id, driver)


@pytest.mark.parametrize(
    ("said", "kind", "error"),
    [
        ("Port module event[error]: module 3, Cable error, High Temperature", "temperature", "H"),
        ("Port module event[error]: module 3, Cable error, Power budget exceeded", "cable", "P"),
        ("Port module event: module 3, Cable unplugged", "unplugged", None),
        ("mlx5_pcie_event:1: Detected insufficient power on the PCIe slot (27W).", "power", None),
        ("poll_health:1:(pid 0): device's health compromised - reached miss count", "health", None),
        ("wait_func:1:(pid 1): ENABLE_HCA(0x104) timeout. Will cause a leak", "timeout", None),
        ("ens3np0: Link down", "link_down", None),
        ("ens3np0: Link up", "link_up", None),
        ("mlx5_cmd_out_err:8:(pid 2): ACCESS_REG(0x805) failed, syndrome (0x3)", "command", None),
    ],
)  # fmt: skip
def test_adapters(said: str, kind: str, error: str | None) -> None:
    event = adapter(f"node-a kernel: mlx5_core 0000:9c:00.0: {said}")
    assert (event.kind, event.bus_id) == (kind, "0000:9c:00.0")
    assert (event.error or "").startswith(error or "") == bool(event.error or not error)
    assert (event.module == 3) == ("module 3" in said)
    assert (event.watts == 27) == ("27W" in said)


def test_cable_error_without_address() -> None:
    event = adapter("mlx5_port_module_event:1:(pid 0): Port module event[error]: module 0, Cable "
                    "error, High Temperature")  # fmt: skip
    assert (event.kind, event.pci, event.module) == ("temperature", None, 0)


def test_adapter_version_is_no_event() -> None:
    assert log("mlx5_core 0000:d2:00.0: firmware version: 28.39.1002").adapters == ()


@pytest.mark.parametrize(
    ("line", "kind", "process"),
    [
        ("Out of memory: Killed process 812 (python3) total-vm:1kB", "killed", "python3"),
        ("Out of memory: Kill process 812 (python3) score 9 or sacrifice", "killed", "python3"),
        ("Memory cgroup out of memory: Killed process 812 (pt_main)", "killed", "pt_main"),
        ("python3 invoked oom-killer: gfp_mask=0x1, order=0", "invoked", "python3"),
    ],
)  # fmt: skip
def test_oom_killer(line: str, kind: str, process: str) -> None:
    (kill,) = log(f"[ 3.000000] {line}").oom
    assert (kill.kind, kill.process) == (kind, process)


def test_out_of_gpu_memory_is_no_oom_kill() -> None:
    line = "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    assert not recognises(Document("x", (line,)))


@pytest.mark.parametrize(
    ("line", "kind", "gpu", "bus_id"),
    [
        ("NVRM: GPU0 nvAssertFailedNoLog: Assertion failed: a @ x.c:1", "assertion", 0, None),
        ("NVRM: nvAssertOkFailedNoLog: Assertion failed: Call timed out", "assertion", None, None),
        ("NVRM: GPU 0000:05:00.0: RmInitAdapter failed!", "init_failed", None, "0000:05:00.0"),
        ("NVRM: The NVIDIA probe routine failed for 1 device(s).", "probe_failed", None, None),
        ("NVRM: API mismatch: the client has the version 1", "version_mismatch", None, None),
    ],
)  # fmt: skip
def test_faults_of_the_driver(line: str, kind: str, gpu: int | None, bus_id: str | None) -> None:
    (fault,) = log(line).faults
    assert (fault.kind, fault.gpu, fault.bus_id) == (kind, gpu, bus_id)


def test_uuid_and_driver_version() -> None:
    record = log(
        "NVRM: GPU at PCI:0000:0b:00: GPU-0f3c9d1e-0000-1111-2222-333344445555\n"
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue"
    )
    assert record.uuids == {"0000:0b:00.0": "GPU-0f3c9d1e-0000-1111-2222-333344445555"}
    assert record.driver_version == "535.54.03"


def test_several_messages_in_one_line() -> None:
    line = f"{XID_79} | NVRM: Xid (PCI:0000:5e:00): 48, pid=1, DBE | {XID_79}"
    record = log(line)
    assert [event.code for event in record.xids] == [79, 48, 79]
    assert record.xid_lines == 1
    record = log('{"log":"' + XID_79 + "\\nNVRM: Xid (PCI:0000:5e:00): 48, DBE" + '\\n"}')
    assert [(event.code, event.line) for event in record.xids] == [(79, 1), (48, 1)]


def test_messages_of_several_kinds_in_one_json_line() -> None:
    text = (
        '{"log":"nvidia 00000000:81:00.0: PCIe Bus Error: severity=Corrected\\n'
        'mlx5_core 0000:9c:00.0: ens3: Link down\\n"}'
    )
    record = log(text)
    assert [(event.bus_id, event.severity) for event in record.aer] == [
        ("0000:81:00.0", "corrected")
    ]
    assert [(event.bus_id, event.kind) for event in record.adapters] == [
        ("0000:9c:00.0", "link_down")
    ]


def test_unreadable_xid_is_noted() -> None:
    record = log("NVRM: Xid (PCI:../../etc): 79\nanother line")
    assert record.xids == ()
    assert [unread.line for unread in record.unread] == [1]


def test_summary_has_single_values_only_where_there_is_one() -> None:
    facts = summary(log(LOG))
    assert facts["xids"] == [79, 149]
    assert facts["pcis"] == ["0000:3b:00", "0000:5e:00", "0000:d8:00.0"]
    assert facts["fatal_pcis"] == ["0000:5e:00"]
    assert facts["driver_version"] == "570.86.15"
    assert facts["pci_id"] == "10de:2330"
    assert facts["oom_kills"] == 1
    assert "pci" not in facts
    assert "link" not in facts


def test_a_storm_neither_buries_the_rare_event_nor_fills_the_memory() -> None:
    storm = "NVRM: Xid (PCI:0000:01:00): 31, pid=1\n" * 50_000
    record = log(f"{storm}[ 9.000000] {XID_79}\n")
    assert record.xid_lines == 50_001
    assert len(record.xids) == 101
    assert record.not_kept == 49_900
    assert record.xids[-1].code == 79


def test_more_different_events_than_are_kept_shows() -> None:
    many = "\n".join(f"NVRM: Xid (PCI:0000:01:00): 149, X Fatal x Link {i} (0x1)\n"
                     f"NVRM: Xid (PCI:{i:04x}:01:00): 48, a" for i in range(11_000))  # fmt: skip
    record = log(many)
    assert len(record.xids) == 10_000
    assert record.unread


def test_a_healthy_boot_log_is_recognised_and_empty() -> None:
    text = "\n".join(f"[    {i}.000000] usb 1-{i}: new device" for i in range(9))
    assert recognises(Document("x", tuple(text.split("\n"))))
    assert log(text) == KernelLog()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu-1:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        "[rank0]:[E ProcessGroupNCCL.cpp:1] Watchdog caught collective operation timeout",
        "mlx5_0   port  1  ==>  ibp26s0        (Down)",
        "GPU0\t X \tNV18\tSYS",
    ],
)
def test_other_texts_are_not_taken_for_a_kernel_log(text: str) -> None:
    assert not recognises(Document("x", (text,)))


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:0f:00): 64, pid=1, name=a, Row Remapper Error: all rows remapped",
        XID_79,
        "NVRM: Xid (PCI:0019:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x1 0x0 0x0)",
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1, Ch 1 caused by previous Xid 149",
        "nvidia-nvswitch3: SXid (PCI:0000:a5:00.0): 20034, Fatal, Link 32 LTSSM Fault Up",
        (
            "mlx5_port_module_event:11:(pid 0): Port module event[error]: module 0, Cable error, "
            "High Temperature"
        ),
    ],
)
def test_half_a_line_never_looks_like_a_smaller_fault(line: str) -> None:
    whole = log(f"[ 1.000000] boot\n[ 2.000000] {line}")
    assert whole.cut is None
    for length in range(len(line)):
        record = log(f"[ 1.000000] boot\n[ 2.000000] {line[:length]}")
        for found in record.xids:
            assert found.code == whole.xids[0].code or record.cut
            assert (
                found.cause == whole.xids[0].cause
                or found.code != 45
                or record.cut
                or ("caused" not in line[:length])
            )
            assert found.severity == whole.xids[0].severity or record.cut
        for switch in record.sxids:
            assert (switch.code, switch.severity) == (20034, "fatal") or record.cut
        for event in record.adapters:
            assert event.kind == "temperature" or record.cut


@pytest.mark.parametrize("lines", [1, 2])
def test_log_that_ends_inside_a_lost_gpu(lines: int) -> None:
    text = LOG[LOG.index("[  313") : LOG.index("[  314")]
    record = log("\n".join(text.split("\n")[:lines]))
    assert record.off_bus == ()
    assert record.cut is not None


def check_any(record: KernelLog, lines: int) -> None:
    events: list[Any] = [*record.xids, *record.sxids, *record.off_bus, *record.aer]
    events += [*record.adapters, *record.oom, *record.faults]
    assert all(1 <= event.line <= lines for event in (*events, *record.unread))
    assert all(event.text.isprintable() for event in events)
    assert from_json(to_json(record), KernelLog) == record
    summary(record)


@given(st.integers(0, len(LOG)))
def test_cut_anywhere(at: int) -> None:
    check_any(log(LOG[:at]), LOG.count("\n") + 1)


@given(st.permutations(LOG.split("\n") * 2))
def test_shuffled_and_doubled(lines: list[str]) -> None:
    record = log("\n".join(lines))
    check_any(record, len(lines))
    assert [x.code for x in record.xids].count(79) == 2


@given(
    st.binary() | st.text(alphabet="NVRM: Xid(PC0)9,;\\xan{}\"'<>", max_size=300).map(str.encode)
)
def test_random_bytes(content: bytes) -> None:
    lines = tuple(content.decode("latin-1").split("\n"))
    recognises(Document("x", lines))
    check_any(read(Document("x", lines)), len(lines))


def test_long_and_hostile_lines_cost_little() -> None:
    lines = (
        "NVRM: Xid (PCI:" + "0" * 2**20,
        "AER: " + "error " * 2**18,
        "NVRM " + "GPU at " * 2**17,
        "mlx5_core " + "Link (" * 2**17,
        "\\n" * 2**18 + "NVRM",
        f"{XID_79}\x1b[2J\x00" + "A" * 2**20,
    )
    started = time.process_time()
    record = read(Document("x", lines))
    assert time.process_time() - started < 2
    assert record.xids[-1].code == 79
    assert record.unread
