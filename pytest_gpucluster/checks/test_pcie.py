"""PCIe: width and generation as built, replays not out of line."""

from __future__ import annotations

import statistics

from pytest_gpucluster.checks.compare import common_value, severity
from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import Gpu
from pytest_gpucluster.verdict.recorder import Findings

# No limit is published. Ten times the peers and no longer a handful: worth a look, no more.
REPLAYS_WORTH_A_LOOK = 100
REPLAYS_ABOVE_PEERS = 10


def test_width(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """Every GPU's link is as wide as the product and the slot allow.

    Needs: a GPU. Threshold: the catalogue's or profile's width (a card's slot may be narrower
    by design, which warns), and that of the other GPUs. When it fails: reseat the module, check
    riser and cable.
    """
    expected = node_expectations.pcie_width
    usual = common_value(node_gpus, lambda gpu: gpu.pcie.width)
    for gpu in node_gpus:
        width = gpu.pcie.width
        if width is None:
            findings.unverified(f"the PCIe width of {gpu.label} could not be read")
        elif isinstance(usual, int) and width < usual:
            _narrow(findings, gpu, usual, "the other GPUs of this node", fails=True)
        elif expected is not None and width < expected.value:
            _narrow(
                findings,
                gpu,
                expected.value,
                expected.source,
                fails=severity(expected) == "fail" or width == 1,
            )
        elif gpu.pcie.max_width is not None and width < gpu.pcie.max_width:
            _narrow(findings, gpu, gpu.pcie.max_width, "GPU and slot", fails=width == 1)


def _narrow(findings: Findings, gpu: Gpu, wanted: int, source: str, *, fails: bool) -> None:
    findings.report(
        "fail" if fails else "warn",
        "pcie.downgraded",
        gpu.label,
        f"PCIe link is x{gpu.pcie.width}, expected x{wanted}.",
        next_step="Reseat the module, check riser, cable and BIOS bifurcation.",
        measured=gpu.pcie.width,
        expected=wanted,
        unit="lanes",
        source=source,
    )


def test_generation(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """GPU and slot together can reach the product's PCIe generation.

    Needs: a GPU. Threshold: the catalogue's or profile's generation against what link and slot
    can do; the present generation falls when idle and is not judged. When it fails: check BIOS
    settings and the slot.
    """
    expected = node_expectations.pcie_generation
    usual = common_value(node_gpus, lambda gpu: gpu.pcie.max_generation)
    for gpu in node_gpus:
        found = gpu.pcie.max_generation
        if found is None:
            findings.unverified(f"the PCIe generation of {gpu.label} could not be read")
            continue
        wanted, source, fails = None, "", False
        if isinstance(usual, int) and found < usual:
            wanted, source, fails = usual, "the other GPUs of this node", True
        elif expected is not None and found < expected.value:
            wanted, source = expected.value, expected.source
            fails = severity(expected) == "fail"
        if wanted is not None:
            findings.report(
                "fail" if fails else "warn",
                "pcie.downgraded",
                gpu.label,
                f"GPU and slot reach PCIe generation {found}, expected {wanted}.",
                next_step="Check the slot, its riser and the BIOS setting for link speed.",
                measured=found,
                expected=wanted,
                unit="generation",
                source=source,
            )


def test_replays(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """No GPU's PCIe link replays far more often than the others'.

    Needs: three GPUs or more. Threshold: more than 100 replays and ten times the median; a
    rule of thumb, so it warns. When it warns: reseat the module, watch the counter under load.
    """
    known = [gpu for gpu in node_gpus if gpu.pcie.replays is not None]
    typical = statistics.median([gpu.pcie.replays or 0 for gpu in known]) if known else 0
    for gpu in known:
        count = gpu.pcie.replays or 0
        if count > max(REPLAYS_WORTH_A_LOOK, REPLAYS_ABOVE_PEERS * typical):
            findings.report(
                "warn",
                "pcie.replays",
                gpu.label,
                f"{count} PCIe replays, the others have {typical:g}.",
                next_step="Reseat the module; see whether the counter moves under load.",
                measured=count,
                expected=f"<={max(REPLAYS_WORTH_A_LOOK, REPLAYS_ABOVE_PEERS * typical):g}",
                unit="replays",
                source="the other GPUs of this node",
            )
