"""GPU memory errors: what rejects, what warns, what does not apply."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucluster.checks import test_memory_errors as checks
from pytest_gpucluster.facts.model import Ecc, NodeFacts, RemappedRows, RetiredPages
from tests.unit.checking import RTX_3090, check, gpus, node, profile

HEALTHY = Ecc(True, True, 0, 0, 0, 0, False)


def with_ecc(odd: Ecc | None) -> NodeFacts:
    return node(*gpus(8, ecc=HEALTHY, odd={3: {"ecc": odd}}))


def test_healthy_memory_is_quiet() -> None:
    facts = node(*gpus(8, ecc=HEALTHY, remapped_rows=RemappedRows(2, 0, False, False)))
    assert check(checks.test_ecc_mode, facts).quiet
    assert check(checks.test_ecc_errors, facts).quiet
    assert check(checks.test_row_remapping, facts).quiet


def test_ecc_must_be_on_where_the_product_ships_with_it() -> None:
    found = check(checks.test_ecc_mode, with_ecc(Ecc(False, False)))
    assert found.short == [("fail", "memory.ecc_mode", "GPU3")]


def test_a_change_of_ecc_that_waits_for_a_reboot_warns() -> None:
    found = check(checks.test_ecc_mode, with_ecc(Ecc(True, False)))
    assert found.short == [("warn", "memory.ecc_mode", "GPU3")]
    assert "off after the next reboot" in found.findings[0].message


@pytest.mark.parametrize("unread", [None, Ecc()])
def test_an_ecc_mode_that_could_not_be_read_is_unverified(unread: Ecc | None) -> None:
    assert check(checks.test_ecc_mode, with_ecc(unread)).unverified == [
        "the ECC mode of GPU3 could not be read"
    ]


def test_gpus_without_ecc_are_not_judged_unless_the_profile_asks() -> None:
    geforce = node(*gpus(2, RTX_3090))
    assert check(checks.test_ecc_mode, geforce).not_applicable
    assert check(checks.test_ecc_errors, geforce).not_applicable
    assert len(check(checks.test_ecc_mode, geforce, profile("[gpus]\necc = true")).unverified) == 2


@pytest.mark.parametrize(
    ("ecc", "short"),
    [
        (Ecc(True, True, 1, 1), [("fail", "memory.ecc_uncorrectable", "GPU3")]),
        (Ecc(True, True, 0, 4), [("warn", "memory.ecc_uncorrectable", "GPU3")]),
        (Ecc(True, True, 0, 0, 900, 90000), []),
        (
            Ecc(True, True, 0, 0, sram_threshold_exceeded=True),
            [("fail", "memory.sram_threshold", "GPU3")],
        ),
    ],
    ids=["new", "old", "only corrected", "SRAM"],
)
def test_memory_errors(ecc: Ecc, short: list[Any]) -> None:
    assert check(checks.test_ecc_errors, with_ecc(ecc)).short == short


def test_counters_that_could_not_be_read_are_unverified() -> None:
    assert check(checks.test_ecc_errors, with_ecc(Ecc(True, True))).unverified == [
        "the ECC counters of GPU3 could not be read"
    ]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (RemappedRows(0, 1, pending=False, failed=True), "memory.row_remap_failed"),
        (RemappedRows(1, 0, pending=True, failed=False), "memory.row_remap_pending"),
        (RemappedRows(0, 1, pending=True, failed=True), "memory.row_remap_failed"),
    ],
)
def test_row_remapping_gives_one_finding_the_worse_one(rows: RemappedRows, code: str) -> None:
    healthy = RemappedRows(0, 0, False, False)
    facts = node(*gpus(8, remapped_rows=healthy, odd={3: {"remapped_rows": rows}}))
    assert check(checks.test_row_remapping, facts).short == [("fail", code, "GPU3")]


def test_gpus_that_do_not_remap_rows_are_not_judged() -> None:
    assert check(checks.test_row_remapping, node(*gpus(2, RTX_3090))).not_applicable
    assert check(checks.test_retired_pages, node(*gpus(8))).not_applicable


@pytest.mark.parametrize(
    ("pages", "short"),
    [
        (RetiredPages(0, 0, False), []),
        (RetiredPages(30, 30, False), []),
        (RetiredPages(30, 31, False), [("warn", "memory.pages_retired", "GPU0")]),
        (RetiredPages(1, 0, True), [("fail", "memory.page_retirement_pending", "GPU0")]),
        (RetiredPages(1, 0, None), []),
    ],
)
def test_retired_pages(pages: RetiredPages, short: list[Any]) -> None:
    facts = node(*gpus(1, "Tesla V100-SXM2-32GB", retired_pages=pages))
    assert check(checks.test_retired_pages, facts).short == short
