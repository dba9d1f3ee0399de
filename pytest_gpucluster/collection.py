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
LEVEL_MARK = "gpucluster_level(name): the lowest level that includes the check"
OWN_PACKAGE = "pytest_gpucluster"
OWN_FIXTURES = frozenset(
    {
        "findings",
        "gpucluster_settings",
        "node_expectations",
        "node_facts",
        "node_gpus",
        "node_hardware",
        "node_profile",
        "process_group",
    }
)
NAMED = pytest.StashKey[list[str]]()


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


def take_named_checks(config: pytest.Config) -> None:
    """Keep the built-in ids among the arguments for ourselves: pytest knows no such files."""
    config.stash[NAMED] = [a for a in config.args if a.startswith(PREFIX)]
    config.args[:] = [a for a in config.args if not a.startswith(PREFIX)]


def collect_checks(session: pytest.Session) -> list[pytest.Item]:
    """The built-in checks, or those that the command line names.

    They hang below the session itself. Handed to pytest as paths they would drag in every
    conftest.py above the installed package, and vanish where the package lies below a folder
    that is collected anyway (a virtual environment in the project).
    Raises `pytest.UsageError` for an id that names nothing.
    """
    modules = (
        CheckModule.from_parent(session, path=path, nodeid=PREFIX + path.name)
        for path in check_files()
    )
    items = [item for module in modules for item in session.genitems(module)]
    named = session.config.stash[NAMED]
    for wanted in named:
        if not any(_names(wanted, item) for item in items):
            raise pytest.UsageError(
                f"{wanted}: no such built-in check. pytest --gpucluster --collect-only -q lists "
                "them."
            )
    return [item for item in items if not named or any(_names(wanted, item) for wanted in named)]


def _names(wanted: str, item: pytest.Item) -> bool:
    """Whether an argument is an item's id, or that of its module or unparametrised function."""
    rest = item.nodeid.removeprefix(wanted.rstrip("/"))
    return rest != item.nodeid and (not rest or rest[0] in "/:[")


def names_builtin(config: pytest.Config) -> bool:
    """Whether the command line names built-in checks: those run whatever their level."""
    return bool(config.stash.get(NAMED, []))


def refuse_impostor(item: pytest.Item) -> None:
    """A user's test must not bear a built-in id; raises `pytest.UsageError`."""
    if is_builtin(item.nodeid) and item.getparent(CheckModule) is None:
        raise pytest.UsageError(
            f"{item.nodeid} of {item.path} has the id of a built-in check. Rename the folder "
            f"{PREFIX} or start pytest elsewhere."
        )


def refuse_other_fixtures(item: pytest.Item) -> None:
    """A conftest.py must not replace what a built-in check asks for; raises `pytest.UsageError`.

    pytest has no public way to say where a fixture comes from.
    """
    if not is_builtin(item.nodeid):
        return
    for name, definitions in item._fixtureinfo.name2fixturedefs.items():  # type: ignore[attr-defined]
        origin = definitions[-1].func.__module__
        overridden = len({d.func.__module__ for d in definitions}) > 1
        if name in OWN_FIXTURES and (overridden or not origin.startswith(OWN_PACKAGE)):
            raise pytest.UsageError(
                f"{item.nodeid}: the fixture {name} is replaced by {origin}. An acceptance needs "
                "the plugin's own: rename yours."
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
