"""Runs a session's distributed tests on their ranks and keeps the evidence."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.acceptance import of
from pytest_gpucluster.collection import is_builtin
from pytest_gpucluster.distributed import evidence
from pytest_gpucluster.distributed.specify import specify, visible_gpus
from pytest_gpucluster.ranks.group import GroupSpec
from pytest_gpucluster.usage import is_distributed

if TYPE_CHECKING:
    from pytest_gpucluster.ranks.leader import Leader, LeaderConfig
    from pytest_gpucluster.ranks.results import GroupResult

TIMEOUT = pytest.StashKey[float]()  # what pytest-timeout allows a test, in seconds
DEBUG_DEADLINE_S = 24 * 3600.0  # nobody thinks against the clock
ALL_CORES = 2**20
QUIT_CODE = 2  # how a rank ends whose debugger was left with "q"


class Engine:
    """Runs a session's distributed tests; the leader is made at the first one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._leader: Leader | None = None
        self._leader_config: LeaderConfig | None = None
        config.pluginmanager.register(self, "gpucluster-engine")

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Take pytest-timeout's limit as the deadline of the ranks.

        Its own timer would interrupt the leader, and cannot interrupt a rank in a collective.
        """
        if not is_distributed(item) or settings.func_only:
            return None
        item.stash[TIMEOUT] = settings.timeout
        return True

    def run(
        self, item: pytest.Item, spec: GroupSpec, nextitem: pytest.Item | None
    ) -> list[pytest.TestReport]:
        """The merged reports of one distributed test.

        Raises `ranks.agent.RanksDidNotStart`.
        """
        from pytest_gpucluster.ranks import merge

        following = self._following(spec, nextitem)
        limit = item.stash.get(TIMEOUT, math.inf)
        if self._config_of_leader().debug_rank is not None:
            limit = DEBUG_DEADLINE_S
            spec = replace(spec, deadline_s=limit)
        spec = replace(spec, deadline_s=min(spec.deadline_s, limit))
        with self._lease(item, spec):
            outcome = self._leader_for().run(item.nodeid, spec, following)
        self._tell_of_deaths(outcome)
        keywords = dict.fromkeys(item.keywords, 1)
        identity = merge.TestIdentity(item.nodeid, item.location, keywords)
        restore = self._config.hook.pytest_report_from_serializable
        reports = merge.merge(
            identity, outcome, lambda data: restore(config=self._config, data=data)
        )
        if hasattr(self._config, "workerinput"):
            for report in reports:  # execnet carries plain strings only
                if isinstance(report.longrepr, merge.RankFailure):
                    report.longrepr = str(report.longrepr)
        evidence.keep(self._logs(), item.nodeid, outcome)
        if self._config_of_leader().debug_rank is not None and _quit(outcome):
            item.session.shouldstop = "the debugger was left"
        return reports

    def _tell_of_deaths(self, outcome: GroupResult) -> None:
        if outcome.died_before:
            self._config.issue_config_time_warning(
                pytest.PytestWarning(
                    f"{', '.join(outcome.died_before)} died after a test that had passed, and "
                    "was replaced: a thread or an exit handler of that test may be at fault."
                ),
                stacklevel=2,
            )

    def stop(self) -> None:
        """End the ranks."""
        if self._leader is not None:
            self._leader.stop()
            self._leader = None

    def _leader_for(self) -> Leader:
        if self._leader is None:
            from pytest_gpucluster.ranks.leader import Leader

            self._leader = Leader(self._config_of_leader())
        return self._leader

    def _config_of_leader(self) -> LeaderConfig:
        if self._leader_config is None:
            self._leader_config = self._make_leader_config()
        return self._leader_config

    def _make_leader_config(self) -> LeaderConfig:
        from pytest_gpucluster.distributed import terminal
        from pytest_gpucluster.ranks.leader import LeaderConfig

        run, config = of(self._config), self._config
        debug_rank = terminal.debug_rank(config, run.settings["debug-rank"])
        reporter = config.pluginmanager.getplugin("terminalreporter")
        streams = reporter is not None and config.getoption("capture") == "no"
        return LeaderConfig(
            arguments=tuple(map(str, config.invocation_params.args)),
            folder=config.invocation_params.dir,
            logs=self._logs(),
            payload=run.hand_over(),
            environment=dict(os.environ),
            debug_rank=debug_rank,
            terminal=None if debug_rank is None else terminal.real_terminal(config),
            pump=terminal.Stream(self._logs(), reporter.write_line).pump if streams else None,
        )

    def _logs(self) -> Path:
        worker: dict[str, str] = getattr(self._config, "workerinput", {})
        report: Path = of(self._config).settings["report"]
        return self._config.invocation_params.dir.joinpath(
            report, "ranks", worker.get("workerid", "")
        )

    @contextlib.contextmanager
    def _lease(self, item: pytest.Item, spec: GroupSpec) -> Iterator[None]:
        """The GPUs or cores of this test's ranks; all of them for a built-in check."""
        from pytest_gpucluster.ranks import lease

        def tell(text: str) -> None:
            reporter = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"gpucluster: {text}")

        measured = is_builtin(item.nodeid)
        if spec.backend == "nccl":
            gpus = visible_gpus(of(self._config))
            leases = lease.lease(gpus if measured else gpus[: spec.world_size], tell)
        else:
            leases = lease.lease_cores(ALL_CORES if measured else spec.world_size, tell)
        with leases:
            yield

    def _following(self, spec: GroupSpec, nextitem: pytest.Item | None) -> str | None:
        """The next test if the same ranks will run it, so that its fixtures stay alive."""
        if nextitem is None or not is_distributed(nextitem) or spec.isolation == "process":
            return None
        there = specify(nextitem, of(self._config))
        if isinstance(there, str) or there.isolation == "process":
            return None
        return nextitem.nodeid if spec.compatible(there) else None


def _quit(outcome: GroupResult) -> bool:
    return any(result.ended == f"exit code {QUIT_CODE}" for result in outcome.ranks)
