"""RDMA adapters in the words of several tools."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.facts.evidence.document import Document
from pytest_gpucluster.facts.evidence.ib_ports import IbPort
from pytest_gpucluster.facts.evidence.ib_tools import IbRecord, read, recognises, summary
from pytest_gpucluster.facts.model import from_json, to_json

IBSTAT = """\
CA 'mlx5_{n}'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tHardware version: 0
\tPort 1:
\t\tState: {state}
\t\tPhysical state: {physical}
\t\tRate: {rate}
\t\tBase lid: 868
\t\tSM lid: 334
\t\tPort GUID: 0x94
\t\tLink layer: InfiniBand
"""
IBSTATUS = """\
Infiniband device 'mlx5_{n}' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:506b:4b03:00f5:ce9c
\tbase lid:\t 0xf
\tsm lid:\t\t 0x1
\tstate:\t\t 4: ACTIVE
\tphys state:\t 5: LinkUp
\trate:\t\t 400 Gb/sec (4X NDR)
\tlink_layer:\t InfiniBand

"""
DEVINFO = """\
hca_id:\tmlx5_{n}
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t100.0 Gbps (128)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tlink_layer:\t\tEthernet

"""
SYSFS = """\
/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_{n}/fw_ver: 28.39.1002
/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_{n}/ports/1/state: 4: ACTIVE
/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_{n}/ports/1/phys_state: 5: LinkUp
/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_{n}/ports/1/rate: 200 Gb/sec (4X HDR)
/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_{n}/ports/1/counters/link_downed: 255
/sys/bus/pci/devices/0000:0c:00.0/infiniband/mlx5_{n}/ports/1/hw_counters/out_of_sequence: 7
"""
ROWS = """\
mlx5_0 port 1 ==> ibp26s0 (Down)
mlx5_1   port  1  ==>  enp27s0f0np0   (Up)    # ConnectX-6
"""
ALL = (
    IBSTAT.format(n=0, state="Active", physical="LinkUp", rate=200)
    + IBSTATUS.format(n=1)
    + DEVINFO.format(n=2)
    + SYSFS.format(n=3)
    + ROWS
    + "link mlx5_5/1 state ACTIVE physical_state LINK_UP netdev ens1\n"
    + "ibpanic: [13] main: stat of IB device 'mlx5_8' failed: No such file or directory\n"
)


def doc(text: str) -> Document:
    return Document("ib.txt", tuple(text.rstrip("\n").split("\n")))


def ib(text: str) -> IbRecord:
    assert recognises(doc(text))
    return read(doc(text))


def only(text: str) -> IbPort:
    (port,) = ib(text).ports
    return port


def ibstat(n: int = 0, state: str = "Active", physical: str = "LinkUp", rate: object = 400) -> str:
    return IBSTAT.format(n=n, state=state, physical=physical, rate=rate)


def test_ibstat() -> None:
    record = ib(ibstat(10, "Down", "Polling", 10))
    (port,) = record.ports
    assert (port.device, port.port, port.state, port.physical_state) == (
        "mlx5_10", 1, "DOWN", "Polling",
    )  # fmt: skip
    assert (port.rate_gbps, port.link_layer, port.lid, port.line) == (10, "InfiniBand", 868, 6)
    (device,) = record.devices
    assert (device.firmware, device.ca_type, device.ports) == ("28.39.1002", "MT4129", 1)
    assert (record.cut, record.unread) == (None, ())
    facts = summary(record)
    assert facts["state"] == {"mlx5_10": "Down"}
    assert facts["rate_Gbps"] == {"mlx5_10": 10}


def test_ibstatus() -> None:
    port = only(IBSTATUS.format(n=1))
    assert (port.state, port.physical_state, port.rate_gbps) == ("ACTIVE", "LinkUp", 400)
    assert port.rate_text == "400 Gb/sec (4X NDR)"


def test_ibv_devinfo() -> None:
    record = ib(DEVINFO.format(n=2))
    (port,) = record.ports
    assert (port.state, port.state_text) == ("ACTIVE", "PORT_ACTIVE")
    assert (port.physical_state, port.link_layer) == ("LinkUp", "Ethernet")
    assert port.rate_gbps == 400  # four lanes of 100
    assert record.devices[0].firmware == "28.39.1002"
    assert record.cut is None


@pytest.mark.parametrize(
    "line",
    [
        "{path}/state: 4: ACTIVE",
        "{path}/state:4: ACTIVE",
        "{path}/state = 4: ACTIVE",
        "{path}/state 4: ACTIVE",
        "==> {path}/state <==\n4: ACTIVE",
        "{path}/state\n4: ACTIVE",
        "gpu-1: {path}/state: 4: ACTIVE",
    ],
)
@pytest.mark.parametrize("base", ["/sys/class/infiniband/", "/sys/x/0000:0c:00.0/infiniband/", ""])
def test_sysfs_dumps(line: str, base: str) -> None:
    text = line.format(path=f"{base}mlx5_3/ports/1")
    port = only(text)
    assert (port.device, port.port, port.state) == ("mlx5_3", 1, "ACTIVE")
    assert port.line == text.count("\n") + 1


def test_sysfs_counters_and_address() -> None:
    record = ib(SYSFS.format(n=3))
    (port,) = record.ports
    assert port.counters == {"link_downed": 255, "out_of_sequence": 7}
    assert record.devices[0].bus_id == "0000:0c:00.0"
    assert record.devices[0].firmware == "28.39.1002"
    assert summary(record)["link_downed"] == {"mlx5_3": 255}


FLAT = {
    "/sys/class/infiniband/mlx5_3/ports/1/state": "4: ACTIVE",
    "/sys/class/infiniband/mlx5_3/ports/1/rate": "200 Gb/sec (4X HDR)",
    "/sys/class/infiniband/mlx5_3/ports/1/counters/link_downed": 255,
}
NESTED = {
    "infiniband": {
        "mlx5_3": {
            "ports": {
                "1": {
                    "state": "4: ACTIVE",
                    "rate": "200 Gb/sec (4X HDR)",
                    "counters": {"link_downed": 255},
                }
            }
        }
    }
}
LISTED = [
    {
        "device": "mlx5_3",
        "port": 1,
        "state": "4: ACTIVE",
        "rate": "200 Gb/sec (4X HDR)",
        "counters": {"link_downed": 255},
    }
]


@pytest.mark.parametrize("content", [FLAT, NESTED, LISTED], ids=["flat", "nested", "listed"])
@pytest.mark.parametrize("indent", [None, 2])
def test_json(content: object, indent: int | None) -> None:
    record = read(doc(json.dumps(content, indent=indent)))
    (port,) = record.ports
    assert (port.device, port.port, port.state) == ("mlx5_3", 1, "ACTIVE")
    assert (port.rate_gbps, port.counters) == (200, {"link_downed": 255})
    assert (record.cut, record.unread) == (None, ())
    assert "mlx5_3" in json.dumps(content, indent=indent).split("\n")[port.line - 1]


def test_json_that_stops_is_cut_and_read_as_far_as_it_goes() -> None:
    lines = json.dumps(FLAT, indent=1).split("\n")
    record = ib("\n".join(lines[:-1]))
    assert record.cut is not None
    assert record.ports[0].state == "ACTIVE"


def test_ibdev2netdev_says_nothing_of_the_port() -> None:
    record = ib(ROWS)
    assert [(p.device, p.netdev, p.netdev_state, p.state) for p in record.ports] == [
        ("mlx5_0", "ibp26s0", "Down", None),
        ("mlx5_1", "enp27s0f0np0", "Up", None),
    ]
    assert record.cut is None


def test_ibdev2netdev_verbose() -> None:
    record = ib(
        "0000:0c:00.0 mlx5_0 (MT4123 - MCX653105A) ConnectX-6 VPI adapter, port none fw 20.36.1010 "
        "port 1 (ACTIVE) ==> ib0 (Down)"
    )
    (port,) = record.ports
    assert (port.device, port.state, port.netdev_state) == ("mlx5_0", "ACTIVE", "Down")
    assert (record.devices[0].bus_id, record.devices[0].firmware) == ("0000:0c:00.0", "20.36.1010")


def test_rdma_link() -> None:
    port = only("link mlx5_0/1 state DOWN physical_state DISABLED netdev enp1s0")
    assert (port.state, port.physical_state, port.netdev) == ("DOWN", "Disabled", "enp1s0")


@pytest.mark.parametrize(
    "line",
    [
        "ibpanic: [13] main: stat of IB device 'mlx5_8' failed: No such file or directory",
        "cat: /sys/class/infiniband/mlx5_8/ports/1/state: No such file or directory",
        "Failed to open device mlx5_8 ",
    ],
)
def test_vanished_adapter(line: str) -> None:
    record = ib(ibstat(7) + line)
    assert [gone.device for gone in record.missing] == ["mlx5_8"]
    assert record.missing[0].line == 14
    assert len(record.ports) == 1
    assert summary(record)["missing"] == ["mlx5_8"]


def test_tool_that_gave_up_is_a_cut_text() -> None:
    record = ib(ibstat(7) + "ibpanic: [13] main: stat of IB device 'mlx5_8' failed: No such file")
    assert record.cut is not None
    assert "mlx5_8" in record.cut


def test_complaint_about_a_present_adapter_is_no_missing_adapter() -> None:
    text = ibstat(7) + "cat: /sys/class/infiniband/mlx5_7/ports/1/hw: No such file or directory"
    record = ib(text)
    assert record.missing == ()
    assert [unread.line for unread in record.unread] == [14]


def test_no_adapter_at_all() -> None:
    record = ib("No IB devices found")
    assert record.ports == ()
    assert record.unread


def test_several_tools_about_one_port() -> None:
    record = ib(ibstat(0, rate=400) + IBSTATUS.format(n=0) + SYSFS.format(n=1) + ROWS)
    assert [port.device for port in record.ports] == ["mlx5_0", "mlx5_1"]
    assert record.ports[0].tools == ("ibstat", "ibstatus", "ibdev2netdev")
    assert record.ports[0].netdev == "ibp26s0"
    assert record.unread == ()


def test_contradiction_is_noted() -> None:
    record = ib(ibstat(0) + ibstat(0, "Down", "Polling", 10))
    assert len(record.ports) == 1
    assert any("state DOWN here, ACTIVE before" in unread.reason for unread in record.unread)


@pytest.mark.parametrize("front", ["node-{}: ", "[1,{}]<stdout>:", "{}: "])
def test_interleaved_hosts(front: str) -> None:
    one, two = ibstat(0).splitlines(), ibstat(0, "Down", "Polling", 10).splitlines()
    pairs = zip(one, two, strict=True)
    text = "\n".join(f"{front.format(1)}{a}\n{front.format(2)}{b}" for a, b in pairs)
    record = ib(text)
    assert [(port.state, port.rate_gbps) for port in record.ports] == [
        ("ACTIVE", 400),
        ("DOWN", 10),
    ]
    assert record.ports[0].host != record.ports[1].host
    assert record.unread == ()


def test_container_log_prefix() -> None:
    lines = ibstat(0).splitlines()
    text = "\n".join(
        f"2026-01-01T00:00:0{i % 9}.5Z stdout F {line}" for i, line in enumerate(lines)
    )
    assert only(text).state == "ACTIVE"


def test_adapter_with_two_ports() -> None:
    text = ibstat(0).replace("ports: 1", "ports: 2")
    second = "\n".join(ibstat(0, "Down", "Disabled", 10).splitlines()[5:]).replace(
        "Port 1", "Port 2"
    )
    assert ib(text).cut is not None
    record = ib(text + second)
    assert record.cut is None
    assert summary(record)["state"] == {"mlx5_0 port 1": "Active", "mlx5_0 port 2": "Down"}


def test_left_out_values_are_unknown() -> None:
    text = ibstat(7).replace("28.39.1002", "...").replace("MT4129", "...")
    record = ib(text)
    assert (record.devices[0].firmware, record.devices[0].ca_type) == (None, None)


def test_state_nobody_knows_is_unread() -> None:
    record = ib(ibstat(7, state="Sideways"))
    assert record.ports[0].state is None
    assert [unread.line for unread in record.unread] == [7]


@pytest.mark.parametrize(
    "text", [ibstat(7), IBSTATUS.format(n=1).rstrip() + "\n", DEVINFO.format(n=2).rstrip() + "\n"]
)
def test_half_a_block_never_looks_like_a_whole_one(text: str) -> None:
    (whole,) = ib(text).ports
    assert ib(text).cut is None
    first = text.index("\n") + 1
    for length in range(first, len(text) - 1):
        record = read(doc(text[:length]))
        for port in record.ports:
            assert port.state in (None, whole.state)
            assert port.physical_state in (None, whole.physical_state)
            assert port.rate_gbps in (None, whole.rate_gbps)
        assert record.cut is not None


def test_half_a_row_shows() -> None:
    row = ROWS.split("\n")[0]
    for length in range(row.index("==>") + 3, len(row) - 1):
        record = read(doc(row[:length]))
        assert record.cut is not None
        assert [port.netdev for port in record.ports] in ([], [None])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB",
        "<nic>\n<net name=\"mlx5_0\" dev=\"0\" speed=\"200000\" port=\"1\"/>",
        "[ 1.0] mlx5_core 0000:0c:00.0: Link down",
        "==> /var/log/messages <==",
        '{"a": "b"}',
    ],
)  # fmt: skip
def test_other_texts_are_not_taken_for_adapters(text: str) -> None:
    assert not recognises(doc(text))


def check_any(record: IbRecord, lines: int) -> None:
    elements: list[Any] = [*record.ports, *record.devices, *record.missing, *record.unread]
    assert all(1 <= element.line <= lines for element in elements)
    assert from_json(to_json(record), IbRecord) == record
    summary(record)


@given(st.integers(0, len(ALL)))
def test_cut_anywhere(at: int) -> None:
    check_any(read(doc(ALL[:at])), ALL.count("\n") + 1)


@given(st.permutations(ALL.split("\n") * 2))
def test_shuffled_and_doubled(lines: list[str]) -> None:
    check_any(read(Document("x", tuple(lines))), len(lines))


@given(
    st.binary()
    | st.text(alphabet="CA 'mlx5_0'\n\tPort 1:State/ports==>{}[]\",", max_size=300).map(str.encode)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["mlx5_0", "ports", "1", "state", "device", "port", "rate", "counters"]
                ),
                inner,
                max_size=4,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_random_bytes(content: bytes) -> None:
    lines = tuple(content.decode("latin-1").split("\n"))
    recognises(Document("x", lines))
    check_any(read(Document("x", lines)), len(lines))


def test_long_deep_and_hostile_texts_cost_little() -> None:
    started = time.process_time()
    read(Document("x", ("[" * 100_000,)))
    read(Document("x", ('{"mlx5_0":' * 20_000,)))
    read(Document("x", ("CA '" + "m" * 2**20, "port " * 2**18 + "==>", "a/ports/" * 2**17)))
    many = "".join(ibstat(n) for n in range(3000))
    assert len(read(doc(many)).ports) == 3000
    assert time.process_time() - started < 4
