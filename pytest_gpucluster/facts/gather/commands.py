"""What is gathered from a live node: commands, each with its deadline and size limit."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import Literal

MB = 2**20
_LOG = "/var/log/fabricmanager.log"
# Administrators' tools, which a user's PATH often lacks.
_MORE_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
# The session's own sys.path, as for the live readers (see facts/collect.py).
_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from pytest_gpucluster.facts.gather.dump import main; sys.exit(main(sys.argv[1:3]))"
)


@dataclass(frozen=True)
class Command:
    """A file of the evidence and the command whose output it holds.

    ``kind``: the kind of evidence its reader knows, ``None`` for what only people read.
    ``keep``: which end of an output that is too long is worth more. ``needs``: a file
    without which the command is not run.
    """

    file: str
    argv: tuple[str, ...]
    kind: str | None = None
    deadline_s: float = 30.0
    max_bytes: int = 16 * MB
    keep: Literal["head", "tail"] = "head"
    needs: str | None = None

    @property
    def shown(self) -> str:
        """The command as a person would type it."""
        if self.argv[0] == sys.executable and self.argv[1:3] == ("-c", _BOOT):
            return f"python -m pytest_gpucluster.facts.gather.dump {self.argv[3]}"
        return " ".join(self.argv)


def _python(subject: str) -> tuple[str, ...]:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return (sys.executable, "-c", _BOOT, subject, str(os.getpid()), *path)


def commands() -> tuple[Command, ...]:
    """Everything that is run, the slow ones first.

    ``dcgmi diag -r 1`` is DCGM's quick software check; it does not load the GPUs. Errors of a
    command are part of its file, as they are evidence as well (``ibpanic`` of ibstat).
    """
    smi = "nvidia-smi"
    return (
        Command("dcgmi-diag.json", ("dcgmi", "diag", "-r", "1", "-j"), "dcgm", 180.0),
        Command("lspci.txt", ("lspci", "-vvv"), None, 60.0),
        Command("facts.json", _python("facts"), "saved_facts", 45.0),
        Command("nvidia-smi-q.xml", (smi, "-q", "-x"), "smi_xml", 60.0),
        Command("topo-m.txt", (smi, "topo", "-m"), "topo"),
        Command("topo-p2p-read.txt", (smi, "topo", "-p2p", "r"), "p2p_matrix"),
        Command("topo-p2p-write.txt", (smi, "topo", "-p2p", "w"), "p2p_matrix"),
        Command("topo-p2p-nvlink.txt", (smi, "topo", "-p2p", "n"), "p2p_matrix"),
        Command("nvlink-s.txt", (smi, "nvlink", "-s"), "nvlink"),
        Command("nvlink-e.txt", (smi, "nvlink", "-e"), "nvlink"),
        Command("dcgmi-nvlink.txt", ("dcgmi", "nvlink", "-s"), "dcgm"),
        Command("dmesg.txt", ("dmesg",), "kernel_log", keep="tail"),
        Command(
            "journal-kernel.txt",
            ("journalctl", "-k", "-b", "--no-pager", "-o", "short-iso", "-n", "200000"),
            "kernel_log",
            keep="tail",
        ),
        Command(
            "fabricmanager.log",
            ("tail", "-c", str(16 * MB), _LOG),
            "fabric",
            keep="tail",
            needs=_LOG,
        ),
        Command(
            "journal-fabricmanager.txt",
            ("journalctl", "-u", "nvidia-fabricmanager", "-b", "--no-pager", "-n", "20000"),
            "fabric",
            keep="tail",
            needs="/usr/bin/nv-fabricmanager",
        ),
        Command("ibstat.txt", ("ibstat",), "ib"),
        Command("ibv_devinfo.txt", ("ibv_devinfo",), "ib"),
        Command("ibdev2netdev.txt", ("ibdev2netdev",), "ib"),
        Command("sysfs-infiniband.txt", _python("infiniband"), "ib", needs="/sys/class/infiniband"),
        Command("environment.txt", _python("environment"), None),
        Command("nccl.conf", ("cat", "/etc/nccl.conf"), None, 10.0, MB, needs="/etc/nccl.conf"),
    )


def find(program: str) -> str | None:
    """The program's path, from PATH or where administrators' tools are."""
    search = os.pathsep.join((os.environ.get("PATH", ""), *_MORE_PATH))
    return shutil.which(program, path=search)
