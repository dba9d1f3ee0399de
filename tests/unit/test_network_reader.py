"""Network ports out of made-up sysfs trees."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_gpucluster.facts.model import NetworkPort, to_json
from pytest_gpucluster.facts.network import NetworkFacts, read_network


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


class Node:
    """A sysfs tree under construction."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def link(self, path: str, target: Path) -> None:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.symlink_to(target)

    def pci(self, address: str, driver: str = "mlx5_core") -> Path:
        folder = self.root / "sys/devices/pci0000:00" / address
        write(
            folder,
            {
                "vendor": "0x15b3\n",
                "class": "0x020700\n",
                "current_link_speed": "32.0 GT/s PCIe\n",
                "current_link_width": "16\n",
                "numa_node": "1\n",
                "aer_dev_correctable": "TOTAL_ERR_COR 7\n",
            },
        )
        self.link(f"sys/bus/pci/devices/{address}", folder)
        module = self.root / "sys/bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(module)
        return folder

    def rdma(self, name: str, address: str, driver: str = "mlx5_core", **port: str) -> Path:
        device = self.pci(address, driver)
        folder = device / "infiniband" / name
        files = {
            "state": "4: ACTIVE\n",
            "phys_state": "5: LinkUp\n",
            "rate": "400 Gb/sec (4X NDR)\n",
            "link_layer": "InfiniBand\n",
        } | port
        write(folder / "ports/1", files)
        write(folder, {"fw_ver": "28.39.1002\n"})
        (folder / "device").symlink_to(device)
        self.link(f"sys/class/infiniband/{name}", folder)
        return folder

    def net(self, name: str, parent: Path, **files: str) -> Path:
        folder = parent / "net" / name
        write(folder, {"type": "1\n", "operstate": "up\n", "speed": "100000\n"} | files)
        self.link(f"sys/class/net/{name}", folder)
        return folder

    def virtual(self, name: str, **files: str) -> Path:
        return self.net(name, self.root / "sys/devices/virtual", **files)

    def read(self) -> NetworkFacts:
        facts = read_network(self.root)
        to_json(facts)  # whatever was read can be written
        return facts


def only_port(facts: NetworkFacts) -> NetworkPort:
    assert facts.ports is not None
    (port,) = facts.ports
    return port


def test_infiniband_port(tmp_path: Path) -> None:
    node = Node(tmp_path)
    folder = node.rdma("mlx5_4", "0000:4d:00.0")
    write(
        folder / "ports/1",
        {
            "counters/symbol_error": "12\n",
            "counters/link_downed": "0\n",
            "counters/port_xmit_data": "99\n",
            "counters/VL15_dropped": "N/A (no PMA)\n",
            "hw_counters/out_of_sequence": "3\n",
        },
    )
    facts = node.read()
    assert facts.unreadable == ()
    port = only_port(facts)
    assert (port.label, port.kind) == ("mlx5_4 port 1", "infiniband")
    assert (port.state, port.physical_state, port.rate_gbps) == ("ACTIVE", "LinkUp", 400.0)
    assert port.firmware == "28.39.1002"
    assert (port.bus_id, port.virtual) == ("0000:4d:00.0", False)
    assert (port.pcie.generation, port.pcie.width, port.pcie.numa_node) == (5, 16, 1)
    assert port.counters == {
        "symbol_error": 12,
        "link_downed": 0,
        "out_of_sequence": 3,
        "aer_correctable": 7,
    }


def test_ipoib_device_names_the_port_and_its_down_is_not_the_ports(tmp_path: Path) -> None:
    node = Node(tmp_path)
    folder = node.rdma("mlx5_0", "0000:1a:00.0")
    device = (folder / "device").resolve()
    node.net("ibp26s0", device, type="32\n", operstate="down\n", dev_port="0\n")
    port = only_port(node.read())
    assert (port.netdev, port.state) == ("ibp26s0", "ACTIVE")


def test_roce_port_finds_its_device_behind_empty_gids(tmp_path: Path) -> None:
    node = Node(tmp_path)
    folder = node.rdma("mlx5_1", "0000:1b:00.0", link_layer="Ethernet\n", rate="100 Gb/sec (2X)\n")
    gids = folder / "ports/1/gid_attrs/ndevs"
    gids.mkdir(parents=True)
    (gids / "0").symlink_to("/nowhere")  # the kernel answers EINVAL
    (gids / "1").write_text("enp27s0f0np0\n")
    node.net("enp27s0f0np0", (folder / "device").resolve())
    facts = node.read()
    assert facts.ports is not None
    roce, ethernet = facts.ports
    assert (roce.kind, roce.netdev, roce.rate_gbps) == ("roce", "enp27s0f0np0", 100.0)
    assert (ethernet.kind, ethernet.label, ethernet.state) == ("ethernet", "enp27s0f0np0", "UP")
    assert (ethernet.rate_gbps, ethernet.bus_id) == (100.0, "0000:1b:00.0")


