"""pytest's exit codes, plus one of our own."""

from __future__ import annotations

import pytest

UNVERIFIED = 8
PASSING = frozenset({"accepted", "accepted_with_warnings", "rehearsed"})


def exit_code(verdict: str, pytest_status: int) -> int:
    """What the session exits with: pytest's own 2 to 5 stay, the verdict decides the rest.

    A status that pytest calls failed never becomes 0.
    """
    if pytest_status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return pytest_status
    if verdict in PASSING:
        return pytest_status
    return UNVERIFIED if verdict == "unverified" else int(pytest.ExitCode.TESTS_FAILED)
