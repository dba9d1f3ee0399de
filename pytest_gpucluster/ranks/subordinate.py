"""Makes a pytest session one that runs what it is told and reports to nobody but its leader."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpucluster.ranks.rank import RankStart

# What the leader's command line may ask for and a rank must not do a second time.
NEUTRAL_OPTIONS: dict[str, Any] = {
    "cacheclear": False,
    "collectonly": False,
    "deselect": None,
    "dist": "no",
    "durations": None,
    "failedfirst": False,
    "htmlpath": None,
    "keyword": "",
    "lf": False,
    "markexpr": "",
    "maxfail": 0,
    "newfirst": False,
    "numprocesses": 0,
    "report_log": None,
    "stepwise": False,
    "stepwise_skip": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}
DEBUGGER_OPTIONS = ("trace", "usepdb")
DEBUGGER = ("pytest_gpucluster.ranks.debugger", "TerminalPdb")
# Plugins whose work the leader does: one counts on being fed by xdist, the other would take
# the stacks of a dying rank away from the autopsy.
LEADER_ONLY = ("rerunfailures", "faulthandler")


def make_subordinate(config: pytest.Config, start: RankStart) -> None:
    """To be called before anything is configured."""
    for name, value in NEUTRAL_OPTIONS.items():
        if hasattr(config.option, name) and not (start.debug and name in DEBUGGER_OPTIONS):
            setattr(config.option, name, value)
    if start.debug:
        config.option.usepdb_cls = DEBUGGER
    config.option.basetemp = start.scratch
    for plugin in LEADER_ONLY:
        if config.pluginmanager.hasplugin(plugin):
            config.pluginmanager.unregister(name=plugin)
    # The convention by which plugins know that a session is not the one that reports.
    config.workerinput = {  # type: ignore[attr-defined]
        "workerid": f"rank{start.rank}",
        "testrunuid": os.environ.get("PYTEST_XDIST_TESTRUNUID", "gpucluster"),
        "mainargv": list(start.arguments),
        # pytest-cov: this worker runs where the session runs, and saves into its folder.
        "cov_master_host": socket.gethostname(),
        "cov_master_topdir": str(Path.cwd()),
    }
    config.workeroutput = {}  # type: ignore[attr-defined]


def spare_the_log_capture() -> None:
    """Let torch's loggers pass their records up to the root logger.

    pytest attaches its handlers to each logger that does not, in every phase of every test:
    torch has 43 of them, and attaching took a quarter of a rank's time per test.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.propagate = True
