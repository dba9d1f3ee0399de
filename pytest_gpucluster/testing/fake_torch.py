"""A stand-in for a CUDA build of PyTorch: what the readers see of it, and nothing more.

It has ``torch/version.py`` and an ``nvidia/nccl/lib/libnccl.so.2`` that tells its version. It
cannot compute: use it where no rank is started.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

NCCL_SOURCE = "int ncclGetVersion(int *version) { *version = %d; return 0; }\n"


def install_fake_torch(
    folder: Path, torch: str = "2.13.0+cu130", cuda: str | None = "13.0", nccl: int = 22907
) -> Path:
    """Create the stand-in in ``folder``, to be put first on ``PYTHONPATH``; returns it.

    ``nccl`` is NCCL's own number (22907 is 2.29.7); needs a C compiler for it, none if
    ``cuda`` is ``None`` (a CPU build).
    """
    package = folder / "torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(
        "raise ImportError('this torch is a stand-in for the readers; it cannot compute')\n"
    )
    (package / "version.py").write_text(f"__version__ = {torch!r}\ncuda = {cuda!r}\n")
    if cuda is not None:
        library = folder / "nvidia/nccl/lib/libnccl.so.2"
        library.parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=NCCL_SOURCE % nccl, text=True, check=True)
    return folder
