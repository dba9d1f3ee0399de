"""Run as a child: one subject of this node as text on standard output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from pytest_gpucluster.facts.sysfs import names_in, pci_ancestor, printable, read_line

SUBJECTS = ("facts", "infiniband", "environment")
_PORT_FILES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
_DEVICE_FILES = ("fw_ver", "hca_type", "board_id")
_COUNTERS = ("counters", "hw_counters")
_MAX_PORTS = 64


def main(arguments: list[str]) -> int:
    """Print one of `SUBJECTS`; a second argument is the parent to die with."""
    if not arguments or arguments[0] not in SUBJECTS:
        given = arguments[0] if arguments else "nothing"
        sys.stderr.write(f"{given}: unknown subject. Choose from {', '.join(SUBJECTS)}.\n")
        return 2
    if len(arguments) > 1 and not _die_with(int(arguments[1])):
        return 3
    if arguments[0] == "facts":
        from pytest_gpucluster.facts.collect import collect
        from pytest_gpucluster.facts.model import to_json

        sys.stdout.buffer.write(to_json(collect(deadline_s=30.0)) + b"\n")
    elif arguments[0] == "environment":
        from pytest_gpucluster.facts.host import communication_variables

        for name, value in communication_variables(os.environ).items():
            sys.stdout.write(f"{name}={value}\n")
    else:
        for line in infiniband():
            sys.stdout.write(f"{line}\n")
    return 0


def infiniband(root: Path = Path("/")) -> Iterator[str]:
    """``path: value`` for all that says how RDMA ports are, with their PCI addresses.

    A file that cannot be read is named with its error, as ``cat`` would.
    """
    base = root / "sys/class/infiniband"
    for device in names_in(base) or ():
        address = pci_ancestor(base / device)
        shown = f"/sys/bus/pci/devices/{address}" if address else "/sys/class"
        name = f"{shown}/infiniband/{printable(device)}"
        for file in _DEVICE_FILES:
            value = read_line(base / device / file)
            if value is not None:
                yield f"{name}/{file}: {value}"
        ports = base / device / "ports"
        numbers = names_in(ports)
        if not numbers:
            yield f"cat: /sys/class/infiniband/{printable(device)}/ports: No such file or directory"
        for number in (numbers or ())[:_MAX_PORTS]:
            yield from _port(ports / number, f"{name}/ports/{printable(number)}")


def _port(port: Path, name: str) -> Iterator[str]:
    for file in _PORT_FILES:
        value = read_line(port / file)
        if value is not None:
            yield f"{name}/{file}: {value}"
    for folder in _COUNTERS:
        for counter in names_in(port / folder) or ():
            value = read_line(port / folder / counter)
            if value is not None:
                yield f"{name}/{folder}/{printable(counter)}: {value}"


def _die_with(parent: int) -> bool:
    """Have the kernel kill this process when ``parent`` ends; ``False`` if it already has."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1 = PR_SET_PDEATHSIG
    return os.getppid() == parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
