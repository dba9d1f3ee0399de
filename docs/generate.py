"""Write docs/checks.md from the built-in checks' own docstrings: ``python docs/generate.py``."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

from pytest_gpucluster.collection import PREFIX, check_files, level_by_check

TARGET = Path(__file__).parent / "checks.md"
HEAD = """# Built-in checks

Generated from the checks' docstrings by `python docs/generate.py`. Run one by its id:
`pytest --gpucluster gpucluster/test_nvlink.py::test_links_up`.
"""


def render() -> str:
    """The page as Markdown."""
    levels = level_by_check()
    parts = [HEAD]
    for path in check_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts.append(f"## {path.stem.removeprefix('test_')}\n\n{ast.get_docstring(tree)}\n")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                check = f"{PREFIX}{path.name}::{node.name}"
                text = inspect.cleandoc(ast.get_docstring(node) or "")
                parts.append(f"### `{check}`\n\nLevel: {levels[check]}.\n\n{text}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}: {len(level_by_check())} checks\n")
