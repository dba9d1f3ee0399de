"""The kernel log: one finding per GPU, for the event that came first."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.checks import test_kernel_log as log
from pytest_gpucluster.facts.model import Gpu, Host, KernelEvent, NodeFacts, Unreadable
from tests.unit.checking import H100, Found, check

BUS = "0000:1b:00.0"


def xid(code: int, line: int = 1, text: str = "", bus_id: str | None = BUS) -> KernelEvent:
    text = text or f"NVRM: Xid (PCI:{bus_id}): {code}, pid=1"
    return KernelEvent("xid", text, code=code, bus_id=bus_id, line=line)


def look(*events: KernelEvent, function: Any = log.test_no_xid) -> Found:
    gpus = (Gpu(0, name=H100, bus_id="0000:0a:00.0"), Gpu(1, name=H100, bus_id=BUS))
    return check(function, NodeFacts(Host("n"), gpus=gpus, kernel_events=events))


def test_an_empty_log_is_quiet() -> None:
    assert look().quiet
    assert look(function=log.test_no_sxid).quiet


def test_a_hardware_xid_rejects_the_gpu_with_that_bus_id() -> None:
    found = look(xid(79, line=42))
    assert [(s, c) for s, _, c in found.short] == [("fail", "GPU1")]
    (finding,) = found.findings
    assert finding.measured == 79
    assert finding.evidence[0].line == 42
    assert finding.source


def test_an_applications_xid_warns_at_most() -> None:
    assert [severity for severity, _, _ in look(xid(31)).short] in ([], ["warn"])
    assert not any(severity == "fail" for severity, _, _ in look(xid(13), xid(43)).short)


def test_what_follows_from_a_root_is_told_with_it_not_beside_it() -> None:
    found = look(xid(45, line=1), xid(79, line=2), xid(154, line=3))
    assert [finding.measured for finding in found.findings] == [79]
    assert "Also logged: Xid 45, 154." in found.findings[0].message


def test_the_first_of_several_hardware_errors_is_the_root() -> None:
    found = look(xid(74, line=1), xid(79, line=2))
    assert [finding.measured for finding in found.findings] == [74]


def test_a_hardware_error_outranks_an_earlier_application_error() -> None:
    found = look(xid(31, line=1), xid(79, line=2))
    assert [finding.measured for finding in found.findings] == [79]


def test_each_gpu_is_judged_by_its_own_events() -> None:
    found = look(xid(79), xid(79, bus_id="0000:0a:00.0"))
    assert sorted(component for _, _, component in found.short) == ["GPU0", "GPU1"]


def test_a_bus_id_that_is_no_gpus_is_the_component() -> None:
    assert look(xid(79, bus_id="0000:ff:00.0")).short[0][2] == "0000:ff:00.0"


def test_an_xid_that_nobody_catalogued_warns() -> None:
    found = look(xid(9999))
    assert found.short == [("warn", "gpu.xid", "GPU1")]
    assert "not catalogued" in found.findings[0].message


def test_a_gpu_off_the_bus_rejects() -> None:
    event = KernelEvent("off_bus", "NVRM: GPU has fallen off the bus.", bus_id=BUS)
    assert look(event).short == [("fail", "gpu.off_bus", "GPU1")]


def sxid(text: str) -> KernelEvent:
    return KernelEvent("sxid", text, code=20034, bus_id="0000:05:00.0")


@pytest.mark.parametrize(
    ("texts", "severity"),
    [
        (["SXid: 20034, Fatal, Link 30"], "fail"),
        (["SXid: 12028, Non-fatal, Link 32"], "warn"),
        (["SXid: 12028, Non-fatal, Link 32", "SXid: 20034, Fatal, Link 30"], "fail"),
    ],
)
def test_a_switchs_error_rejects_if_it_is_fatal(texts: list[str], severity: str) -> None:
    found = look(*map(sxid, texts), function=log.test_no_sxid)
    assert found.short == [(severity, "nvlink.errors", "0000:05:00.0")]


@pytest.mark.parametrize("function", [log.test_no_xid, log.test_no_sxid])
def test_a_log_that_was_not_read_is_unverified(function: Any) -> None:
    facts = NodeFacts(
        Host("n"), gpus=(Gpu(0),), unreadable=(Unreadable("kernel log", "permission denied"),)
    )
    assert check(function, facts).unverified == ["the kernel log is not known: permission denied"]
