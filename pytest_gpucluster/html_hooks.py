"""pytest-html's hooks; registered only where pytest-html is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.report import pytest_html

if TYPE_CHECKING:
    import pytest

    from pytest_gpucluster.session import Session


class HtmlHooks:
    """Adds the verdict and three columns to pytest-html's page."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def pytest_html_results_summary(self, prefix: list[str]) -> None:
        if self._session.verdict is not None:
            prefix.append(pytest_html.summary_fragment(self._session.verdict, self._session.folder))

    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        pytest_html.add_header_cells(cells)

    def pytest_html_results_table_row(
        self, report: pytest.TestReport | pytest.CollectReport, cells: list[str]
    ) -> None:
        pytest_html.add_row_cells(report, cells, self._session.node)
