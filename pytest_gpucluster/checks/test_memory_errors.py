"""GPU memory: ECC on and quiet, no repair failed or waiting."""

from __future__ import annotations

import pytest

from pytest_gpucluster.checks.compare import on_off, severity
from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import Gpu
from pytest_gpucluster.verdict.recorder import Findings

# Hardware limit 64; replacing above 60 is practice, not a documented rule: warns only.
RETIRED_PAGES_TO_WARN = 60
ROW_REMAPPING = "NVIDIA GPU memory error management: row remapping"


def test_ecc_mode(
    node_gpus: tuple[Gpu, ...], node_expectations: NodeExpectations, findings: Findings
) -> None:
    """ECC is on where the product ships with it, and no change waits for a reboot.

    Needs: GPUs with ECC (HBM parts). When it fails: ``nvidia-smi -e 1`` and reboot.
    """
    expected = node_expectations.ecc
    if expected is None and all(gpu.ecc is None or gpu.ecc.enabled is None for gpu in node_gpus):
        findings.not_applicable("these GPUs have no ECC, or leave it to their owner")
        pytest.skip("these GPUs have no ECC, or leave it to their owner")
    for gpu in node_gpus:
        enabled = gpu.ecc.enabled if gpu.ecc else None
        if expected is not None and enabled is None:
            findings.unverified(f"the ECC mode of {gpu.label} could not be read")
        elif expected is not None and enabled != expected.value:
            findings.report(
                severity(expected),
                "memory.ecc_mode",
                gpu.label,
                f"ECC is {on_off(enabled)}, expected {on_off(expected.value)}.",
                next_step=f"nvidia-smi -i {gpu.index} -e {int(expected.value)}, then reboot.",
                measured=on_off(enabled),
                expected=on_off(expected.value),
                source=expected.source,
            )
        elif gpu.ecc is not None and gpu.ecc.pending not in (None, enabled):
            findings.report(
                "warn",
                "memory.ecc_mode",
                gpu.label,
                f"ECC will be {on_off(gpu.ecc.pending)} after the next reboot.",
                next_step="Reboot, so that what was accepted is what runs.",
            )


def test_ecc_errors(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """No uncorrectable memory error since the driver was loaded.

    Needs: GPUs with ECC. Threshold: 0 since the driver was loaded; an older one (aggregate
    count) warns. When it fails: reset the GPU, run again; replace it if errors come back.
    """
    with_ecc = [gpu for gpu in node_gpus if gpu.ecc is not None and gpu.ecc.enabled]
    if not with_ecc:
        findings.not_applicable("no GPU has ECC switched on")
        pytest.skip("no GPU has ECC switched on")
    for gpu in with_ecc:
        assert gpu.ecc is not None
        now, ever = gpu.ecc.uncorrected_volatile, gpu.ecc.uncorrected_aggregate
        if now is None:
            findings.unverified(f"the ECC counters of {gpu.label} could not be read")
        elif now > 0:
            findings.report(
                "fail",
                "memory.ecc_uncorrectable",
                gpu.label,
                f"{now} uncorrectable memory errors since the driver was loaded, expected 0.",
                next_step=f"nvidia-smi -i {gpu.index} -r, run NVIDIA's field diagnostic, accept "
                "again; replace the GPU if errors come back.",
                measured=now,
                expected=0,
                unit="errors",
            )
        elif ever:
            findings.report(
                "warn",
                "memory.ecc_uncorrectable",
                gpu.label,
                f"{ever} uncorrectable memory errors in this GPU's life, none since the driver "
                "was loaded.",
                next_step="Keep an eye on this GPU; ask for its history if it is new.",
                measured=ever,
                expected=0,
                unit="errors",
            )
        if gpu.ecc.sram_threshold_exceeded:
            findings.report(
                "fail",
                "memory.sram_threshold",
                gpu.label,
                "the GPU reports that its SRAM error threshold is exceeded.",
                next_step="Run NVIDIA's field diagnostic; this is usually a reason to replace it.",
            )


def test_row_remapping(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """No row remapping has failed, none waits for a reset.

    Needs: Ampere or newer. Threshold: the failure flag (a reason for replacement by NVIDIA's
    rules; the number of remapped rows is not) and the pending flag. When it fails: reset the
    GPU; with the failure flag set, run the field diagnostic and replace it.
    """
    with_rows = [gpu for gpu in node_gpus if gpu.remapped_rows is not None]
    if not with_rows:
        findings.not_applicable("these GPUs do not remap rows")
        pytest.skip("these GPUs do not remap rows")
    for gpu in with_rows:
        assert gpu.remapped_rows is not None
        if gpu.remapped_rows.failed:
            findings.report(
                "fail",
                "memory.row_remap_failed",
                gpu.label,
                "a memory row could not be remapped: no spare row was left.",
                next_step="Run NVIDIA's field diagnostic and replace the GPU.",
                measured="failed",
                expected="no failure",
                source=ROW_REMAPPING,
            )
        elif gpu.remapped_rows.pending:
            findings.report(
                "fail",
                "memory.row_remap_pending",
                gpu.label,
                "a remapped memory row waits for a GPU reset.",
                next_step=f"nvidia-smi -i {gpu.index} -r (or reboot), then accept again.",
                measured="pending",
                expected="none pending",
                source=ROW_REMAPPING,
            )


def test_retired_pages(node_gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """No page retirement is pending, and not nearly all spare pages are used.

    Needs: Kepler to Turing. Threshold: none pending; more than 60 of 64 pages warns. When it
    fails: reboot; near the limit, replace the GPU.
    """
    with_pages = [gpu for gpu in node_gpus if gpu.retired_pages is not None]
    if not with_pages:
        findings.not_applicable("these GPUs do not retire pages")
        pytest.skip("these GPUs do not retire pages")
    for gpu in with_pages:
        assert gpu.retired_pages is not None
        total = gpu.retired_pages.single_bit + gpu.retired_pages.double_bit
        if gpu.retired_pages.pending:
            findings.report(
                "fail",
                "memory.page_retirement_pending",
                gpu.label,
                "a retired memory page waits for a reboot.",
                next_step="Reboot, then accept again.",
            )
        if total > RETIRED_PAGES_TO_WARN:
            findings.report(
                "warn",
                "memory.pages_retired",
                gpu.label,
                f"{total} of 64 memory pages are retired.",
                next_step="Plan the replacement of this GPU.",
                measured=total,
                expected=f"<={RETIRED_PAGES_TO_WARN}",
                unit="pages",
            )
