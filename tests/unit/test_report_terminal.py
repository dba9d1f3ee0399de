"""The summary at the end of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpucluster.report.terminal import summary_lines
from pytest_gpucluster.report.text import LONGEST_LINE, name_parts, printable
from pytest_gpucluster.verdict.findings import Finding, NotChecked
from pytest_gpucluster.verdict.verdict import Verdict
from tests import made_up

FOLDER = Path("gpucluster-report")


def lines(verdict: Verdict) -> list[str]:
    return [text for text, _ in summary_lines(verdict, FOLDER)]


def place(shown: list[str], start: str) -> int:
    return next(index for index, line in enumerate(shown) if line.startswith(start))


def test_a_rejection_says_what_where_expected_and_next() -> None:
    shown = lines(made_up.rejected()[0])
    first = place(shown, "FAIL GPU2: 0 of 18 NVLinks are up")
    assert first == 0
    assert "[nvlink.links_down]" in shown[0]
    assert "found 0 links, expected 18 links (catalogue: NVIDIA H100 SXM)" in shown[1]
    assert "dmesg:812: NVRM: Xid" in shown[2]
    assert shown[3].strip().startswith("next: Check Xid 74/149")
    assert "follows from it: p2p.unsupported GPU0-GPU2" in shown[4]


def test_worst_first_and_the_verdict_last() -> None:
    shown = lines(made_up.rejected()[0])
    order = [
        place(shown, start)
        for start in ("FAIL", "WARN GPU0 to GPU7 (8)", "UNVERIFIED", "all_reduce", "verdict: ")
    ]
    assert order == sorted(order)
    assert shown[-3] == "verdict: rejected (do not run training jobs here)"
    assert shown[-2] == "again: pytest --gpucluster gpucluster/test_nvlink.py::test_links_up"
    assert shown[-1] == f"report: {FOLDER / 'report.html'}"


def test_a_cluster_names_the_node_of_each_line_and_counts() -> None:
    shown = lines(made_up.cluster()[0])
    assert shown[0].startswith("FAIL node-003: GPU2: ")
    assert any(line.startswith("UNVERIFIED node-004: the node was lost") for line in shown)
    assert "nodes: 1 rejected, 1 lost, 1 accepted_with_warnings, 1 accepted" in shown


def test_failures_of_every_node_come_before_any_warning() -> None:
    verdict, _ = made_up.cluster()
    shown = lines(replace(verdict, nodes=verdict.nodes[::-1]))
    fails = [index for index, line in enumerate(shown) if line.startswith("FAIL")]
    warns = [index for index, line in enumerate(shown) if line.startswith("WARN")]
    assert max(fails) < min(warns)


def test_gaps_of_worse_nodes_come_first() -> None:
    verdict, _ = made_up.cluster()
    gap = (NotChecked("t.py::t", "why", "node-001"),)
    nodes = [replace(node, unverified=node.unverified or gap) for node in verdict.nodes]
    shown = lines(replace(verdict, nodes=tuple(nodes)))
    gaps = [line.split(":")[0] for line in shown if line.startswith("UNVERIFIED")]
    order = ["node-003", "node-004", "node-002", "node-001"]
    assert list(dict.fromkeys(gaps)) == [f"UNVERIFIED {name}" for name in order]


def test_measurements_show_what_they_are_compared_to() -> None:
    shown = "\n".join(lines(made_up.healthy()[0]))
    assert (
        "all_reduce busbw 1 GiB: 478.1 GB/s (476.1 to 480.1), floor 408.3, expected 480.4 "
        "(derived: H100 SXM, NVSwitch with NVLS)"
    ) in shown


def test_a_rehearsal_says_that_it_accepts_nothing() -> None:
    shown = lines(made_up.rehearsal()[0])
    assert "verdict: rehearsed (CPU ranks only: this accepts nothing)" in shown
    assert any("a rehearsal expects no bandwidth" in line for line in shown)


def test_reasons_shared_by_many_checks_stand_on_one_line() -> None:
    verdict, _ = made_up.without_gpu()
    (shared,) = (line for line in lines(verdict) if line.startswith("UNVERIFIED"))
    assert shared == (
        "UNVERIFIED test_nvlink.py::test_links_up, test_p2p.py::test_peer_access, "
        "test_collectives.py::test_all_reduce_bandwidth: there is no GPU to check"
    )


def test_long_lists_are_cut_and_say_so() -> None:
    verdict, _ = made_up.healthy()
    gaps = tuple(NotChecked(f"c{n}", f"reason {n}", "n") for n in range(50))
    node = replace(verdict.nodes[0], unverified=gaps)
    many = replace(verdict, nodes=(node,), measurements=(made_up.busbw(),) * 100)
    shown = lines(many)
    assert len(shown) < 60
    assert "... and 38 more reasons, see the report" in shown
    assert "... and 76 more, see the report" in shown


def test_nothing_of_a_machine_reaches_the_terminal_raw() -> None:
    shown = lines(made_up.hostile()[0])
    for line in shown:
        assert line.isprintable(), repr(line)
        assert len(line) <= LONGEST_LINE + 120
        line.encode()


def test_the_command_to_repeat_is_safe_to_paste() -> None:
    verdict, _ = made_up.healthy()
    evil = Finding("fail", "x", "node", "m", "n", "n", "t.py::t[$(reboot)]")
    node = replace(verdict.nodes[0], verdict="rejected", findings=(evil,))
    again = next(line for line in lines(replace(verdict, nodes=(node,))) if "again" in line)
    assert again == "again: pytest --gpucluster 't.py::t[$(reboot)]'"
    many = tuple(replace(evil, check=f"t.py::t{n}") for n in range(9))
    node = replace(node, findings=many)
    again = next(line for line in lines(replace(verdict, nodes=(node,))) if "again" in line)
    assert again == "again: pytest --gpucluster --lf"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\r\nand more", "two lines and more"),
        ("\x1b[31mred", "�[31mred"),
        ("\x9b31m", "�31m"),
        ("abc\u202ecba", "abc�cba"),
        ("half\udcff", "half�"),
        ("x" * 500, "x" * 399 + "…"),
    ],
)
def test_printable(raw: str, shown: str) -> None:
    assert printable(raw) == shown


@pytest.mark.parametrize(
    ("component", "shown"),
    [
        ("GPU2", "GPU2"),
        ("GPU2-GPU5", "GPU2-GPU5"),
        ("GPU4,GPU5", "GPU4, GPU5"),
        ("GPU0,GPU1,GPU2,GPU3", "GPU0 to GPU3 (4)"),
        ("GPU0,GPU1,GPU2,GPU5,GPU7,GPU8", "GPU0 to GPU2, GPU5, GPU7, GPU8 (6)"),
        ("rank 9,rank 10,rank 11", "rank 9 to rank 11 (3)"),
        ("a" + "9" * 5000 + ",b,c", "a" + "9" * 5000 + ", b, c (3)"),
    ],
)
def test_components_as_people_say_them(component: str, shown: str) -> None:
    assert name_parts(component) == shown
