"""Network ports: as many, as fast and as healthy as expected."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_gpucluster.checks.compare import severity
from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import NetworkPort, NodeFacts
from pytest_gpucluster.verdict.recorder import Findings

RDMA = ("infiniband", "roce", "efa")
FLAPS_WORTH_A_LOOK = 10  # no limit is published; far above the others, so it warns


def test_ports(
    node_hardware: NodeFacts, node_expectations: NodeExpectations, findings: Findings
) -> None:
    """As many active ports of the right kind as the profile says.

    Needs: a profile with ``network.ports``, ``network.kind`` or ``network.required``: without
    one nobody knows which ports are meant to be used, a port that is down is not wrong. When it
    fails: check cable, switch port and subnet manager.
    """
    expected = node_expectations
    required = expected.network_required
    if required is not None and not required.value:
        required = None
    if not (expected.network_ports or expected.network_kind or required):
        findings.not_applicable("no profile says what network this node should have")
        pytest.skip("no profile says what network this node should have")
    ports = _ports(node_hardware, findings)
    if ports is None:
        return
    kinds = (expected.network_kind.value,) if expected.network_kind else RDMA
    mine = [port for port in ports if port.kind in kinds]
    active = [port for port in mine if port.state == "ACTIVE"]
    wanted = expected.network_ports.value if expected.network_ports else 1
    rule = expected.network_ports or expected.network_kind or required
    if len(active) >= wanted or rule is None:
        return
    if len(mine) < wanted:
        findings.report(
            severity(rule),
            "nic.missing",
            "node",
            f"{len(mine)} {'/'.join(kinds)} ports, expected {wanted}.",
            next_step="Compare lspci with ibstat: an adapter is absent, or its driver not loaded.",
            measured=len(mine),
            expected=wanted,
            unit="ports",
            source=rule.source,
        )
    for port in mine:
        if port.state != "ACTIVE" and len(active) < wanted:
            findings.report(
                severity(rule),
                "network.port_down",
                port.label,
                f"is {port.state or 'unknown'} ({port.physical_state or 'no physical state'}).",
                next_step="Check the cable, the switch port and the subnet manager.",
                measured=port.state,
                expected="ACTIVE",
                source=rule.source,
            )


def test_rates(
    node_hardware: NodeFacts, node_expectations: NodeExpectations, findings: Findings
) -> None:
    """Every active RDMA port runs at the profile's rate, or at that of its like.

    Needs: an active RDMA port. Threshold: ``network.rate_gbps``, else the rate that most ports
    of the same kind have (three at least), which warns. When it fails: the link trained down,
    check cable and transceiver.
    """
    ports = _ports(node_hardware, findings)
    if ports is None:
        return
    expected = node_expectations.network_rate_gbps
    active = [port for port in ports if port.kind in RDMA and port.state == "ACTIVE"]
    if not active:
        findings.not_applicable("no active RDMA port")
        pytest.skip("no active RDMA port")
    rates = Counter(port.rate_gbps for port in active if port.rate_gbps)
    usual, count = rates.most_common(1)[0] if rates else (None, 0)
    by_peers = usual if count >= 3 and count * 2 > len(active) else None
    wanted = expected.value if expected else by_peers
    for port in active:
        if expected is not None and port.rate_gbps is None:
            findings.unverified(f"the rate of {port.label} could not be read")
        elif wanted is not None and port.rate_gbps is not None and port.rate_gbps < wanted:
            findings.report(
                severity(expected) if expected else "warn",
                "network.rate_low",
                port.label,
                f"runs at {port.rate_gbps:g} Gb/s, expected {wanted:g} Gb/s.",
                next_step="Check cable, transceiver and the switch port's speed setting.",
                measured=port.rate_gbps,
                expected=wanted,
                unit="Gb/s",
                source=expected.source if expected else "the other ports of this node",
            )


def test_link_flaps(node_hardware: NodeFacts, findings: Findings) -> None:
    """No RDMA port has lost its link far more often than the others.

    Needs: an active RDMA port with counters. Threshold: more than 10 losses and more than all
    other ports together; a rule of thumb, so it warns. When it warns: replace the cable.
    """
    ports = _ports(node_hardware, findings)
    if ports is None:
        return
    counted = {
        port.label: port.counters["link_downed"]
        for port in ports
        if port.kind in RDMA and port.state == "ACTIVE" and "link_downed" in port.counters
    }
    if not counted:
        findings.not_applicable("no active RDMA port with counters")
        pytest.skip("no active RDMA port with counters")
    for label, count in counted.items():
        others = sum(counted.values()) - count
        if count > FLAPS_WORTH_A_LOOK and count > others:
            findings.report(
                "warn",
                "network.link_flapping",
                label,
                f"has lost its link {count} times, the other ports {others} times together.",
                next_step="Reseat or replace the cable, clear the counter, watch it.",
                measured=count,
                expected=f"<={FLAPS_WORTH_A_LOOK}",
                unit="losses",
                source="the other ports of this node",
            )


def _ports(facts: NodeFacts, findings: Findings) -> tuple[NetworkPort, ...] | None:
    if facts.network is None:
        reason = facts.why_unreadable("network") or "it was not read"
        findings.unverified(f"the network ports are not known: {reason}")
    return facts.network
