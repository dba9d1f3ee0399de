"""pytest-rerunfailures for tests on ranks.

That plugin runs a test in its own process, which has no ranks. So its settings are read here
and the test is run again on new ranks. Built-in checks are never run again: a fault that does
not show every time is a fault.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import pytest

from pytest_gpucluster.collection import is_builtin


def attempts(item: pytest.Item) -> int:
    """How often a failing test may be run in all."""
    plugin = _plugin(item)
    if plugin is None or is_builtin(item.nodeid):
        return 1
    condition = plugin.get_reruns_condition(item)
    return 1 + (int(plugin.get_reruns_count(item) or 0) if condition else 0)


def mark_rerun(item: pytest.Item, reports: Iterable[pytest.TestReport], attempt: int) -> bool:
    """Turn a failed attempt's reports into pytest-rerunfailures' own ``rerun``.

    False if the failure is not one that may be tried again.
    """
    failed = [report for report in reports if report.failed and not hasattr(report, "wasxfail")]
    if not failed or not _may_pass(item, failed[0].longreprtext):
        return False
    for report in failed:
        report.outcome = "rerun"  # type: ignore[assignment]
        report.rerun = attempt  # type: ignore[attr-defined]
    plugin = _plugin(item)
    if plugin is not None:
        time.sleep(float(plugin.get_reruns_delay(item)))
    return True


def _may_pass(item: pytest.Item, text: str) -> bool:
    """``--only-rerun`` and ``--rerun-except``, matched against what the ranks said."""
    option = item.config.option
    only, never = getattr(option, "only_rerun", None), getattr(option, "rerun_except", None)
    if only and not any(re.search(pattern, text) for pattern in only):
        return False
    return not (never and any(re.search(pattern, text) for pattern in never))


def _plugin(item: pytest.Item) -> Any:
    return item.config.pluginmanager.getplugin("rerunfailures")
