"""PCIe links out of made-up sysfs trees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gpucluster.facts.pcie import PcieFacts, read_device, read_pcie
from pytest_gpucluster.facts.sysfs import bus_id

GPU: dict[str, str | bytes] = {
    "vendor": "0x10de\n",
    "class": "0x030200\n",
    "current_link_speed": "16.0 GT/s PCIe\n",
    "current_link_width": "16\n",
    "max_link_speed": "32.0 GT/s PCIe\n",
    "max_link_width": "16\n",
    "numa_node": "1\n",
}
BRIDGE: dict[str, str | bytes] = {
    "vendor": "0x1000\n",
    "class": "0x060400\n",
    "max_link_speed": "16.0 GT/s PCIe\n",
    "max_link_width": "8\n",
}


def add(
    root: Path, address: str, files: Mapping[str, str | bytes], above: str = "pci0000:1a"
) -> Path:
    """A PCI function below ``above``, listed on the bus as the kernel lists it."""
    folder = root / "sys/devices" / above / address
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(folder)
    return folder


def test_gpu_behind_a_slower_and_narrower_slot(tmp_path: Path) -> None:
    add(tmp_path, "0000:1a:01.0", BRIDGE)
    add(tmp_path, "0000:1b:00.0", GPU, "pci0000:1a/0000:1a:01.0")
    facts = read_pcie(tmp_path)
    assert facts.unreadable == ()
    assert facts.nvidia is not None
    (gpu,) = facts.nvidia
    assert gpu.bus_id == "0000:1b:00.0"
    assert (gpu.pcie.generation, gpu.pcie.width) == (4, 16)
    assert gpu.pcie.device_generation == 5
    assert (gpu.pcie.max_generation, gpu.pcie.max_width) == (4, 8)
    assert gpu.pcie.numa_node == 1


def test_unknown_stays_none(tmp_path: Path) -> None:
    unknown = GPU | {
        "current_link_speed": "Unknown\n",
        "current_link_width": "255\n",
        "max_link_speed": "Unknown\n",
        "max_link_width": "0\n",
        "numa_node": "-1\n",
    }
    add(tmp_path, "0000:1b:00.0", unknown)
    device = read_device("0000:1b:00.0", tmp_path)
    assert device is not None
    link = device.pcie
    assert (link.generation, link.max_generation, link.device_generation) == (None, None, None)
    assert (link.width, link.max_width, link.numa_node) == (None, None, None)


def test_slot_out_of_sight_leaves_the_common_maximum_unknown(tmp_path: Path) -> None:
    # A virtual machine hides the bridge: the device's own maximum is no promise of the slot.
    add(tmp_path, "0001:00:00.0", GPU, "pci0001:00")
    device = read_device("00000001:00:00.0", tmp_path)
    assert device is not None
    assert device.pcie.device_generation == 5
    assert device.pcie.max_generation is None


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("2.5 GT/s", 1),
        ("5 GT/s", 2),
        ("8.0 GT/s PCIe", 3),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("7.7 GT/s PCIe", None),
        ("", None),
    ],
)
def test_generation_of_a_speed(tmp_path: Path, speed: str, generation: int | None) -> None:
    add(tmp_path, "0000:1b:00.0", GPU | {"current_link_speed": speed})
    device = read_device("0000:1b:00.0", tmp_path)
    assert device is not None
    assert device.pcie.generation == generation


def test_only_nvidia_display_functions_count(tmp_path: Path) -> None:
    add(tmp_path, "0000:1b:00.0", GPU)
    add(tmp_path, "0000:1c:00.0", GPU | {"class": "0x030000\n"})
    add(tmp_path, "0000:1b:00.1", GPU | {"class": "0x040300\n"})  # its audio function
    add(tmp_path, "0000:05:00.0", GPU | {"class": "0x068000\n"})  # an NVSwitch
    add(tmp_path, "0000:06:00.0", GPU | {"vendor": "0x1a03\n"})  # the board's own VGA
    virtual = add(tmp_path, "0000:1b:00.4", GPU)
    (virtual / "physfn").symlink_to("../0000:1b:00.0")
    facts = read_pcie(tmp_path)
    assert facts.nvidia is not None
    assert [gpu.bus_id for gpu in facts.nvidia] == ["0000:1b:00.0", "0000:1c:00.0"]


def test_no_gpu_is_not_the_same_as_no_pci_bus(tmp_path: Path) -> None:
    nowhere = read_pcie(tmp_path)
    assert nowhere.nvidia is None
    assert [problem.subject for problem in nowhere.unreadable] == ["pcie"]
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    assert read_pcie(tmp_path) == PcieFacts(())


def test_aer_totals_and_driver(tmp_path: Path) -> None:
    folder = add(
        tmp_path,
        "0000:1b:00.0",
        GPU
        | {
            "aer_dev_correctable": "RxErr 3\nBadTLP 1\nTOTAL_ERR_COR 4\n",
            "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0\n",
            "aer_dev_fatal": b"TOTAL_ERR_FATAL \xff\n",
        },
    )
    driver = tmp_path / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    (folder / "driver").symlink_to(driver)
    device = read_device("0000:1B:00.0", tmp_path)
    assert device is not None
    assert device.aer == {"aer_correctable": 4, "aer_nonfatal": 0}
    assert device.driver == "nvidia"


def test_hostile_files_are_no_facts(tmp_path: Path) -> None:
    garbage = {name: bytes(range(256)) * 4096 for name in GPU} | {
        "vendor": b"0x10de",
        "class": b"0x030200",
    }
    add(tmp_path, "0000:1b:00.0", garbage)
    facts = read_pcie(tmp_path)
    assert facts.nvidia is not None
    (gpu,) = facts.nvidia
    assert (gpu.pcie.generation, gpu.pcie.width, gpu.pcie.numa_node) == (None, None, None)


@pytest.mark.parametrize("address", ["../../../etc", "", "0000:1b", "1b:00.0", "0000:1b:00.0\0"])
def test_lookup_of_something_that_is_no_address(tmp_path: Path, address: str) -> None:
    add(tmp_path, "0000:1b:00.0", GPU)
    assert read_device(address, tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:10:1c", "0000:10:1c.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("0019:01:00.3", "0019:01:00.3"),
        ("\u0661:01:00.0", None),
        ("0000:1b:00.9", None),
    ],
)
def test_spellings_of_an_address(text: str, expected: str | None) -> None:
    assert bus_id(text) == expected
