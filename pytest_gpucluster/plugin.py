"""pytest entry point: wires the parts to pytest's hooks.

Importing this module must stay nearly free: runs that do not use the plugin pay for it.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import acceptance, collection, options, usage
from pytest_gpucluster.acceptance import ACCEPTANCE, WORKER_INPUT, Acceptance
from pytest_gpucluster.fixtures import (  # noqa: F401 - pytest finds fixtures by name
    FINDINGS,
    findings,
    gpucluster_settings,
    node_expectations,
    node_facts,
    node_gpus,
    node_hardware,
    node_profile,
    process_group,
    tmp_path_shared,
)

if TYPE_CHECKING:
    from pytest_gpucluster.distributed.engine import Engine

pytest.register_assert_rewrite("pytest_gpucluster.checks")

ENGINE: pytest.StashKey[Engine] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    describe = bool(getattr(config.option, "markers", False))
    for line in _mark_descriptions() if describe else usage.MARKS:
        config.addinivalue_line("markers", line)
    if config.option.help or config.option.version or describe:
        config.stash[ACCEPTANCE] = Acceptance(options.defaults())
        return  # help must work whatever the settings say
    settings = options.resolve(config)
    payload = acceptance.handed_over(config)
    run = Acceptance(settings, payload, judges=not hasattr(config, "workerinput"))
    config.stash[ACCEPTANCE] = run
    if not run.enabled:
        return
    collection.take_named_checks(config)
    if run.judges and not config.option.collectonly:
        from pytest_gpucluster.session import Session

        session = Session(config, run)
        if config.pluginmanager.register(session, "gpucluster-session") is None:
            raise pytest.UsageError("-p no:gpucluster-session leaves nobody to judge. Drop it.")
        if config.pluginmanager.hasplugin("html"):
            from pytest_gpucluster.html_hooks import HtmlHooks

            config.pluginmanager.register(HtmlHooks(session), "gpucluster-html")


def _mark_descriptions() -> list[str]:
    """What ``pytest --markers`` prints."""
    from pytest_gpucluster import requirements
    from pytest_gpucluster.distributed.mark import MARK

    return [MARK, collection.LEVEL_MARK, *requirements.mark_lines()]


def pytest_unconfigure(config: pytest.Config) -> None:
    engine = config.stash.get(ENGINE, None)
    if engine is not None:
        engine.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: hand the facts to each worker, so that the node is read once."""
    run = acceptance.of(node.config)
    if run.enabled:
        node.workerinput[WORKER_INPUT] = run.hand_over()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """The checks are added by `pytest_collection_modifyitems`, never found by walking."""
    return True if collection_path == collection.CHECKS else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if usage.is_distributed(metafunc):
        from pytest_gpucluster.distributed.mark import parametrise

        parametrise(metafunc)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Add the built-in checks before anybody selects among the items."""
    run = acceptance.of(config)
    if run.enabled:
        items[:0] = collection.collect_checks(session)
    for item in items:
        collection.refuse_impostor(item)
        collection.refuse_other_fixtures(item)
        if usage.is_marked(item) or usage.is_distributed(item):
            _prepare(item)
    named = collection.names_builtin(config)
    above = [item for item in items if collection.above_level(item, run.settings, named)]
    if above:
        config.hook.pytest_deselected(items=above)
        items[:] = [item for item in items if item not in set(above)]
    return (yield)


def _prepare(item: pytest.Item) -> None:
    """Check the marks of a test of ours, and have an engine for it."""
    from pytest_gpucluster import requirements
    from pytest_gpucluster.distributed.engine import Engine
    from pytest_gpucluster.distributed.mark import parse_mark

    requirements.validate(item)
    parse_mark(item.get_closest_marker("distributed"), item.nodeid)
    if ENGINE not in item.config.stash:
        item.config.stash[ENGINE] = Engine(item.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Take over distributed tests, except on the ranks themselves."""
    if not usage.is_distributed(item) or acceptance.on_rank(item.config):
        return None
    from pytest_gpucluster.distributed.run import run

    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in run(item, nextitem, item.config.stash[ENGINE]):
        for report in attempt:
            hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, bool, bool]:
    """End the ranks before coverage is combined and reports are written."""
    try:
        return (yield)
    finally:
        engine = session.config.stash.get(ENGINE, None)
        if engine is not None:
            engine.stop()


def pytest_report_teststatus(
    report: pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """With ``-v``: how long the fastest and the slowest rank took."""
    spread = getattr(report, "gpucluster_spread", None)
    if spread is None or report.when != "call" or not report.passed or config.option.verbose < 1:
        return None
    if hasattr(report, "wasxfail"):
        return None
    ranks, shortest, longest = spread
    return "passed", ".", f"PASSED ({ranks} ranks, {shortest:.2f}-{longest:.2f} s)"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if usage.is_marked(item) and not acceptance.on_rank(item.config):
        from pytest_gpucluster import requirements

        requirements.enforce(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A test is as red as its findings, whatever its own code did."""
    yield
    recorder = item.stash.get(FINDINGS, None)
    if recorder is None:
        return
    if recorder.failures:
        pytest.fail(recorder.describe_failures(), pytrace=False)
    if recorder.not_verified:
        pytest.skip("unverified: " + "; ".join(recorder.not_verified))
