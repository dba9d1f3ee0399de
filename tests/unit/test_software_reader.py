"""Versions found without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpucluster.facts import software
from pytest_gpucluster.facts.elf import needed_libraries
from pytest_gpucluster.facts.model import Unreadable, from_json, to_json
from pytest_gpucluster.facts.software import (
    SoftwareFacts,
    ask_nccl,
    kernel_module_version,
    nccl_version,
    read_software,
    torch_versions,
)


def install_torch(site: Path, version_py: str | bytes = "") -> Path:
    """A package that must never be imported: it fails when it is."""
    folder = site / "torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    content = version_py.encode() if isinstance(version_py, str) else version_py
    (folder / "version.py").write_bytes(content)
    return folder


def build_nccl(library: Path, number: int) -> None:
    """A library that answers as NCCL does."""
    library.parent.mkdir(parents=True, exist_ok=True)
    source = f"int ncclGetVersion(int *v) {{ *v = {number}; return 0; }}"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-xc", "-", "-o", str(library)]
    subprocess.run(command, input=source.encode(), check=True)


def read_with(site: Path, **environment: str) -> SoftwareFacts:
    """Read in a process of its own, as the collector does, with ``site`` in front."""
    program = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from pytest_gpucluster.facts.reader import main; main(['software'])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ | environment
    )
    assert answer.returncode == 0
    return from_json(answer.stdout, SoftwareFacts)


VERSION_PY = """
from typing import Optional
__all__ = ['__version__', 'cuda']
__version__ = '2.9.1+cu130'
debug = False
cuda: Optional[str] = '13.0'
hip: Optional[str] = None
"""


@pytest.mark.parametrize(
    "place",
    ["nvidia/nccl/lib/libnccl.so.2", "nvidia/cu13/lib/libnccl.so.2", "torch/lib/libnccl.so.2"],
)
def test_both_nccls_are_told_apart(tmp_path: Path, place: str) -> None:
    install_torch(tmp_path / "site", VERSION_PY)
    build_nccl(tmp_path / "site" / place, 22907)
    build_nccl(tmp_path / "system/libnccl.so.2", 2708)
    facts = read_with(tmp_path / "site", LD_LIBRARY_PATH=str(tmp_path / "system"))
    assert facts.unreadable == ()
    found = facts.software
    assert (found.torch, found.torch_cuda) == ("2.9.1+cu130", "13.0")
    assert (found.torch_nccl, found.system_nccl) == ("2.29.7", "2.7.8")


def test_cuda_torch_without_nccl_beside_it_is_said_to_be_so(tmp_path: Path) -> None:
    install_torch(tmp_path / "site", VERSION_PY)
    facts = read_with(tmp_path / "site")
    assert facts.software.torch_nccl is None
    (problem,) = facts.unreadable
    assert problem.subject == "torch nccl"
    assert "torch.cuda.nccl.version" in problem.reason


@pytest.mark.parametrize("installed", [True, False])
def test_torch_that_asks_for_the_system_nccl(tmp_path: Path, installed: bool) -> None:
    torch = install_torch(tmp_path / "site", VERSION_PY)
    nccl = tmp_path / "system/libnccl.so.2"
    build_nccl(nccl, 22809)
    (torch / "lib").mkdir()
    library = torch / "lib/libtorch_cuda.so"
    link = ["cc", "-shared", "-xc", "/dev/null", "-Wl,--no-as-needed", "-xnone", str(nccl)]
    # Addresses apart from file offsets, as in libraries whose run path was patched.
    subprocess.run([*link, "-Wl,-Ttext-segment=0x400000", "-o", str(library)], check=True)
    assert needed_libraries(library) == ("libnccl.so.2", "libc.so.6")
    if not installed:
        nccl.unlink()
    facts = read_with(tmp_path / "site", LD_LIBRARY_PATH=str(tmp_path / "system"))
    if installed:
        assert facts.unreadable == ()
        assert facts.software.torch_nccl == facts.software.system_nccl == "2.28.9"
    else:
        assert facts.software.torch_nccl is None
        assert "the loader finds none" in facts.unreadable[0].reason


def test_files_that_are_no_elf(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    assert needed_libraries(library) is None
    build_nccl(library, 1)
    whole = library.read_bytes()
    for content in (b"", b"\x7fELF", b"MZ" * 500, whole[:64] + b"\xff" * 4000, whole[:700]):
        library.write_bytes(content)
        assert needed_libraries(library) in (None, ())


def test_nccl_that_does_not_load(tmp_path: Path) -> None:
    install_torch(tmp_path / "site", VERSION_PY)
    library = tmp_path / "site/nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF garbage")
    facts = read_with(tmp_path / "site")
    assert facts.software.torch_nccl is None
    assert [problem.subject for problem in facts.unreadable] == ["torch nccl"]


def test_cpu_build_has_no_nccl_and_that_is_no_problem(tmp_path: Path) -> None:
    install_torch(tmp_path / "site", "__version__ = '2.13.0+cpu'\ncuda = None\n")
    build_nccl(tmp_path / "site/nvidia/nccl/lib/libnccl.so.2", 22907)
    facts = read_with(tmp_path / "site")
    assert facts.unreadable == ()
    assert (facts.software.torch, facts.software.torch_nccl) == ("2.13.0+cpu", None)


def test_folder_named_torch_is_not_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    program = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n"
        "sys.path[1:] = [p for p in sys.path[1:] if 'site-packages' not in p]\n"
        "from pathlib import Path\n"
        "from pytest_gpucluster.facts import software\n"
        "print(software._torch_folder([]))"
    )
    root = Path(software.__file__).parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        check=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert answer.stdout == b"None\n"


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff\xfe", b"__version__ = ", b"__version__ = 3", b"(" * 5000, b"import torch"],
)
def test_version_file_that_cannot_be_understood(tmp_path: Path, content: bytes) -> None:
    problems: list[Unreadable] = []
    assert torch_versions(install_torch(tmp_path, content), problems) == (None, None)
    assert [problem.subject for problem in problems] == ["torch"]


def test_version_file_is_never_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    content = f"open({str(marker)!r}, 'w')\n__version__ = '1.13.1+cu117'\ncuda = '11.7'\n"
    assert torch_versions(install_torch(tmp_path, content)) == ("1.13.1+cu117", "11.7")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("code", "text"),
    [(22907, "2.29.7"), (21805, "2.18.5"), (20900, "2.9.0"), (2804, "2.8.4"), (2708, "2.7.8")],
)
def test_nccl_numbers(code: int, text: str) -> None:
    assert nccl_version(code) == text


def test_nothing_to_ask(tmp_path: Path) -> None:
    assert ask_nccl(str(tmp_path / "libnccl.so.2")) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
            "570.158.01",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  Release",
            "580.65.06",
        ),
        ("\x00\xff", None),
    ],
)
def test_kernel_module(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{text}\nGCC version: gcc 12.2.0\n")
    assert kernel_module_version(tmp_path) == version


@pytest.mark.parametrize(
    ("script", "version", "problems"),
    [
        ("echo 'Fabric Manager version is : 570.158.01'", "570.158.01", []),
        ("echo nonsense", None, ["fabric manager"]),
        ("exec sleep 60", None, ["fabric manager"]),
    ],
)
def test_fabric_manager(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    version: str | None,
    problems: list[str],
) -> None:
    program = tmp_path / "nv-fabricmanager"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(software, "_FABRIC_MANAGER_DEADLINE_S", 0.5)
    found: list[Unreadable] = []
    assert software._fabric_manager(found) == version
    assert [problem.subject for problem in found] == problems


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n', "Ubuntu 24.04.1 LTS"),
        ("PRETTY_NAME=Alpine\n", "Alpine"),
        ("NAME=x\n", None),
        ("PRETTY_NAME=\x1b[2Jx\n", "\ufffd[2Jx"),
    ],
)
def test_distribution_and_kernel(tmp_path: Path, text: str, name: str | None) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(text)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0-nvidia\n")
    facts = read_software(tmp_path)
    assert (facts.software.os, facts.software.kernel) == (name, "6.8.0-nvidia")
    assert facts.software.driver is None
    to_json(facts)


def test_this_process_did_not_import_torch_for_it() -> None:
    program = (
        "import sys; from pytest_gpucluster.facts.software import read_software\n"
        "facts = read_software(); print(facts.software.torch, 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    version, imported = answer.stdout.decode().split()
    assert version[0].isdigit()
    assert imported == "False"
