"""Where a pytest process keeps what makes it a rank; cheap to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpucluster.ranks.rank_session import RankSession

RANK: pytest.StashKey[RankSession] = pytest.StashKey()
