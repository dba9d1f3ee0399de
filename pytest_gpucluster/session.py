"""The controller's side of an acceptance: read, judge, write, say so."""

from __future__ import annotations

import fnmatch
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import collection
from pytest_gpucluster.acceptance import Acceptance
from pytest_gpucluster.ledger import Ledger
from pytest_gpucluster.options import OPTIONS
from pytest_gpucluster.verdict.findings import (
    FINDING,
    MEASUREMENT,
    Finding,
    Measurement,
    NotChecked,
    decode,
)

if TYPE_CHECKING:
    from pytest_gpucluster.verdict.verdict import Verdict


class Session:
    """Registered with pytest for the process that judges."""

    def __init__(self, config: pytest.Config, run: Acceptance) -> None:
        self._config = config
        self._run = run
        self.ledger = Ledger()
        self._deselected: set[str] = set()
        self._started = datetime.now(timezone.utc)
        self._clock = time.monotonic()
        self.folder: Path = config.invocation_params.dir / run.settings["report"]
        self.verdict: Verdict | None = None

    @property
    def node(self) -> str:
        """The node's name in reports."""
        return self._run.node

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        from pytest_gpucluster.ranks import agent
        from pytest_gpucluster.ranks.placement import PlacementError, find_placement
        from pytest_gpucluster.report.folder import ReportError, prepare_folder

        try:
            self._placement = find_placement()
            prepare_folder(self.folder)
        except (PlacementError, ReportError) as error:
            raise pytest.UsageError(str(error)) from None
        settings = self._run.settings
        if self._run.mode != "evidence" and settings.level_includes("standard"):
            agent.start_server()  # imports torch while the node is read
        _ = self._run.expectations  # facts and profile: what is wrong with them ends the run here

    def pytest_report_header(self) -> list[str]:
        from pytest_gpucluster.report.terminal import printable

        run, facts = self._run, self._run.facts
        given = [
            f"{option.name}={run.settings[option.name]} ({run.settings.source(option.name)})"
            for option in OPTIONS
            if option.name and run.settings.source(option.name) != "default"
        ]
        level = f"level {run.settings['level']} ({run.settings.source('level')})"
        models = sorted({gpu.name or "unknown" for gpu in facts.gpus or ()})
        gpus = f"{len(facts.gpus or ())} GPUs {', '.join(models)}" if facts.gpus else "no GPU"
        driver, torch = facts.software.driver or "none", facts.software.torch or "none"
        lines = [
            f"gpucluster: {run.mode}, {level}, {self._placement.describe()}",
            f"gpucluster: {gpus}; driver {driver}, torch {torch}, report in {self.folder}",
        ]
        if given:
            lines.append("gpucluster: " + ", ".join(given))
        return [printable(line) for line in lines]

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected |= {item.nodeid for item in items}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        from pytest_gpucluster.report.folder import append_measurement
        from pytest_gpucluster.report.junit import properties

        for measurement in self.ledger.add(report):
            append_measurement(self.folder / "measurements.jsonl", measurement)
        if report.when == "teardown":  # JUnit takes the properties of the last phase
            records: list[Finding | Measurement] = [
                *decode(report.user_properties, FINDING, Finding),
                *decode(report.user_properties, MEASUREMENT, Measurement),
            ]
            report.user_properties += [entry for record in records for entry in properties(record)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        from pytest_gpucluster.report.folder import ReportError, write_report
        from pytest_gpucluster.verdict.exitcodes import exit_code

        self.verdict = self._judge(int(exitstatus))
        session.exitstatus = exit_code(self.verdict.verdict, int(exitstatus))
        try:
            write_report(self.folder, self.verdict, {self._run.node: self._run.facts})
        except ReportError as error:
            self._run.remarks.append(str(error))
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from pytest_gpucluster.report.terminal import summary_lines

        if self.verdict is None:
            return
        terminalreporter.section("gpucluster")
        late = self._run.remarks[len(self.verdict.remarks) :]  # the report could not hold them
        for text, markup in summary_lines(self.verdict, self.folder):
            terminalreporter.write_line(text, **markup)
        for remark in late:
            terminalreporter.write_line(f"note: {remark}", red=True)

    def _judge(self, pytest_status: int) -> Verdict:
        from pytest_gpucluster.verdict.verdict import judge, judge_node

        run, ledger = self._run, self.ledger
        allowed = run.profile.checks.allow_warnings if run.profile else ()
        findings = [*ledger.findings, *ledger.flaky(run.node)]
        waived = [f for f in findings if f.severity == "warn" and f.code in allowed]
        excused = [
            NotChecked(f.check, f"the profile allows {f.code}: {f.component} {f.message}", f.node)
            for f in waived
        ]
        node = judge_node(
            name=run.node,
            results=ledger.results(run.node),
            findings=[finding for finding in findings if finding not in waived],
            unverified=ledger.unverified,
            not_applicable=[*ledger.not_applicable, *excused],
            required=self._required(),
            deselected=self._deselected,
            optional=run.profile.checks.optional or () if run.profile else (),
            mode=run.mode,
        )
        self._save_profile(node.verdict)
        if run.mode == "evidence":
            taken = run.facts.taken or "at an unknown time"
            run.remarks.append(f"Judged from facts of {run.node}, taken {taken}.")
        name = run.profile.name if run.profile else None
        return judge(
            [node],
            mode=run.mode,
            started=self._started.isoformat(timespec="seconds"),
            duration_s=round(time.monotonic() - self._clock, 3),
            level=run.settings["level"],
            profile={"name": name, "source": run.settings.source("profile")} if name else None,
            versions=_versions(run),
            measurements=ledger.measurements,
            options={
                option.key: {
                    "value": _plain(run.settings[option.name]),
                    "source": run.settings.source(option.name),
                }
                for option in OPTIONS
            },
            remarks=tuple(run.remarks),
            pytest_status=pytest_status,
        )

    def _required(self) -> list[str]:
        wanted = self._run.profile.checks.required if self._run.profile else None
        if wanted is None:
            return collection.required_checks(self._run.settings)
        known = collection.level_by_check()
        matched = [check for check in known if any(fnmatch.fnmatch(check, w) for w in wanted)]
        unknown = [w for w in wanted if not any(fnmatch.fnmatch(check, w) for check in known)]
        return matched + unknown

    def _save_profile(self, verdict: str) -> None:
        path = self._run.settings["save-profile"]
        if path is None:
            return
        from pytest_gpucluster.expectations.profile import ProfileError, save_profile

        if verdict not in ("accepted", "accepted_with_warnings"):
            self._run.remarks.append(
                f"{path} was not written: a profile is made from an accepted node, this one is "
                f"{verdict}."
            )
            return
        try:
            save_profile(self._run.facts, path)
        except (ProfileError, OSError) as error:
            self._run.remarks.append(f"{path} was not written: {error}")


def _versions(run: Acceptance) -> dict[str, str | None]:
    from pytest_gpucluster import __version__

    software = run.facts.software
    return {
        "pytest-gpucluster": __version__,
        "pytest": pytest.__version__,
        "python": software.python,
        "torch": software.torch,
        "cuda": software.torch_cuda,
        "nccl": software.torch_nccl,
        "driver": software.driver,
    }


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
