"""The kernel log: no Xid, SXid or GPU off the bus since boot."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpucluster.expectations.catalogue import Gate, XidMeaning, xid_meaning
from pytest_gpucluster.facts.model import Gpu, KernelEvent, NodeFacts
from pytest_gpucluster.verdict.findings import Evidence
from pytest_gpucluster.verdict.recorder import Findings

# Xids that follow from another one: the recovery notice and the clean-up of channels.
CONSEQUENCES = frozenset({45, 154})
CATALOGUE = "catalogue: NVIDIA Xid catalogue"


def test_no_xid(node_gpus: tuple[Gpu, ...], node_facts: NodeFacts, findings: Findings) -> None:
    """No Xid error since boot; no GPU has fallen off the bus.

    Needs: a readable kernel log. Threshold: the catalogue's gate per Xid (application errors
    warn, hardware errors fail); one finding per GPU, for the event that came first. When it
    fails: do what the Xid asks for (reset, reboot, replace), then accept again.
    """
    events = _events(node_facts, findings)
    by_bus: dict[str | None, list[KernelEvent]] = {}
    for event in events:
        if event.kind in ("xid", "off_bus"):
            by_bus.setdefault(event.bus_id, []).append(event)
    labels = {gpu.bus_id: gpu.label for gpu in node_facts.gpus or ()}
    for bus_id, group in by_bus.items():
        _report_root(group, labels.get(bus_id) or bus_id or "node", findings)


def test_no_sxid(node_gpus: tuple[Gpu, ...], node_facts: NodeFacts, findings: Findings) -> None:
    """No SXid (NVSwitch) error since boot.

    Needs: a readable kernel log. Threshold: a fatal SXid fails, another one warns. When it
    fails: read the fabric manager's log, reset GPUs and switches together or reboot.
    """
    switches: dict[str | None, list[KernelEvent]] = {}
    for event in _events(node_facts, findings):
        if event.kind == "sxid":
            switches.setdefault(event.bus_id, []).append(event)
    for bus_id, group in switches.items():
        fatal = [event for event in group if "non-fatal" not in event.text.lower()]
        fatal = [event for event in fatal if "fatal" in event.text.lower()]
        first = (fatal or group)[0]
        findings.report(
            "fail" if fatal else "warn",
            "nvlink.errors",
            bus_id or "node",
            f"SXid {first.code}: {first.text}",
            next_step="Read the fabric manager's log; reset GPUs and switches, or reboot.",
            measured=first.code,
            expected="none",
            evidence=(_evidence(first),),
        )


def _events(facts: NodeFacts, findings: Findings) -> tuple[KernelEvent, ...]:
    if facts.kernel_events is None:
        reason = facts.why_unreadable("kernel log") or "it was not read"
        findings.unverified(f"the kernel log is not known: {reason}")
    return facts.kernel_events or ()


def _report_root(events: Sequence[KernelEvent], component: str, findings: Findings) -> None:
    judged = [(event, _gate(event)) for event in events]
    causes = [pair for pair in judged if pair[0].code not in CONSEQUENCES] or judged
    fatal = [pair for pair in causes if pair[1] == "fail"]
    serious = fatal or [pair for pair in causes if pair[1] == "warn"]
    if not serious:
        return
    event, gate = serious[0]
    meaning = _meaning(event)
    others = sorted({e.code for e in events if e.code is not None and e.code != event.code})
    also = f" Also logged: Xid {', '.join(map(str, others))}." if others else ""
    if event.kind == "off_bus":
        text, code, action = "the GPU has fallen off the bus", "gpu.off_bus", "RESTART_BM"
    elif meaning is not None:
        text, code = f"Xid {event.code}: {meaning.meaning}", meaning.code
        action = meaning.immediate
    else:
        text, code, action = f"Xid {event.code}, which is not catalogued", "gpu.xid", ""
    findings.report(
        "fail" if gate == "fail" else "warn",
        code,
        component,
        f"{text} ({len(events)} lines since boot).{also}",
        next_step=f"NVIDIA's catalogue says {action.replace('_', ' ').lower()}; then accept again."
        if action
        else "Look the number up in NVIDIA's Xid catalogue.",
        measured=event.code,
        expected="none",
        source=CATALOGUE,
        evidence=(_evidence(event),),
    )


def _gate(event: KernelEvent) -> Gate:
    if event.kind == "off_bus":
        return "fail"
    meaning = _meaning(event)
    return meaning.gate_for(event.text) if meaning else "warn"


def _meaning(event: KernelEvent) -> XidMeaning | None:
    return xid_meaning(event.code) if event.code is not None else None


def _evidence(event: KernelEvent) -> Evidence:
    return Evidence("kernel log", event.line, event.text)
