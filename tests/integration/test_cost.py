"""What the plugin costs a pytest run that does not use it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "pynvml", "msgspec", "jinja2", "jsonschema", "numpy", "filelock")
SHARE_OF_PYTEST = 0.10  # pytest takes some 100 ms to import where this must stay under 10 ms


def import_times(cache: Path) -> dict[str, tuple[int, int]]:
    """Module → (own, cumulative) microseconds, with the plugin loaded on top of pytest."""
    code = "import pytest, _pytest.main, _pytest.config; import pytest_gpucluster.plugin"
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env={**kept, "PYTHONPYCACHEPREFIX": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = re.findall(r"^import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)$", done.stderr, re.M)
    return {name: (int(own), int(total)) for own, total, name in lines}


def test_importing_the_plugin_is_nearly_free(tmp_path: Path) -> None:
    import_times(tmp_path)  # the first one compiles
    measured = [import_times(tmp_path) for _ in range(5)]
    for times in measured:
        assert not set(HEAVY) & set(times)
    ratios = sorted(
        sum(own for name, (own, _) in times.items() if name.startswith("pytest_gpucluster"))
        / times["pytest"][1]
        for times in measured
    )
    assert ratios[0] < SHARE_OF_PYTEST, ratios
