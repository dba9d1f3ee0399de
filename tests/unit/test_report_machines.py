"""What programs read: JUnit properties and Prometheus metrics."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_gpucluster.report.junit import properties
from pytest_gpucluster.report.prometheus import exposition
from tests import made_up

# One line of the text format: name, labels in quotes, value.
SAMPLE = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\\n]|\\[\\n"])*",?)*\})? (NaN|[+-]Inf|[0-9.e+-]+)')


def test_a_measurement_is_a_property_under_its_own_name() -> None:
    assert properties(made_up.busbw()) == [
        ("gpucluster.node", "node-003"),
        ("all_reduce busbw 1 GiB [GB/s]", "478.1"),
        ("all_reduce busbw 1 GiB floor [GB/s]", "408.3"),
        ("all_reduce busbw 1 GiB expected [GB/s]", "480.4"),
    ]


def test_what_is_not_known_is_no_property() -> None:
    plain = made_up.busbw(floor=None, expected=None)
    assert [name for name, _ in properties(plain)] == [
        "gpucluster.node",
        "all_reduce busbw 1 GiB [GB/s]",
    ]


def test_a_finding_is_a_property_under_its_code() -> None:
    node, (name, value) = properties(made_up.links_down(2))
    assert node == ("gpucluster.node", "node-003")
    assert name == "fail nvlink.links_down"
    assert value.startswith("GPU2: 0 of 18")


def test_properties_hold_nothing_that_xml_cannot() -> None:
    hostile = made_up.busbw("\x00\x1b\udcff")
    assert all(text.isprintable() for pair in properties(hostile) for text in pair)


def test_metrics_follow_the_text_format() -> None:
    for name, make in made_up.ALL.items():
        text = exposition(make()[0])
        assert text.endswith("\n"), name
        for line in text.splitlines():
            assert line.startswith(("# HELP ", "# TYPE ")) or SAMPLE.fullmatch(line), line


def test_metrics_of_a_cluster() -> None:
    lines = exposition(made_up.cluster()[0]).splitlines()
    assert 'gpucluster_verdict{node="node-003",verdict="rejected"} 1' in lines
    assert 'gpucluster_verdict{node="node-003",verdict="accepted"} 0' in lines
    assert (
        'gpucluster_findings{node="node-003",severity="fail",code="nvlink.links_down"} 1' in lines
    )
    assert 'gpucluster_unverified_checks{node="node-004"} 6' in lines
    assert (
        sum(line.startswith("gpucluster_verdict{") and line.endswith(" 1") for line in lines) == 4
    )


def test_a_measurement_is_a_metric_with_its_unit() -> None:
    assert (
        f'gpucluster_measurement{{node="node-003",check="{made_up.ALL_REDUCE}",'
        'name="all_reduce busbw 1 GiB",unit="GB/s"} 478.1'
    ) in exposition(made_up.healthy()[0]).splitlines()


def test_labels_are_escaped() -> None:
    verdict = made_up.verdict_of(measurements=[made_up.busbw('a"b\\c\nd')])
    assert 'name="all_reduce busbw a\\"b\\\\c\\nd"' in exposition(verdict)


def test_the_same_sample_is_not_given_twice() -> None:
    verdict, _ = made_up.healthy()
    doubled = replace(verdict, measurements=(made_up.busbw(), made_up.busbw(value=1.0)))
    lines = [line for line in exposition(doubled).splitlines() if "_measurement{" in line]
    assert len(lines) == 1


def test_numbers_that_are_none() -> None:
    text = exposition(made_up.verdict_of(duration_s=float("inf")))
    assert text.endswith(" +Inf\n")
