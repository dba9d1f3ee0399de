"""Every check finds its fault and blames the right part."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpucluster.collection import level_by_check
from tests.detection.cases import CASES, Case
from tests.detection.run import judge, run_case

# One fault of each check: ``make detection`` injects them all, and takes minutes.
FIRST = tuple({case.check: case for case in reversed(CASES)}.values())


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.id)
def test_fault_is_found_and_rightly_blamed(case: Case, tmp_path: Path, libraries: Path) -> None:
    judgement = judge(case, run_case(case, tmp_path, libraries))
    assert judgement.detected, judgement.outcome.output
    assert judgement.blamed, judgement.outcome.output


def test_every_check_has_a_fault() -> None:
    proven = {f"gpucluster/{case.check}" for case in CASES}
    assert proven == set(level_by_check())
