"""A fake ``libnvidia-ml.so.1``, driven by a description file (``FAKE_NVML``).

NVIDIA's own binding loads it through ``LD_LIBRARY_PATH``. A key that the description lacks is
answered "not supported", as parts without the feature do.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"


class NoCompiler(RuntimeError):
    """The machine has no C compiler."""


def build(directory: Path) -> Path:
    """Compile the library into a folder below ``directory``; returns that folder.

    Sources that have not changed are compiled once; several processes may call this at a time.
    """
    files = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
    folder = directory / f"fake-nvml-{digest}"
    library = folder / LIBRARY
    if library.exists():
        return folder
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler(
            "The fake NVML library needs a C compiler (cc, gcc or clang): install one."
        )
    folder.mkdir(parents=True, exist_ok=True)
    code = [str(path) for path in files if path.suffix == ".c"]
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        output = Path(unfinished) / LIBRARY
        options = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{LIBRARY}"]
        subprocess.run([compiler, *options, *code, "-o", str(output)], check=True)
        output.replace(library)
    return folder
