"""Each GPU computes the same bits as the others, and as fast."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from pytest_gpucluster.checks.compare import skip_if_alone
from pytest_gpucluster.ranks.group import ProcessGroup
from pytest_gpucluster.verdict.findings import Measurement
from pytest_gpucluster.verdict.recorder import Findings

pytestmark = [pytest.mark.gpucluster_level("extended"), pytest.mark.distributed(timeout=300)]

SIZE = {"nccl": 8192, "gloo": 384}
BUDGET_S = {"nccl": 5.0, "gloo": 1.0}
# Same model, same clocks: GPUs differ by a few per cent. CPU ranks share cores.
SLOW = {"nccl": 0.9, "gloo": 0.5}


def test_matrix_products(process_group: ProcessGroup, findings: Findings) -> None:
    """A float32 matrix product is exact on every GPU and equally fast.

    Needs: two ranks; three before a slow one can be named. Threshold: checksums exact, equal
    bits on all ranks; a rank whose whole interval lies under 0.9 x the median fails (0.5 x on
    CPU ranks). When it fails: wrong bits, replace the GPU; slow, check clocks and cooling.
    """
    skip_if_alone(process_group, findings)
    from pytest_gpucluster.measure.compute import multiply

    backend = process_group.backend
    mine = multiply(SIZE[backend], process_group.device, BUDGET_S[backend])
    speed = mine.tflops
    answers = process_group.exchange(
        [mine.fingerprint, mine.wrong_rows, speed.median, speed.low, speed.high]
    )
    usual_print = Counter(answer[0] for answer in answers).most_common(1)[0][0]
    usual_speed = statistics.median(answer[2] for answer in answers)
    for rank, (fingerprint, wrong_rows, median, low, high) in enumerate(answers):
        findings.measured(
            Measurement(
                name=f"matrix product rank {rank}",
                value=round(median, 4),
                unit="TFLOP/s",
                low=round(low, 4),
                high=round(high, 4),
                derivation="relative to the other ranks",
                conditions={"dtype": "float32", "size": SIZE[backend]},
            )
        )
        if wrong_rows or fingerprint != usual_print:
            findings.report(
                "fail",
                "compute.wrong",
                f"rank {rank}",
                f"a matrix product of exact numbers came out wrong ({wrong_rows} rows by their "
                "checksum; bits "
                f"{'differ from' if fingerprint != usual_print else 'equal'} the majority's).",
                next_step="Run the checks again; replace the GPU if it repeats.",
                measured=wrong_rows,
                expected=0,
                unit="rows",
            )
        if len(answers) >= 3 and high < SLOW[backend] * usual_speed:
            findings.report(
                "fail",
                "compute.slow",
                f"rank {rank}",
                f"computes {median:.3g} TFLOP/s, the median is {usual_speed:.3g}.",
                next_step="Check this GPU's clocks, power limit and cooling under load.",
                measured=round(median, 4),
                expected=f">={SLOW[backend] * usual_speed:.3g}",
                unit="TFLOP/s",
                source="the other GPUs of this node",
            )
