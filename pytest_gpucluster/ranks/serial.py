"""A rank's report on its way to the leader: pytest's own serial form, JSON, of bearable length."""

from __future__ import annotations

import json
from typing import Any

import pytest

LONGEST_SECTION = 64 * 1024  # characters of captured output kept per phase and rank
LONGEST_REPORT = 4 * 2**20  # characters of a report's JSON; a longer one is cut down


BRIEF = "brief"  # marks a passed report with nothing in it but times
BRIEF_FIELDS = ("when", "outcome", "duration", "start", "stop")
# What every report has; the id is kept in an attribute of its own since pytest 9.2.
COMMON_FIELDS = {*BRIEF_FIELDS, "nodeid", "_id", "location", "keywords", "longrepr"}
COMMON_FIELDS |= {"user_properties", "sections"}


def serialisable(config: pytest.Config, report: pytest.TestReport) -> dict[str, Any]:
    """pytest's own serial form, output cut to a bearable length, JSON throughout.

    A passed report that says nothing else is told in brief: most are such.
    """
    said = report.sections or report.user_properties or report.longrepr
    if report.passed and not said and vars(report).keys() <= COMMON_FIELDS:
        return {BRIEF: True, **{name: getattr(report, name) for name in BRIEF_FIELDS}}
    report.sections = [(name, _cut(text)) for name, text in report.sections]
    data: dict[str, Any] = config.hook.pytest_report_to_serializable(config=config, report=report)
    try:
        fits = len(json.dumps(data)) <= LONGEST_REPORT
    except (TypeError, ValueError):
        fits = False
    if not fits:
        plain = {"nodeid", "location", "outcome", "when", "sections", "duration"}
        data = {
            **{key: value for key, value in data.items() if key in plain},
            "keywords": {},
            "longrepr": _text(report) if report.longrepr else None,
            "user_properties": [
                [_cut(str(key)), _cut(str(value))] for key, value in report.user_properties
            ],
            "start": report.start,
            "stop": report.stop,
            "$report_type": "TestReport",
        }
    return data


def _text(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = f"{_cut(str(crash.message))}\n\n" if crash else ""
    return message + _cut(str(report.longrepr))


def _cut(text: str) -> str:
    if len(text) <= LONGEST_SECTION:
        return text
    half = LONGEST_SECTION // 2
    return (
        f"{text[:half]}\n... {len(text) - LONGEST_SECTION} characters left out ...\n{text[-half:]}"
    )
