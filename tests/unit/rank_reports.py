"""What ranks send back, made up, and what a session is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_gpucluster.ranks.merge import SUSPECTS, TestIdentity, merge
from pytest_gpucluster.ranks.results import GroupResult, RankResult

IDENTITY = TestIdentity("test_x.py::test_it", ("test_x.py", 3, "test_it"), {"test_it": 1})
PEER_LOST = "RuntimeError: [gloo/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"

WAITING = """\
Current thread 0x00007f01 (most recent call first):
  File "/venv/torch/distributed/distributed_c10d.py", line 3007 in all_reduce
  File "/venv/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/u/test_x.py", line 12 in test_it
  File "/venv/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call
  File "/venv/pytest_gpucluster/ranks/rank.py", line 190 in _run
"""
LOADING = """\
Current thread 0x00007f02 (most recent call first):
  File "/home/u/data.py", line 40 in load_batch
  File "/home/u/test_x.py", line 10 in test_it
  File "/venv/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call
  File "/venv/pytest_gpucluster/ranks/rank.py", line 190 in _run
"""


def report(when: str, outcome: str = "passed", longrepr: Any = None, **more: Any) -> dict[str, Any]:
    """A report as it arrives from a rank: through JSON."""
    wasxfail = more.pop("wasxfail", None)
    made = pytest.TestReport(
        IDENTITY.nodeid,
        IDENTITY.location,
        {},
        outcome,  # type: ignore[arg-type]
        longrepr,
        when,  # type: ignore[arg-type]
        **more,
    )
    if wasxfail is not None:
        made.wasxfail = wasxfail
    data: dict[str, Any] = json.loads(json.dumps(made._to_json()))
    return data


def phases(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [report("setup"), call, report("teardown")]


def passed(rank: int, **more: Any) -> RankResult:
    return RankResult(rank, "done", phases(report("call", **more)))


def failed(rank: int, text: str, at: float = 1.0) -> RankResult:
    return RankResult(rank, "done", phases(report("call", "failed", text)), failed_at=at)


def died(rank: int, at: float = 5.0, *reports: dict[str, Any]) -> RankResult:
    said = list(reports) or [report("setup")]
    return RankResult(rank, "died", said, failed_at=at, ended="signal SIGKILL")


def hung(rank: int, stack: str | None = WAITING, *reports: dict[str, Any]) -> RankResult:
    return RankResult(rank, "hung", list(reports) or [report("setup")], stack=stack)


def merged(*ranks: RankResult, **more: Any) -> list[pytest.TestReport]:
    return merge(IDENTITY, GroupResult(tuple(ranks), **more), pytest.TestReport._from_json)


def the_failure(reports: list[pytest.TestReport]) -> pytest.TestReport:
    found = [report for report in reports if report.failed]
    assert len(found) == 1, "one failed test is one failed phase"
    return found[0]


def message(report: pytest.TestReport) -> str:
    """What pytest's short summary prints."""
    return str(report.longrepr.reprcrash.message)  # type: ignore[union-attr]


def suspects(report: pytest.TestReport) -> object:
    return dict(report.user_properties)[SUSPECTS]
