"""NVLink and NVSwitch: every link up, at its generation, without errors, fabric registered."""

from __future__ import annotations

import pytest

from pytest_gpucluster.checks.compare import severity
from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import Fabric, Gpu
from pytest_gpucluster.verdict.recorder import Findings


def test_links_up(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """Every NVLink the product has is up.

    Needs: GPUs with NVLink. Threshold: the product's number of links (catalogue or profile);
    bridged cards are judged once a bridge is mounted. When it fails: look for Xid 74 or 149 of
    the GPU's bus id, reseat the module; if all GPUs are affected, look at the fabric manager.
    """
    expected = node_expectations.nvlink_links
    presence = node_expectations.nvlink_present
    if presence == "unknown":
        findings.unverified(f"whether NVLink belongs here: {node_expectations.nvlink_source}")
        return
    if presence == "absent" or expected is None:
        reason = f"no NVLink expected here ({node_expectations.nvlink_source})"
        findings.not_applicable(reason)
        pytest.skip(reason)
    complete = [gpu for gpu in node_gpus if gpu.active_links == expected.value]
    for gpu in node_gpus:
        if gpu.nvlinks is None or gpu.active_links is None:
            findings.unverified(f"the NVLinks of {gpu.label} could not be read")
            continue
        if gpu.active_links >= expected.value or (presence == "optional" and not gpu.active_links):
            continue  # a card without a bridge has no link up
        down = [link.link for link in gpu.nvlinks if not link.active]
        which = f" (down: {', '.join(map(str, down))})" if down and gpu.active_links else ""
        peers = (
            f" The other {len(complete)} GPUs are complete, so look at {gpu.label}, not at the "
            "switches."
            if len(complete) == len(node_gpus) - 1 and len(complete) > 1
            else ""
        )
        findings.report(
            severity(expected),
            "nvlink.links_down",
            gpu.label,
            f"{gpu.active_links} of {expected.value} NVLinks are up{which}.{peers}",
            next_step=f"Check Xid 74/149 for {gpu.bus_id}, then reseat or replace the module.",
            measured=gpu.active_links,
            expected=expected.value,
            unit="links",
            source=expected.source,
        )


def test_link_version(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """Every active link runs at the product's NVLink generation.

    Needs: active NVLinks. Threshold: the generation of the catalogue's or profile's version
    (3.0 and 3.1 are one generation). When it fails: a link trained down, or the module is not
    what it says.
    """
    expected = node_expectations.nvlink_version
    active = [(gpu, link) for gpu in node_gpus for link in gpu.nvlinks or () if link.active]
    if expected is None or not active:
        findings.not_applicable("no active NVLink whose version is known")
        pytest.skip("no active NVLink whose version is known")
    generation = _major(expected.value)
    for gpu in node_gpus:
        links = [link for link in gpu.nvlinks or () if link.active]
        unread = [link for link in links if link.version is None]
        if unread:
            findings.unverified(f"the NVLink version of {gpu.label} could not be read")
        wrong = [link for link in links if link.version and _major(link.version) != generation]
        if wrong:
            findings.report(
                severity(expected),
                "nvlink.version",
                gpu.label,
                f"{len(wrong)} links run NVLink {wrong[0].version}, expected {expected.value}.",
                next_step="Check the module's part number and its firmware.",
                measured=wrong[0].version,
                expected=expected.value,
                source=expected.source,
            )


def _major(version: str) -> str:
    return version.partition(".")[0]


def test_link_errors(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """No link has counted replay, recovery or CRC errors.

    Needs: active NVLinks. Threshold: 0; there is no published limit, so it warns. When it
    warns: reset the GPU to clear the counters, run a load, look again.
    """
    active = [gpu for gpu in node_gpus if any(link.active for link in gpu.nvlinks or ())]
    if not active:
        findings.not_applicable("no active NVLink")
        pytest.skip("no active NVLink")
    if not any(link.errors for gpu in active for link in gpu.nvlinks or ()):
        findings.unverified("the NVLink error counters could not be read")
    for gpu in active:
        bad = [link for link in gpu.nvlinks or () if any(link.errors.values())]
        if bad:
            worst = max(bad, key=lambda link: sum(link.errors.values()))
            counts = ", ".join(f"{name} {count}" for name, count in worst.errors.items() if count)
            findings.report(
                "warn",
                "nvlink.errors",
                gpu.label,
                f"{len(bad)} links have counted errors, most on link {worst.link}: {counts}.",
                next_step="Reset the GPU, run the checks again; a link that counts again needs "
                "its module reseated.",
                measured=sum(sum(link.errors.values()) for link in bad),
                expected=0,
                unit="errors",
            )


def test_fabric(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """Every GPU is registered with the NVSwitch fabric, and its health mask is clean.

    Needs: Hopper or newer behind NVSwitch. Threshold: state completed, status 0, no degraded
    bandwidth, no bad routes. When it fails: restart the fabric manager, read its log.
    """
    expected = node_expectations.fabric_completed
    if expected is None or not expected.value:
        findings.not_applicable("these GPUs register with no fabric")
        pytest.skip("these GPUs register with no fabric")
    for gpu in node_gpus:
        if gpu.fabric is None or gpu.fabric.state is None:
            findings.unverified(f"the fabric state of {gpu.label} could not be read")
            continue
        problem = _fabric_problem(gpu.fabric)
        if problem is not None:
            code, message = problem
            findings.report(
                severity(expected),
                code,
                gpu.label,
                message,
                next_step="systemctl restart nvidia-fabricmanager and read its log; then reset "
                "the GPU or reboot.",
                measured=gpu.fabric.state,
                expected="completed",
                source=expected.source,
            )


def _fabric_problem(fabric: Fabric) -> tuple[str, str] | None:
    if fabric.state != "completed":
        return "fabric.not_ready", f"fabric state is {fabric.state}, expected completed."
    if fabric.status:
        return (
            "fabric.insufficient_resources",
            f"fabric registration ended with NVML status {fabric.status}, expected 0.",
        )
    flags = {
        "degraded bandwidth": fabric.degraded_bandwidth,
        "unhealthy route": fabric.route_unhealthy,
        "route recovery under way": fabric.route_recovery,
        "access timeout": fabric.access_timeout,
    }
    raised = [name for name, flag in flags.items() if flag]
    if fabric.incorrect_configuration not in (None, "none", "not_supported"):
        raised.append(f"incorrect configuration: {fabric.incorrect_configuration}")
    if raised:
        return "fabric.unhealthy", f"the fabric health mask reports {', '.join(raised)}."
    return None
