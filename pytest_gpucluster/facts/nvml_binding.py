"""Which Python package provides the module ``pynvml``, and whether it is NVIDIA's."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path

NVIDIAS = "nvidia-ml-py"
REINSTALL = f"pip uninstall pynvml; pip install --force-reinstall {NVIDIAS}"


def find_binding() -> tuple[str | None, str | None, Path | None]:
    """NVIDIA's binding as ``"nvidia-ml-py 13.615.71"``, what is wrong with it, and its file.

    Up to version 11 the package ``pynvml`` brought an old copy of the binding, as a folder that
    Python prefers to NVIDIA's ``pynvml.py``; later ones only depend on NVIDIA's.
    """
    loaded = _module_file()
    try:
        nvidias = metadata.distribution(NVIDIAS)
    except metadata.PackageNotFoundError:
        if loaded is None:
            return None, None, None
        problem = f"{loaded} is not NVIDIA's: {NVIDIAS} is not installed; {REINSTALL}"
        return None, problem, None
    name = f"{NVIDIAS} {nvidias.version}"
    own = Path(str(nvidias.locate_file("pynvml.py")))
    if not own.is_file():
        return name, f"{NVIDIAS} is damaged, {own} is missing; {REINSTALL}", None
    if loaded is not None and loaded.resolve() == own.resolve():
        return name, None, own
    return name, f"{_shadow(loaded)} hides {own}; {REINSTALL}", own


def load_binding(own: Path) -> None:
    """Make ``import pynvml`` NVIDIA's, whatever hides it; raises what the module raises."""
    present = sys.modules.get("pynvml")
    if present is not None and Path(str(present.__file__)).resolve() == own.resolve():
        return
    spec = importlib.util.spec_from_file_location("pynvml", own)
    if spec is None or spec.loader is None:
        raise ImportError(f"{own} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pynvml"] = module  # it looks for itself there while it loads
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["pynvml"]
        raise


def _shadow(loaded: Path | None) -> str:
    try:
        old = f"pynvml {metadata.version('pynvml')}"
    except metadata.PackageNotFoundError:
        old = "another module"
    return f"{old} ({loaded})"


def _module_file() -> Path | None:
    try:
        spec = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None
