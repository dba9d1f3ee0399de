"""Versions of what is installed, found without importing torch and without CUDA."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_gpucluster.facts.elf import needed_libraries
from pytest_gpucluster.facts.model import Software, Unreadable
from pytest_gpucluster.facts.sysfs import printable, read_bytes, read_line, read_text

_DRIVER = re.compile(r"Kernel Module(?: for \S{1,20})?\s+([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})\b", re.A)
_VERSION = re.compile(r"\b([0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,4}){0,2})\b", re.ASCII)
_FABRIC_MANAGER_DEADLINE_S = 2.0


@dataclass(frozen=True)
class SoftwareFacts:
    """Versions except NVML's; ``driver`` is that of the loaded kernel module."""

    software: Software
    unreadable: tuple[Unreadable, ...] = ()


def read_software(root: Path = Path("/")) -> SoftwareFacts:
    """Python, torch, both NCCLs, fabric manager, kernel module, kernel and distribution.

    What is not installed is ``None``; what is there and cannot be understood is an
    `Unreadable` as well.
    """
    problems: list[Unreadable] = []
    system_nccl = _system_nccl()  # before torch's: both answer to the name libnccl.so.2
    torch_folder = _torch_folder(problems)
    torch = cuda = nccl = None
    if torch_folder is not None:
        torch, cuda = torch_versions(torch_folder, problems)
        if cuda is not None:
            nccl = _torch_nccl(torch_folder, system_nccl, problems)
    software = Software(
        python=".".join(map(str, sys.version_info[:3])),
        driver=kernel_module_version(root),
        torch=torch,
        torch_cuda=cuda,
        torch_nccl=nccl,
        system_nccl=system_nccl,
        fabric_manager=_fabric_manager(problems),
        kernel=read_line(root / "proc/sys/kernel/osrelease"),
        os=_distribution(root),
    )
    return SoftwareFacts(software, tuple(problems))


def kernel_module_version(root: Path = Path("/")) -> str | None:
    """The loaded NVIDIA kernel module's version, ``None`` if there is none."""
    match = _DRIVER.search(read_text(root / "proc/driver/nvidia/version") or "")
    return match[1] if match else None


def torch_versions(
    folder: Path, problems: list[Unreadable] | None = None
) -> tuple[str | None, str | None]:
    """(version, CUDA version or ``None`` for a build without it) out of ``torch/version.py``."""
    problems = [] if problems is None else problems
    try:
        tree = ast.parse(read_bytes(folder / "version.py", 2**20))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = f"{folder}/version.py cannot be understood: {error}. Install torch again."
        problems.append(Unreadable("torch", printable(reason)))
        return None, None
    values: dict[str, str] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            values |= {
                target.id: printable(value.value, 100)
                for target in targets
                if isinstance(target, ast.Name)
            }
    if "__version__" not in values:
        reason = f"{folder}/version.py names no version. Install torch again."
        problems.append(Unreadable("torch", printable(reason)))
    return values.get("__version__"), values.get("cuda")


def nccl_version(code: int) -> str:
    """``ncclGetVersion``'s number as text: 21805 is 2.18.5, and 2708, from before 2.9, 2.7.8.

    NVIDIA/nccl: src/nccl.h.in, NCCL_VERSION.
    """
    thousands = 10_000 if code >= 10_000 else 1_000
    return f"{code // thousands}.{code % thousands // 100}.{code % 100}"


def ask_nccl(library: str) -> str | None:
    """The version a NCCL library gives itself; ``None`` if it cannot be loaded or asked.

    Creates no CUDA context. The library stays loaded: call this in a process of its own.
    """
    import ctypes

    try:
        answer = ctypes.c_int(0)
        status = ctypes.CDLL(library, mode=os.RTLD_LOCAL | os.RTLD_NOW).ncclGetVersion(
            ctypes.byref(answer)
        )
    except (OSError, AttributeError):
        return None
    return nccl_version(answer.value) if status == 0 and answer.value > 0 else None


def _system_nccl() -> str | None:
    # The loader's own search: LD_LIBRARY_PATH, then what ldconfig knows.
    return ask_nccl("libnccl.so.2")


def _torch_folder(problems: list[Unreadable]) -> Path | None:
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError, AttributeError) as error:
        problems.append(Unreadable("torch", printable(f"cannot be found: {error}")))
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if spec is not None and spec.origin is None:  # a folder named torch, not the package
        return None
    return Path(locations[0]) if locations else None


def _torch_nccl(torch: Path, system: str | None, problems: list[Unreadable]) -> str | None:
    """Torch's NCCL: of its own package, of the environment (conda) or of the system."""
    library = _bundled_nccl(torch)
    if library is not None:
        version = ask_nccl(str(library)) or _packaged_nccl()
        if version is None:
            reason = f"{library} does not load. Run `ldd {library}`, or install torch again."
            problems.append(Unreadable("torch nccl", printable(reason)))
        return version
    needed = needed_libraries(torch / "lib/libtorch_cuda.so") or ()
    if any(name.startswith("libnccl.so") for name in needed):
        version = ask_nccl(str(Path(sys.prefix) / "lib/libnccl.so.2")) or system
        problem = "torch asks for libnccl.so.2 and the loader finds none. Install NCCL"
    else:
        version = None
        problem = f"no libnccl.so.2 next to {torch}: it may be linked into torch"
    if version is None:
        ask = "python -c 'import torch; print(torch.cuda.nccl.version())'"
        problems.append(Unreadable("torch nccl", printable(f"{problem}. Check with `{ask}`.")))
    return version


def _bundled_nccl(torch: Path) -> Path | None:
    # Beside torch by its run path, else anywhere on the module path, where torch preloads it.
    places = [torch.parent, *(Path(entry) for entry in sys.path if entry)]
    found = (path for place in places for path in place.glob("nvidia/*/lib/libnccl.so.2"))
    inside = torch / "lib/libnccl.so.2"
    return next(found, inside if inside.exists() else None)


def _packaged_nccl() -> str | None:
    from importlib import metadata

    for cuda in ("13", "12", "11"):
        try:
            return printable(metadata.version(f"nvidia-nccl-cu{cuda}"), 100)
        except metadata.PackageNotFoundError:
            continue
    return None


def _fabric_manager(problems: list[Unreadable]) -> str | None:
    import shutil

    program = shutil.which("nv-fabricmanager")
    if program is None:
        return None
    import subprocess

    try:
        answer = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_FABRIC_MANAGER_DEADLINE_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        problems.append(Unreadable("fabric manager", printable(f"its version: {error}")))
        return None
    match = _VERSION.search(answer[:65536].decode("utf-8", "replace"))
    if match is None:
        reason = f"`{program} --version` printed no version"
        problems.append(Unreadable("fabric manager", printable(reason)))
        return None
    return match[1]


def _distribution(root: Path) -> str | None:
    text = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release") or ""
    match = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]{1,200})", text, re.MULTILINE)
    return printable(match[1].strip()) or None if match else None
