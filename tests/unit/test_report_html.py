"""The page: what it says, and that nothing of a machine is markup in it."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from pytest_gpucluster.report.charts import bar
from pytest_gpucluster.report.html import render
from pytest_gpucluster.report.matrix import link_matrix
from tests import made_up

VOID = {"meta", "img", "br", "link", "rect", "line"}


class Page(HTMLParser):
    """The tags and the text of a page; fails where a tag is not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in ("td", "th", "dt", "dd", "div", "code"):
            self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(name: str) -> Page:
    return Page(render(*made_up.ALL[name]()))


@pytest.mark.parametrize("name", made_up.ALL)
def test_the_page_is_self_contained_and_well_formed(name: str) -> None:
    shown = page(name)
    names = {tag for tag, _ in shown.tags}
    assert not names & {"script", "link", "iframe", "object", "img", "form"}
    for tag, attributes in shown.tags:
        assert not {"src", "srcset", "action", "style"} & set(attributes), tag
        assert not [key for key in attributes if key.startswith("on")], tag
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in render(*made_up.ALL[name]())
    assert "@import" not in render(*made_up.ALL[name]())


@pytest.mark.parametrize("name", made_up.ALL)
def test_headings_and_tables_have_meaning(name: str) -> None:
    shown = page(name)
    levels = [int(tag[1]) for tag, _ in shown.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(shown.all("caption")) == len(shown.all("table"))
    assert all(cell.get("scope") in ("row", "col") for cell in shown.all("th"))


def test_hostile_text_is_text() -> None:
    verdict, facts = made_up.hostile()
    source = render(verdict, facts)
    assert "<script" not in source
    assert "<img" not in source
    assert "&lt;script&gt;" in source
    source.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\ud800-\udfff]", source)


def test_very_long_text_is_cut_and_says_so() -> None:
    source = render(*made_up.hostile())
    assert "y" * 700 not in source
    assert "characters)" in source
    assert len(source) < 100_000


def test_a_rejection_shows_cause_figures_proof_and_next_step() -> None:
    text = page("rejected").text
    for part in (
        "Rejected",
        "Do not run training jobs here.",
        "GPU2 nvlink.links_down 0 of 18 NVLinks are up",
        "Found 0 links Expected 18 links (catalogue: NVIDIA H100 SXM)",
        "Next Check Xid 74/149",
        "dmesg:812 NVRM: Xid (PCI:0000:3b:00): 149",
        "Follows from it p2p.unsupported GPU0-GPU2",
        "Check gpucluster/test_nvlink.py::test_links_up",
        "GPU0 to GPU7 (8) persistence.off",
    ):
        assert part in text
    assert text.index("nvlink.links_down") < text.index("persistence.off")


def test_the_gpu_at_fault_is_marked_in_words() -> None:
    rows = re.findall(r"<tr class=\"(\w*)\"><th scope=\"row\">(GPU\d)", render(*made_up.rejected()))
    assert Counter(kind for kind, _ in rows) == {"warn": 7, "fail": 1}
    assert ("fail", "GPU2") in rows
    assert "GPU2 ✕ at fault" in page("rejected").text


def test_the_hardware_is_shown() -> None:
    text = page("healthy").text
    row = "GPU1 NVIDIA H100 80GB HBM3 0000:2a:00.0 79.6 GiB on gen 1 x16 gen 5 x16 18 of 18 31 °C"
    for part in (row, "mlx5_0 port 1 infiniband ACTIVE 400 Gb/s", "Ubuntu 24.04.3 LTS"):
        assert part in text


def test_measurements_show_expectation_source_and_conditions() -> None:
    text = page("healthy").text
    for part in (
        "478.1 GB/s 476.1 to 480.1",
        "408.3 480.4 843.8 derived: H100 SXM, NVSwitch with NVLS",
        "18 links x 25 GB/s x 0.92 x 1.16",
        "dtype bfloat16, bytes 1073741824, ranks 8",
    ):
        assert part in text


