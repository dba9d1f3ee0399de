"""The built-in checks: collected from the package, under ids that never change.

An id is ``gpucluster/test_nvlink.py::test_links_up`` wherever pytest is started and
wherever the package lies.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from pytest_gpucluster.options import LEVELS, Settings

PREFIX = "gpucluster/"
CHECKS = Path(__file__).parent / "checks"
NAMED = pytest.StashKey[bool]()


class CheckModule(pytest.Module):
    """A built-in check file. The user's naming rules (``python_functions``) do not apply."""

    def funcnamefilter(self, name: str) -> bool:
        return name.startswith("test_")

    def classnamefilter(self, name: str) -> bool:
        return False


@cache
def check_files() -> list[Path]:
    """The files under ``checks/`` in a fixed order: what only reads comes before what loads."""
    return sorted(CHECKS.glob("test_*.py"), key=lambda path: (_rank_of_level(path), path.name))


def _rank_of_level(path: Path) -> int:
    return LEVELS.index(_module_level(ast.parse(path.read_text(encoding="utf-8"))))


def add_checks(config: pytest.Config) -> None:
    """Put the built-in checks in front of what the user asked to run.

    A user who names built-in ids (``gpucluster/test_nvlink.py::test_links_up``) gets those
    and no others.
    """
    config.stash[NAMED] = named = any(argument.startswith(PREFIX) for argument in config.args)
    translated = [
        str(CHECKS / argument.removeprefix(PREFIX)) if argument.startswith(PREFIX) else argument
        for argument in config.args
    ]
    builtin = [] if named else [str(path) for path in check_files()]
    config.args[:] = builtin + translated


def names_builtin(config: pytest.Config) -> bool:
    """Whether the command line names built-in checks: those run whatever their level."""
    return config.stash.get(NAMED, False)


def make_module(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """A `CheckModule` for files of ours, ``None`` for everybody else's."""
    if module_path.parent != CHECKS:
        return None
    nodeid = PREFIX + module_path.name
    module = CheckModule.from_parent(parent, path=module_path, nodeid=nodeid)
    assert isinstance(module, pytest.Module)
    return module


def refuse_impostor(item: pytest.Item) -> None:
    """A user's test must not bear a built-in id; raises `pytest.UsageError`."""
    if is_builtin(item.nodeid) and item.getparent(CheckModule) is None:
        raise pytest.UsageError(
            f"{item.nodeid} of {item.path} has the id of a built-in check. Rename the folder "
            f"{PREFIX} or start pytest elsewhere."
        )


def is_builtin(nodeid: str) -> bool:
    """Whether a node id names a built-in check."""
    return nodeid.startswith(PREFIX)


def above_level(item: pytest.Item, settings: Settings, named: bool) -> bool:
    """Whether a built-in check belongs to a higher level than the chosen one."""
    if named or not is_builtin(item.nodeid):
        return False
    mark = item.get_closest_marker("gpucluster_level")
    return mark is not None and not settings.level_includes(mark.args[0])


@cache
def level_by_check() -> dict[str, str]:
    """Every built-in check id and its level, read from the sources without running them."""
    levels = {}
    for path in check_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module_level = _module_level(tree)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                level = next(filter(None, map(_level_of, node.decorator_list)), module_level)
                levels[f"{PREFIX}{path.name}::{node.name}"] = level
    return levels


def required_checks(settings: Settings) -> list[str]:
    """Ids of the built-in checks that belong to the chosen level."""
    return [check for check, level in level_by_check().items() if settings.level_includes(level)]


def _module_level(tree: ast.Module) -> str:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            marks = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            return next(filter(None, map(_level_of, marks)), "inventory")
    return "inventory"


def _level_of(node: ast.expr) -> str | None:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "gpucluster_level"
        and isinstance(node.args[0], ast.Constant)
    ):
        return str(node.args[0].value)
    return None
