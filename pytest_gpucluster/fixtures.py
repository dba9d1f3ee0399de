"""What a test may ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import acceptance

if TYPE_CHECKING:
    from pytest_gpucluster.expectations.expect import NodeExpectations
    from pytest_gpucluster.expectations.profile import Profile
    from pytest_gpucluster.facts.model import Gpu, NodeFacts
    from pytest_gpucluster.options import Settings
    from pytest_gpucluster.ranks.group import ProcessGroup, Recorder
    from pytest_gpucluster.verdict.recorder import Findings

NO_HARDWARE = "a rehearsal judges no hardware"
FINDINGS = pytest.StashKey["Findings"]()


@pytest.fixture
def process_group(request: pytest.FixtureRequest) -> ProcessGroup:
    """Run the test on every rank of a process group and describe this rank.

    NCCL on GPUs, Gloo on CPUs; ``@pytest.mark.distributed`` sets world size and backend.
    """
    from pytest_gpucluster.ranks.keys import RANK

    rank = request.config.stash.get(RANK, None)
    if rank is None:
        raise RuntimeError(
            "process_group was asked for outside of a rank. Ask for it in the test's own "
            "arguments or with usefixtures, not through request.getfixturevalue()."
        )
    return rank.process_group(_record_for(request.node))


def _record_for(item: pytest.Item) -> Recorder:
    def record(name: str, value: float, unit: str, conditions: dict[str, Any]) -> None:
        from pytest_gpucluster.verdict.findings import Measurement

        findings_of(item).measured(Measurement(name, value, unit, conditions=conditions))

    return record


@pytest.fixture(scope="session")
def tmp_path_shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder that all ranks of a node share for the whole session.

    A fixture that uses it runs once per rank: let one rank do the work under a file lock.
    """
    from pytest_gpucluster.ranks.keys import RANK

    rank = request.config.stash.get(RANK, None)
    if rank is None:
        return tmp_path_factory.mktemp("shared")
    folder = Path(rank.start.shared)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture
def findings(request: pytest.FixtureRequest) -> Findings:
    """Report faults, warnings and measurements of this node."""
    return findings_of(request.node)


def findings_of(item: pytest.Item) -> Findings:
    """The recorder of one test, made at first use."""
    from pytest_gpucluster.verdict.recorder import Findings

    if FINDINGS not in item.stash:
        run = acceptance.of(item.config)
        item.stash[FINDINGS] = Findings(run.node, item.nodeid, item.user_properties)
    return item.stash[FINDINGS]


@pytest.fixture(scope="session")
def node_facts(request: pytest.FixtureRequest) -> NodeFacts:
    """What this node is."""
    return acceptance.of(request.config).facts


@pytest.fixture(scope="session")
def node_expectations(request: pytest.FixtureRequest) -> NodeExpectations:
    """What this node should be: catalogue and profile, each value with its source."""
    return acceptance.of(request.config).expectations


@pytest.fixture(scope="session")
def node_profile(request: pytest.FixtureRequest) -> Profile | None:
    """The profile that was asked for, if any."""
    return acceptance.of(request.config).profile


@pytest.fixture
def node_hardware(request: pytest.FixtureRequest, node_facts: NodeFacts) -> NodeFacts:
    """The facts, for tests that judge hardware: not applicable in a rehearsal."""
    if acceptance.of(request.config).mode == "rehearsal":
        findings_of(request.node).not_applicable(NO_HARDWARE)
        pytest.skip(NO_HARDWARE)
    return node_facts


@pytest.fixture
def node_gpus(request: pytest.FixtureRequest, node_hardware: NodeFacts) -> tuple[Gpu, ...]:
    """The GPUs the driver can reach; without any, the test is unverified."""
    gpus = tuple(gpu for gpu in node_hardware.gpus or () if gpu.lost is None)
    if not gpus:
        reason = "no GPU to check: " + (
            node_hardware.why_unreadable("nvml") or "the driver shows none"
        )
        findings_of(request.node).unverified(reason)
        pytest.skip(f"unverified: {reason}")
    return gpus


@pytest.fixture(scope="session")
def gpucluster_settings(request: pytest.FixtureRequest) -> Settings:
    """The options in force."""
    return acceptance.of(request.config).settings