def test_a_rehearsal_shouts_and_has_nothing_to_sign() -> None:
    text = page("rehearsal").text
    assert "Rehearsal: this accepts nothing." in text
    assert "Signatures" not in text
    assert "Accepted" not in text
    assert "Signatures" in page("healthy").text


def test_evidence_is_said_to_be_evidence() -> None:
    verdict, facts = made_up.healthy()
    assert (
        "Judged from saved evidence." in Page(render(replace(verdict, mode="evidence"), facts)).text
    )


def test_what_was_not_checked_is_shown_with_its_reason() -> None:
    text = page("without_gpu").text
    assert "there is no GPU to check gpucluster/test_nvlink.py::test_links_up" in text
    assert "nvml: NVML library not found" in text
    assert "No GPU was found." in text
    assert (
        "no adapters in the profile gpucluster/test_network.py::test_ports" in page("rejected").text
    )


def test_options_versions_and_remarks_are_shown() -> None:
    verdict, facts = made_up.healthy()
    text = Page(render(replace(verdict, remarks=("the profile was not written",)), facts)).text
    assert "gpucluster_level standard default" in text
    assert "driver 580.95.05" in text
    assert "Note: the profile was not written" in text


def test_a_cluster_starts_with_its_nodes_worst_first() -> None:
    shown = page("cluster")
    assert [link["href"] for link in shown.all("a")] == [f"#node-{n}" for n in range(1, 5)]
    assert [s["id"] for s in shown.all("section") if "id" in s] == [
        f"node-{n}" for n in range(1, 5)
    ]
    text = shown.text
    order = [text.index(name) for name in ("node-003", "node-004", "node-002", "node-001")]
    assert order == sorted(order)
    assert "Nothing is known about this node's hardware." in text


def test_a_node_without_facts_and_results_still_has_a_page() -> None:
    assert Page(render(made_up.verdict_of(), {})).text.startswith("Unverified")


def test_the_matrix_counts_links_and_shows_the_path_where_there_are_none() -> None:
    rows = dict(link_matrix(made_up.h100_node(down=[2])))
    (diagonal,) = [cell for cell in rows["GPU0"] if cell is None]
    assert diagonal is None
    texts = [cell.text for cell in rows["GPU0"] if cell]
    assert texts == ["NV18", "NODE", "NV18", "NV18", "NV18", "NV18", "NV18"]
    assert [cell.heat for cell in rows["GPU2"] if cell] == [0] * 7
    assert {cell.heat for cell in rows["GPU1"] if cell} == {0, 4}


def test_bars_are_drawn_to_scale() -> None:
    drawn = str(bar(made_up.busbw(value=422.0, expected=None, floor=None, ceiling=844.0)))
    value, ceiling = (
        float(re.findall(pattern, drawn)[0])
        for pattern in (r'class="value" [^>]*width="([\d.]+)"', r'class="ceiling" x1="([\d.]+)"')
    )
    assert value / ceiling == pytest.approx(0.5, abs=0.01)
    assert 'aria-label="measured 422, ceiling 844"' in drawn


def test_a_value_below_its_floor_is_drawn_as_such() -> None:
    assert 'class="value low"' in str(bar(made_up.busbw(value=201.0)))
    assert 'class="value low"' not in str(bar(made_up.busbw()))


@pytest.mark.parametrize(
    "changes",
    [
        {"expected": None, "floor": None, "ceiling": None},
        {"value": math.nan},
        {"value": math.inf},
        {"value": 0.0, "low": 0.0, "high": 0.0, "expected": 0.0, "floor": None, "ceiling": None},
    ],
)
def test_without_anything_to_compare_there_is_no_bar(changes: dict[str, float | None]) -> None:
    assert bar(replace(made_up.busbw(), **changes)) is None  # type: ignore[arg-type]
