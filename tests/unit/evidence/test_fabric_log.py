"""Fabric manager logs, Fabric blocks, CUDA 802."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.facts.evidence.document import Document
from pytest_gpucluster.facts.evidence.fabric_log import (
    FabricEvent,
    FabricRecord,
    read,
    recognises,
    summary,
)
from pytest_gpucluster.facts.model import from_json, to_json

BLOCK = """\
    Fabric
        State                             : {state}
        Status                            : {status}
        CliqueId                          : 4
        ClusterUUID                       : 8a1c0000-0000-0000-0000-00000000beef
        Health
            Bandwidth                     : Full
            Route Unhealthy               : False
"""
FATAL = (
    "[Jul 03 2025 07:53:55] [ERROR] [tid 8] detected NVSwitch fatal error 20034 on fid 0 on "
    "NVSwitch pci bus id 00000000:C5:00.0 physical id 2 port 41"
)
TOPOLOGY = (
    "[Sep 08 2025 23:21:50] [ERROR] [tid 9] detected number of NVSwitches don't match with any "
    "supported system topology, aborting fabric manager"
)
LOG = f"""[Jul 03 2025 07:50:00] [INFO] [tid 8] Fabric Manager - Build 1
[Jul 03 2025 07:50:09] [INFO] [tid 8] Successfully configured all the available NVSwitches
{FATAL}
{TOPOLOGY}
{BLOCK.format(state="Completed", status="Success")}
RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized
"""


def doc(text: str) -> Document:
    return Document("fm.log", tuple(text.rstrip("\n").split("\n")))


def fabric(text: str) -> FabricRecord:
    return read(doc(text))


def event(line: str) -> FabricEvent:
    assert recognises(doc(line))
    (found,) = fabric(line).events
    return found


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("Completed", "Success"),
        ("Completed", "Insufficient Resources"),
        ("In Progress", "N/A"),
        ("Not Started", "N/A"),
        ("N/A", "N/A"),
    ],
)
def test_block(state: str, status: str) -> None:
    text = BLOCK.format(state=state, status=status)
    assert recognises(doc(text))
    record = fabric(text)
    (block,) = record.blocks
    assert (block.state, block.status, block.clique_id, block.line) == (state, status, 4, 1)
    assert block.health == {"Bandwidth": "Full", "Route Unhealthy": "False"}
    assert record.cut is None
    assert summary(record)["fabric_status"] == status


def test_blocks_of_several_gpus_do_not_mix() -> None:
    text = "".join(
        f"GPU 00000000:{bus}:00.0\n" + BLOCK.format(state="Completed", status=status)
        for bus, status in (("19", "Success"), ("3B", "Insufficient Resources"))
    )
    record = fabric(text)
    assert [(b.gpu, b.status) for b in record.blocks] == [
        ("00000000:19:00.0", "Success"),
        ("00000000:3B:00.0", "Insufficient Resources"),
    ]
    facts = summary(record)
    assert facts["fabric_state"] == "Completed"
    assert facts["fabric_status"] == {
        "00000000:19:00.0": "Success",
        "00000000:3B:00.0": "Insufficient Resources",
    }


def test_blocks_of_interleaved_hosts_do_not_mix() -> None:
    one = BLOCK.format(state="Completed", status="Success").splitlines()
    two = BLOCK.format(state="In Progress", status="N/A").splitlines()
    pairs = zip(one, two, strict=True)
    text = "\n".join(f"node-1: {a}\nnode-2: {b}" for a, b in pairs)
    assert [(b.state, b.status) for b in fabric(text).blocks] == [
        ("Completed", "Success"),
        ("In Progress", "N/A"),
    ]


@pytest.mark.parametrize("first", ["=====NVSMI LOG=====", "Attached GPUs    : 1"])
def test_a_whole_nvidia_smi_output_is_another_readers(first: str) -> None:
    block = BLOCK.format(state="Completed", status="Success")
    assert recognises(doc(block))
    assert not recognises(doc(f"{first}\n{block}"))


def test_zero_cluster_and_unknown_clique() -> None:
    text = "Fabric\n State : Completed\n Status : Success\n CliqueId : N/A\n ClusterUUID : N/A"
    (block,) = fabric(text).blocks
    assert (block.clique_id, block.cluster_uuid) == (None, None)


def test_csv_form() -> None:
    text = "pci.bus_id, fabric.state, fabric.status\n00000000:19:00.0, Completed, Success\n"
    assert recognises(doc(text))
    (block,) = fabric(text).blocks
    assert (block.gpu, block.state, block.status) == ("00000000:19:00.0", "Completed", "Success")
    assert fabric(text + "00000000:3B:00.0, Compl").cut is not None


@pytest.mark.parametrize(
    ("line", "severity", "port"),
    [
        (FATAL, "fatal", 41),
        (FATAL.replace("fatal error", "non-fatal error").replace("port 41", "port 60"),
         "nonfatal", 60),
        (("Mar 03 18:39:57 n7 nv-fabricmanager[51]: detected NVSwitch fatal error 20034 on NodeId "
         "0 on NVSwitch pci bus id 00000000:C5:00.0 physical id 2 port 41"), "fatal", 41),
        (("[ERROR] [tid 5] detected NVSwitch fatal error 20034 on fid:0 on NVSwitch pci bus "
         "id:00000000:C5:00.0 physical id:2 port:41"), "fatal", 41),
    ],
)  # fmt: skip
def test_switch_errors(line: str, severity: str, port: int) -> None:
    found = event(line)
    assert (found.kind, found.code, found.severity) == ("switch_error", 20034, severity)
    assert (found.bus_id, found.physical_id, found.port) == ("0000:c5:00.0", 2, port)


def test_time_and_level() -> None:
    assert (event(FATAL).timestamp, event(FATAL).level) == ("Jul 03 2025 07:53:55", "ERROR")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (TOPOLOGY, "topology_mismatch"),
        (("detected number of NVSwitches don't match with any supported system topology, aborting "
         "fabric manager"), "topology_mismatch"),
        ("[ERROR] [tid 4] failed to initialize all the GPUs, aborting fabric manager", "aborted"),
        (("n7 nv-fabricmanager[41]: request to query NVSwitch device information from NVSwitch "
         "driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"),
         "nothing_to_do"),
        (("n7 nv-fabricmanager[41]: fabric manager NVIDIA GPU driver interface version 570.211.01 "
         "don't match with driver version 570.133.20. Please update"), "version_mismatch"),
        ("[ERROR] [tid 12] failed to find the GPU handle 54 in the multicast team request setup 6.",
         "multicast"),
        ("n7 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
         "service_failed"),
        ("[ERROR] [tid 12] something nobody has seen before", "error"),
        ("[INFO] [tid 12] Successfully configured all the available NVSwitches to route",
         "configured"),
    ],
)  # fmt: skip
def test_events(line: str, kind: str) -> None:
    assert event(line).kind == kind


def test_versions_that_do_not_match() -> None:
    line = (
        "nv-fabricmanager[4]: fabric manager NVIDIA GPU driver interface version 570.211.01 don't \
match with driver version 570.133.20. Please update"
    )
    assert event(line).versions == ("570.211.01", "570.133.20")


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "n7:1:9 [0] enqueue.cc:1 NCCL WARN Cuda failure 802 'system not yet initialized'",
        "torch.AcceleratorError: CUDA error: cudaErrorSystemNotReady",
        "cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY",
        "CUDA error 802 at probe.cu:9",
    ],
)
def test_cuda_says_that_the_fabric_is_not_ready(line: str) -> None:
    assert event(line).kind == "cuda_not_ready"
    assert summary(fabric(line))["cuda_error"] == 802


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a line about the NVLink Fabric\nGET /x HTTP/1.1 802",
        "[    1.0] NVRM: Xid (PCI:0000:3b:00): 79, x",
        "GPU0\t X \tNV18",
        "NCCL INFO NVLS multicast support is available on dev 0",
    ],
)
def test_other_texts_are_not_taken_for_the_fabrics(text: str) -> None:
    assert not recognises(doc(text))


def test_info_lines_are_no_events() -> None:
    text = (
        "[INFO] [tid 855] Sending inband response message: status:0\n"
        "[INFO] [tid 855] number of NVLinks that are down: 0\n"
        "[INFO] [tid 855] multicast group 1 is allocated."
    )
    assert recognises(doc(text))
    assert fabric(text).events == ()


@pytest.mark.parametrize("word", ["Completed", "In Progress", "Insufficient Resources"])
def test_half_a_word_is_not_another_state(word: str) -> None:
    name = "Status" if word.startswith("Ins") else "State"
    for length in range(1, len(word)):
        record = fabric(f"Fabric\n    {name}      : {word[:length]}")
        assert record.cut is not None
        assert record.blocks[0].state is None
        assert record.blocks[0].status is None


def test_half_a_message_shows() -> None:
    for line in (FATAL, TOPOLOGY):
        first = line.index("detected") + len("detected NV")
        for length in range(first, len(line)):
            record = fabric(line[:length])
            whole = fabric(line).events[0]
            assert record.cut or [e.kind for e in record.events] == [whole.kind]
            for found in record.events:
                assert record.cut or (found.code, found.port is None) == (
                    whole.code,
                    whole.port is None,
                )


def test_block_that_stops() -> None:
    assert fabric("    Fabric").cut is not None
    assert fabric("    Fabric\n        State  : Completed").cut is not None


def test_storm() -> None:
    record = fabric(f"{FATAL}\n" * 20_000 + TOPOLOGY)
    assert len(record.events) == 101
    assert record.not_kept == 19_900
    assert summary(record)["aborted"] is True


def check_any(record: FabricRecord, lines: int) -> None:
    elements: list[Any] = [*record.blocks, *record.events, *record.unread]
    assert all(1 <= element.line <= lines for element in elements)
    assert from_json(to_json(record), FabricRecord) == record
    summary(record)


@given(st.integers(0, len(LOG)))
def test_cut_anywhere(at: int) -> None:
    check_any(fabric(LOG[:at]), LOG.count("\n") + 1)


@given(st.permutations(LOG.split("\n") * 2))
def test_shuffled_and_doubled(lines: list[str]) -> None:
    record = read(Document("x", tuple(lines)))
    check_any(record, len(lines))
    assert sum(e.kind == "switch_error" for e in record.events) == 2


@given(st.binary() | st.text(alphabet="Fabric\nState : Comp[]tid802", max_size=300).map(str.encode))
def test_random_bytes(content: bytes) -> None:
    lines = tuple(content.decode("latin-1").split("\n"))
    recognises(Document("x", lines))
    check_any(read(Document("x", lines)), len(lines))


def test_long_and_hostile_lines_cost_little() -> None:
    lines = (
        "Fabric",
        "State" + " " * 2**20 + ":",
        "cuda" * 2**18 + "802",
        "NVLink " * 2**18,
        "detected " * 2**18 + "abric",
        *["fabric.state, fabric.status"] * 1000,
    )
    started = time.process_time()
    read(Document("x", lines))
    recognises(Document("x", lines))
    assert time.process_time() - started < 2
