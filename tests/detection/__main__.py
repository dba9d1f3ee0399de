"""``make detection``: the table of faults, on the terminal, in the docs and as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_gpucluster.collection import level_by_check
from tests.detection.cases import CASES, HEALTHY_MACHINES, HEALTHY_REHEARSALS, Case
from tests.detection.run import Outcome, fake_environment, judge, run_case, run_pytest

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "build/detection.json"
PAGE = ROOT / "docs/detection.md"
WORKERS = 2


@dataclass(frozen=True)
class Row:
    """One fault of one check. False alarms are counted per check over all healthy runs."""

    check: str
    fault: str
    injected: int
    detected: int
    blamed: int
    healthy_runs: int
    false_alarms: int


def main() -> int:
    """Run everything; the exit status is 1 if a fault was missed or a healthy run blamed."""
    with tempfile.TemporaryDirectory(prefix="gpucluster-detection-") as name:
        folder = Path(name)
        libraries = folder / "libraries"
        libraries.mkdir()
        with ThreadPoolExecutor(WORKERS) as pool:
            healthy = list(pool.map(lambda job: job(), _healthy_jobs(folder, libraries)))
            found = list(pool.map(lambda case: _one(case, folder, libraries), CASES))
    rows = [_row(case, judged, healthy) for case, judged in zip(CASES, found, strict=True)]
    unproven = sorted(set(level_by_check()) - {row.check for row in rows})
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([row.__dict__ for row in rows], indent=2) + "\n")
    PAGE.write_text(render(rows, len(healthy)), encoding="utf-8")
    sys.stdout.write(render(rows, len(healthy)))
    for check in unproven:
        sys.stdout.write(f"NOT PROVEN: {check} has no fault\n")
    missed = [row for row in rows if not row.detected or not row.blamed or row.false_alarms]
    for row in missed:
        sys.stdout.write(f"MISSED: {row}\n")
    return 1 if missed or unproven else 0


def render(rows: list[Row], healthy_runs: int) -> str:
    """The table as Markdown."""
    lines = [
        "# Detection table",
        "",
        "Written by `make detection`: each check, the faults injected into it, whether they were",
        f"found and blamed on the right part, and false alarms in {healthy_runs} healthy runs",
        "(eight fake machines, and rehearsals on CPU ranks). No GPU took part.",
        "",
        "| check | fault | injected | detected | rightly blamed | healthy runs | false alarms |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{row.check.removeprefix('gpucluster/')}` | {row.fault} | {row.injected} "
        f"| {row.detected} | {row.blamed} | {row.healthy_runs} | {row.false_alarms} |"
        for row in rows
    ]
    total = [sum(getattr(row, name) for row in rows) for name in ("injected", "detected", "blamed")]
    lines.append(f"| **all** | | {total[0]} | {total[1]} | {total[2]} | | |")
    return "\n".join(lines) + "\n"


def _one(case: Case, folder: Path, libraries: Path) -> tuple[bool, bool]:
    place = Path(tempfile.mkdtemp(dir=folder))
    judged = judge(case, run_case(case, place, libraries))
    sys.stderr.write(f"{'ok  ' if judged.detected and judged.blamed else 'MISS'} {case.id}\n")
    return judged.detected, judged.blamed


def _healthy_jobs(folder: Path, libraries: Path):  # type: ignore[no-untyped-def]
    def on_machine(machine: str) -> Outcome:
        place = Path(tempfile.mkdtemp(dir=folder))
        fake = fake_environment(place, libraries, machine)
        return run_pytest(place, "--gpucluster-level=inventory", environment=fake)

    def rehearsal(level: str, ranks: int) -> Outcome:
        place = Path(tempfile.mkdtemp(dir=folder))
        return run_pytest(
            place,
            f"--gpucluster-level={level}",
            f"--gpucluster-ranks={ranks}",
            "--gpucluster-rehearse",
            "--gpucluster-soak=3s",
            environment={},
        )

    jobs = [lambda machine=machine: on_machine(machine) for machine in HEALTHY_MACHINES]
    jobs += [lambda given=given: rehearsal(*given) for given in HEALTHY_REHEARSALS]
    return jobs


def _row(case: Case, judged: tuple[bool, bool], healthy: list[Outcome]) -> Row:
    check = f"gpucluster/{case.check}"
    alarms: dict[str, int] = defaultdict(int)
    for outcome in healthy:
        for entry in [*outcome.findings, *outcome.unverified]:
            alarms[entry["check"]] += 1
        if not outcome.verdict:
            alarms[check] += 1
    ran = [o for o in healthy if _ran(o, check)]
    return Row(check, case.name, 1, int(judged[0]), int(judged[1]), len(ran), alarms[check])


def _ran(outcome: Outcome, check: str) -> bool:
    checks = [c for node in outcome.verdict.get("nodes", []) for c in node.get("checks", [])]
    return any(c["check"] == check and c["outcome"] == "passed" for c in checks)


if __name__ == "__main__":
    sys.exit(main())