def test_efa_is_known_by_its_driver(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.rdma("rdmap79s0", "0000:4f:00.0", "efa", link_layer="Unspecified\n", phys_state="")
    port = only_port(node.read())
    assert (port.kind, port.physical_state) == ("efa", None)


def test_adapters_come_in_counting_order(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in (10, 9, 2):
        node.rdma(f"mlx5_{number}", f"0000:{number:02d}:00.0")
    facts = node.read()
    assert facts.ports is not None
    assert [port.device for port in facts.ports] == ["mlx5_2", "mlx5_9", "mlx5_10"]


def test_port_that_is_down(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.rdma("mlx5_0", "0000:1a:00.0", state="1: DOWN\n", phys_state="2: Polling\n", rate="x\n")
    port = only_port(node.read())
    assert (port.state, port.physical_state, port.rate_gbps) == ("DOWN", "Polling", None)


def test_vanished_device_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.rdma("mlx5_7", "0000:7a:00.0")
    node.link("sys/class/infiniband/mlx5_8", tmp_path / "gone")
    facts = node.read()
    assert only_port(facts).device == "mlx5_7"
    assert [problem.subject for problem in facts.unreadable] == ["mlx5_8"]
    assert "vanished" in facts.unreadable[0].reason


def test_port_of_unknown_make_is_a_problem_not_a_guess(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.rdma("usnic_0", "0000:7a:00.0", "usnic", link_layer="Unspecified\n")
    node.rdma("mlx5_0", "0000:1a:00.0", state="\x00\xff")
    facts = node.read()
    assert facts.ports == ()
    assert [problem.subject for problem in facts.unreadable] == ["mlx5_0 port 1", "usnic_0 port 1"]


def test_ethernet_speed_that_is_no_speed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    device = node.pci("0000:03:00.0", "virtio-pci")
    node.net("eth0", device, speed="-1\n")
    node.net("eth1", device, speed="4294967295\n", operstate="unknown\n")
    (node.net("eth2", device, operstate="lowerlayerdown\n") / "speed").unlink()
    facts = node.read()
    assert facts.ports is not None
    assert [port.rate_gbps for port in facts.ports] == [None, None, None]
    assert [port.state for port in facts.ports] == ["UP", None, "LOWERLAYERDOWN"]


def test_virtual_devices_are_flagged(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.virtual("docker0", speed="10000\n")
    (tmp_path / "sys/class/net/bonding_masters").write_text("bond0\n")
    port = only_port(node.read())
    assert (port.device, port.virtual, port.bus_id) == ("docker0", True, None)


def test_no_rdma_and_no_network_at_all(tmp_path: Path) -> None:
    nothing = read_network(tmp_path)
    assert nothing.ports is None
    assert [problem.subject for problem in nothing.unreadable] == ["network"]
    (tmp_path / "sys/class/net").mkdir(parents=True)
    assert read_network(tmp_path) == NetworkFacts(())


def test_hostile_names_and_contents(tmp_path: Path) -> None:
    node = Node(tmp_path)
    garbage = "\x1b[2J" + "A" * 2**20
    folder = node.rdma("mlx5_0", "0000:1a:00.0", rate=garbage, phys_state="5: \x1b[31mUp\x07\n")
    write(folder, {"fw_ver": garbage, "ports/1/counters/symbol_error": "-5\n"})
    write(folder, {"ports/1/counters/link_downed": "9" * 40, "ports/x/state": "4: ACTIVE\n"})
    name = os.fsdecode(b"et\xff\x01h")
    node.virtual(name)
    facts = node.read()
    assert facts.ports is not None
    rdma, ethernet = facts.ports
    assert rdma.rate_gbps is None
    assert set(rdma.counters) == {"aer_correctable"}
    assert rdma.firmware is not None
    assert len(rdma.firmware) <= 1000
    for text in (rdma.firmware, rdma.physical_state, ethernet.device, ethernet.label):
        assert text is not None
        assert text.isprintable()
