"""What the checks share: severities, majorities, versions."""

from __future__ import annotations

import pytest

from pytest_gpucluster.checks.compare import common_value, severity
from pytest_gpucluster.checks.versions import at_least, meets
from pytest_gpucluster.expectations.model import Expected
from pytest_gpucluster.facts.model import Gpu


def test_an_uncertain_expectation_warns_and_never_rejects() -> None:
    assert severity(Expected(18, "catalogue", certain=True)) == "fail"
    assert severity(Expected(18, "catalogue", certain=False)) == "warn"


@pytest.mark.parametrize(
    ("values", "common"),
    [
        (["a", "a", "a"], "a"),
        (["a", "a", "b"], "a"),
        (["a", "a", None, "b"], "a"),
        (["a", "a"], None),
        (["a", "a", None, None], None),
        (["a", "a", "b", "b"], None),
        (["a", "b", "c"], None),
        ([], None),
    ],
)
def test_what_most_gpus_show(values: list[str | None], common: str | None) -> None:
    gpus = [Gpu(index, vbios=value) for index, value in enumerate(values)]
    assert common_value(gpus, lambda gpu: gpu.vbios) == common


@pytest.mark.parametrize(
    ("found", "minimum", "answer"),
    [
        ("450.80.02", "450.80", True),
        ("450.80", "450.80", True),
        ("450.51.06", "450.80", False),
        ("1000.1", "450.80", True),
        ("3.10", "3.8", True),
        ("unknown", "3.8", False),
        ("", "3.8", False),
    ],
)
def test_versions_are_compared_by_number(found: str, minimum: str, answer: bool) -> None:
    assert at_least(found, minimum) is answer


@pytest.mark.parametrize(
    ("found", "specifier", "answer"),
    [
        ("2.29.7", ">=2.18,<3", True),
        ("2.17", ">=2.18,<3", False),
        ("2.13.0+cu130", ">=2.13", True),
        ("2.14.0.dev2026", ">=2.13", True),
        ("not a version", ">=2.13", False),
    ],
)
def test_versions_that_satisfy_a_specifier(found: str, specifier: str, answer: bool) -> None:
    assert meets(found, specifier) is answer
