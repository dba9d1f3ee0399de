"""The verdict inside pytest-html's own page."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from pytest_gpucluster.report.pytest_html import (
    COLUMNS,
    add_header_cells,
    add_row_cells,
    summary_fragment,
)
from pytest_gpucluster.verdict.findings import FINDING, MEASUREMENT, encode
from tests import made_up

CONFTEST = """
from pathlib import Path
from pytest_gpucluster.report import pytest_html as shown
from tests import made_up

def pytest_html_results_summary(prefix):
    prefix.append(shown.summary_fragment(made_up.hostile()[0], Path("gpucluster-report")))

def pytest_html_results_table_header(cells):
    shown.add_header_cells(cells)

def pytest_html_results_table_row(report, cells):
    shown.add_row_cells(report, cells, made_up.SCRIPT)
"""
TESTS = """
import pytest
from pytest_gpucluster.verdict.findings import FINDING, MEASUREMENT, encode
from tests import made_up

def test_measures(record_property):
    record_property(MEASUREMENT, encode(made_up.busbw()))

def test_finds(record_property):
    record_property(FINDING, encode(made_up.links_down(2)))
    pytest.fail("0 of 18")

def test_skips(): pytest.skip("no GPU")

@pytest.fixture
def broken(): raise RuntimeError("set-up")

def test_error(broken): pass
"""


class Report:
    def __init__(self, *properties: tuple[str, str]) -> None:
        self.user_properties = list(properties)


def row(*properties: tuple[str, str]) -> list[str]:
    cells = ["<td>result</td>", "<td>name</td>", "<td>time</td>", "<td>links</td>"]
    add_row_cells(Report(*properties), cells, "here")  # type: ignore[arg-type]
    return cells


def test_header_and_rows_have_the_same_cells_in_the_same_place() -> None:
    header = ["result", "name", "time", "links"]
    add_header_cells(header)
    cells = row()
    assert len(cells) == len(header) == 7
    for column in COLUMNS:
        (place,) = [n for n, cell in enumerate(header) if f'data-column-type="{column}"' in cell]
        assert f'class="col-{column}"' in cells[place]


def test_a_row_shows_node_measured_and_expected() -> None:
    cells = row((MEASUREMENT, encode(made_up.busbw())), (FINDING, encode(made_up.links_down(2))))
    assert cells[2:5] == [
        '<td class="col-node">node-003</td>',
        '<td class="col-measured">GPU2 0 links; all_reduce busbw 1 GiB 478.1 GB/s</td>',
        '<td class="col-expected">GPU2 18 links; all_reduce busbw 1 GiB at least 408.3 GB/s</td>',
    ]


def test_a_row_without_records_names_the_node_of_the_run() -> None:
    assert row()[2:5] == [
        '<td class="col-node">here</td>',
        '<td class="col-measured"></td>',
        '<td class="col-expected"></td>',
    ]


def test_a_collect_report_has_a_row_too() -> None:
    cells: list[str] = ["a", "b"]
    add_row_cells(pytest.CollectReport("t.py", "failed", "boom", []), cells, "here")
    assert len(cells) == 5


def test_everything_is_escaped() -> None:
    fragment = summary_fragment(made_up.hostile()[0], Path(made_up.SCRIPT))
    assert "<script" not in fragment
    assert "<img" not in fragment
    cells = row((MEASUREMENT, encode(made_up.busbw(made_up.SCRIPT, unit=made_up.SCRIPT))))
    assert "<script" not in "".join(cells)


def test_the_summary_names_verdict_finding_and_report() -> None:
    fragment = summary_fragment(made_up.rejected()[0], Path("gpucluster-report"))
    for part in (
        "gpucluster: rejected",
        "do not run training jobs here",
        "<b>fail</b> node-003, GPU2: 0 of 18",
        "Next: Check Xid",
        "Checks not verified: 1.",
        "gpucluster-report/report.html",
    ):
        assert part in fragment


def test_long_lists_of_findings_are_cut() -> None:
    verdict = made_up.verdict_of(*(made_up.cluster()[0].nodes * 40))
    fragment = summary_fragment(verdict, Path("r"))
    assert fragment.count("<li>") == 51
    assert "and 30 more, see the report" in fragment


def test_pytest_html_takes_it(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_html")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_mine=TESTS, test_broken="import no_such_module")
    pytester.syspathinsert(Path(__file__).parents[2])
    run = pytester.runpytest_subprocess(
        "--html=out.html", "--self-contained-html", "--continue-on-collection-errors",
        "-W", "ignore",
    )  # fmt: skip
    run.assert_outcomes(passed=1, failed=1, skipped=1, errors=2)
    source = (pytester.path / "out.html").read_text()
    assert "<h2>gpucluster: rejected</h2>" in source
    assert "<script>document.title" not in source
    blob = re.search(r'data-jsonblob="([^"]*)"', source)
    assert blob
    tests = json.loads(html.unescape(blob[1]))["tests"]
    rows = {test["testId"]: test["resultsTableRow"] for entry in tests.values() for test in entry}
    assert len(rows) == 5
    assert {len(cells) for cells in rows.values()} == {7}
    assert "all_reduce busbw 1 GiB 478.1 GB/s" in rows["test_mine.py::test_measures"][3]
    assert "GPU2 18 links" in rows["test_mine.py::test_finds"][4]
