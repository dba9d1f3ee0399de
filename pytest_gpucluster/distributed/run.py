"""One distributed test: gated on its marks and this machine, run, and run again if asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from pytest_gpucluster import requirements
from pytest_gpucluster.acceptance import of
from pytest_gpucluster.distributed import reruns
from pytest_gpucluster.distributed.engine import Engine
from pytest_gpucluster.distributed.specify import specify
from pytest_gpucluster.ranks.group import GroupSpec

Attempt = list[pytest.TestReport]


def run(item: pytest.Item, nextitem: pytest.Item | None, engine: Engine) -> Iterator[Attempt]:
    """The reports of a distributed test: of one attempt, or of several with rerunfailures."""
    gate = requirements.evaluate(item)
    spec = specify(item, of(item.config)) if gate is None else ""
    if isinstance(spec, GroupSpec):
        yield from _attempts(item, spec, nextitem, engine)
        return
    gate = gate or requirements.missing_ranks(item, spec)
    requirements.record(item, gate)
    if gate.kind == "fail":
        yield [_bare_report(item, "failed", f"{gate.mark}: {gate.reason}")]
        return
    prefix = "unverified: " if gate.kind == "unverified" else ""
    path, line, _ = item.location
    skipped = (path, (line or 0) + 1, f"Skipped: {prefix}{gate.reason}")
    yield [_bare_report(item, "skipped", skipped)]


def _attempts(
    item: pytest.Item, spec: GroupSpec, nextitem: pytest.Item | None, engine: Engine
) -> Iterator[Attempt]:
    from pytest_gpucluster.ranks.agent import RanksDidNotStart

    allowed = reruns.attempts(item)
    for attempt in range(1, allowed + 1):
        try:
            reports = engine.run(item, spec, nextitem)
        except RanksDidNotStart as error:
            yield [_bare_report(item, "failed", str(error))]
            return
        again = attempt < allowed and reruns.mark_rerun(item, reports, attempt)
        yield reports
        if not again:
            return


def _bare_report(
    item: pytest.Item, outcome: Literal["failed", "skipped"], longrepr: Any
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when="setup",
        user_properties=item.user_properties,
    )
