"""Ask a requires_* need about a made-up node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_gpucluster.expectations.expect import NodeExpectations, expect
from pytest_gpucluster.expectations.model import Expected
from pytest_gpucluster.facts.model import Gpu, Host, NodeFacts, NvLink, Unreadable
from pytest_gpucluster.needs import Answer, Need

NO_MODEL = expect(NodeFacts(Host("n")))


def gpu(index: int = 0, links: int | None = 0, down: int = 0, **more: Any) -> Gpu:
    nvlinks = None
    if links is not None:
        remote = more.pop("remote", None)
        nvlinks = tuple(
            NvLink(link, active=link >= down, remote_type=remote) for link in range(links)
        )
    return Gpu(index, nvlinks=nvlinks, **more)


def node(*gpus: Gpu, **more: Any) -> NodeFacts:
    return NodeFacts(Host("n"), gpus=gpus, **more)


def supposed(**values: Any) -> NodeExpectations:
    """Expectations of a node of which nothing else is known."""
    known: dict[str, Any] = {
        name: value if name == "nvlink_present" else Expected(value, "test")
        for name, value in values.items()
    }
    return replace(NO_MODEL, **known)


def ask(need: Need, facts: NodeFacts, expected: NodeExpectations = NO_MODEL) -> Answer:
    return need.ask(facts, expected)


def unmet(answer: Answer) -> tuple[bool | None, bool | None]:
    assert answer.reason, "an unmet need says why"
    return answer.met, answer.supposed


MISSING_BUT_SUPPOSED, MISSING_AS_IT_SHOULD, MISSING_WHO_KNOWS = (
    (False, True),
    (False, False),
    (False, None),
)
UNKNOWN = (None, None)
DEAD_DRIVER = NodeFacts(Host("n"), unreadable=(Unreadable("nvml", "driver not loaded"),))
