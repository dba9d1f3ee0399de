"""One run: its settings, what the node is, what it should be, and what was found.

Every pytest process has one: the controller (which judges), xdist workers and ranks (which
are handed the facts, so that a node is read once).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gpucluster.options import Settings

if TYPE_CHECKING:
    from pytest_gpucluster.expectations.expect import NodeExpectations
    from pytest_gpucluster.expectations.profile import Profile
    from pytest_gpucluster.facts.model import NodeFacts

Mode = Literal["live", "rehearsal", "evidence"]
WORKER_INPUT = "gpucluster"  # key under which xdist workers are handed the payload


@dataclass
class Acceptance:
    """The state of a run. Facts, profile and expectations are read at first use."""

    settings: Settings
    payload: str | None = None  # what the controller handed to this worker or rank
    judges: bool = True  # this process judges and writes the report
    remarks: list[str] = field(default_factory=list)

    @property
    def enabled(self) -> bool:
        """This run is an acceptance, not just a test run that uses the fixtures."""
        return self.settings.enabled

    @property
    def mode(self) -> Mode:
        if self.settings["evidence"] is not None:
            return "evidence"
        return "rehearsal" if self.settings["rehearse"] else "live"

    @cached_property
    def facts(self) -> NodeFacts:
        """What the node is: handed over, read from the evidence, or read live."""
        from pytest_gpucluster.facts import model

        if self.payload is not None:
            return model.from_json(self.payload, model.NodeFacts, "facts from the controller")
        if self.settings["evidence"] is not None:
            from pytest_gpucluster.facts.evidence.saved_facts import load_facts

            try:
                return load_facts(self.settings["evidence"])
            except model.FactsError as error:
                raise pytest.UsageError(f"--gpucluster-evidence: {error}") from None
        from pytest_gpucluster.facts.collect import collect

        return collect()

    @cached_property
    def profile(self) -> Profile | None:
        """The profile that was asked for; raises `pytest.UsageError`."""
        name = self.settings["profile"]
        if name is None:
            return None
        from pytest_gpucluster.expectations.profile import ProfileError, load_profile

        try:
            return load_profile(name)
        except ProfileError as error:
            raise pytest.UsageError(f"--gpucluster-profile: {error}") from None

    @cached_property
    def expectations(self) -> NodeExpectations:
        """What the node should be; raises `pytest.UsageError` for absurd thresholds."""
        from pytest_gpucluster.expectations.expect import expect
        from pytest_gpucluster.expectations.profile import ProfileError
        from pytest_gpucluster.expectations.thresholds import check_thresholds

        if self.profile is not None and self.mode != "rehearsal":
            try:
                check_thresholds(self.facts, self.profile)
            except ProfileError as error:
                raise pytest.UsageError(f"--gpucluster-profile: {error}") from None
        return expect(self.facts, self.profile)

    @property
    def node(self) -> str:
        """The node's name in findings and reports."""
        return self.facts.host.name

    def hand_over(self) -> str:
        """What workers and ranks need to know, as JSON."""
        from pytest_gpucluster.facts.model import to_json

        return to_json(self.facts).decode()


ACCEPTANCE = pytest.StashKey[Acceptance]()


def of(config: pytest.Config) -> Acceptance:
    """The acceptance of a pytest process."""
    return config.stash[ACCEPTANCE]


def on_rank(config: pytest.Config) -> bool:
    """Whether this pytest process is a rank."""
    from pytest_gpucluster.ranks.keys import RANK

    return RANK in config.stash


def handed_over(config: pytest.Config) -> str | None:
    """What a controller handed to this xdist worker or rank, ``None`` elsewhere."""
    from pytest_gpucluster.ranks.keys import RANK

    rank = config.stash.get(RANK, None)
    if rank is not None:
        return rank.payload or None
    workerinput: dict[str, Any] = getattr(config, "workerinput", {})
    payload = workerinput.get(WORKER_INPUT)
    return payload if isinstance(payload, str) else None
