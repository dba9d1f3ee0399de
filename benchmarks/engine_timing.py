"""A pytest plugin for engine.py: reads the leading session's clocks when a test starts."""

from __future__ import annotations

import pytest
from engine_sampling import Clocks


class Stopwatch:
    """Only in the session that leads."""

    def __init__(self) -> None:
        self._clocks = Clocks()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._clocks.read()

    def pytest_sessionfinish(self) -> None:
        self._clocks.write()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(), "benchmark-stopwatch")
