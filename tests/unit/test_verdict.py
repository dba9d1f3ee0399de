"""What results and findings mean for a node and for the cluster."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpucluster.facts.model import to_json
from pytest_gpucluster.verdict.exitcodes import exit_code
from pytest_gpucluster.verdict.findings import Finding, NotChecked
from pytest_gpucluster.verdict.validate import VerdictError, schema, validate
from pytest_gpucluster.verdict.verdict import (
    WORST_FIRST,
    CheckResult,
    NodeVerdict,
    VerdictName,
    judge_node,
)
from tests import made_up

A, B = "gpucluster/test_a.py::test_a", "gpucluster/test_b.py::test_b"
WARN = Finding("warn", "nvlink.errors", "GPU3", "12 replays", "Watch them.", "n", B)
FAIL = Finding("fail", "nvlink.links_down", "GPU1", "0 of 18", "Reseat it.", "n", B)


def judged(*outcomes: str, **changes: Any) -> NodeVerdict:
    """Judge checks A and B, which ended with ``outcomes``."""
    ended = [
        CheckResult(check, "n", outcome, None if outcome == "passed" else "why")  # type: ignore[arg-type]
        for check, outcome in zip((A, B), outcomes, strict=False)
    ]
    given_: dict[str, Any] = {
        "results": ended,
        "findings": [],
        "unverified": [],
        "not_applicable": [],
        "required": (A, B),
    }
    return judge_node("n", **{**given_, **changes})


def reasons(node: NodeVerdict) -> dict[str, str]:
    return {entry.check: entry.reason for entry in node.unverified}


def test_all_passed_is_accepted() -> None:
    assert judged("passed", "passed").verdict == "accepted"


def test_warnings_alone_still_accept() -> None:
    assert judged("passed", "passed", findings=[WARN]).verdict == "accepted_with_warnings"


def test_a_failure_outweighs_warnings_gaps_and_loss() -> None:
    node = judged("passed", "failed", findings=[WARN, FAIL], unverified=[NotChecked(A, "x", "n")])
    assert node.verdict == "rejected"
    assert node.findings == (FAIL, WARN)
    assert judged("failed", lost="no answer").verdict == "rejected"


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("skipped", "why"),
        ("not_run", "why"),
        ("crashed", "the check itself crashed: why"),
        (None, "it was not run"),
    ],
)
def test_a_required_check_that_did_not_judge_is_a_gap(outcome: str | None, said: str) -> None:
    node = judged("passed", *([outcome] if outcome else []))
    assert node.verdict == "unverified"
    assert reasons(node) == {B: said}


def test_a_deselected_check_is_a_gap_that_says_so() -> None:
    assert reasons(judged("passed", deselected=[B])) == {B: "deselected on the command line"}


def test_a_check_that_does_not_apply_is_no_gap() -> None:
    excuse = [NotChecked(B, "no NVLink expected here", "n")]
    node = judged("passed", "skipped", not_applicable=excuse)
    assert node.verdict == "accepted"
    assert node.not_applicable == tuple(excuse)


def test_an_excuse_does_not_cover_a_crash_or_a_check_that_never_ran() -> None:
    excuse = [NotChecked(B, "the profile allows nvlink.errors", "n")]
    assert judged("passed", "crashed", not_applicable=excuse).verdict == "unverified"
    assert judged("passed", not_applicable=excuse).verdict == "unverified"


def test_a_gap_is_named_once_with_the_check_s_own_reason() -> None:
    own = NotChecked(B, "the driver does not say", "n")
    node = judged("passed", "skipped", unverified=[own, own])
    assert node.unverified == (own,)


def test_optional_checks_may_verify_nothing_but_are_not_forgotten() -> None:
    own = NotChecked(B, "no RDMA device", "n")
    node = judged("passed", "skipped", unverified=[own], optional=["gpucluster/test_b.py*"])
    assert node.verdict == "accepted"
    assert "no RDMA device" in node.not_applicable[0].reason


def test_an_optional_check_that_fails_still_rejects() -> None:
    assert judged("passed", "failed", optional=["*test_b*"]).verdict == "rejected"


def test_a_failure_without_a_finding_becomes_one() -> None:
    node = judged("passed", "failed", findings=[WARN])
    assert node.verdict == "rejected"
    first = node.findings[0]
    assert (first.code, first.message, first.check) == ("check.failed", "why", B)
    assert B in first.next_step


def test_a_failure_with_its_own_finding_is_not_told_twice() -> None:
    assert judged("passed", "failed", findings=iter([FAIL])).findings == (FAIL,)


@pytest.mark.parametrize("outcomes", [(), ("skipped", "skipped")])
@pytest.mark.parametrize("mode", ["live", "rehearsal", "evidence"])
def test_nothing_checked_is_never_accepted(outcomes: tuple[str, ...], mode: str) -> None:
    node = judged(*outcomes, required=(), mode=mode)
    assert node.verdict == "unverified"
    assert node.unverified


@pytest.mark.parametrize("findings", [[], [WARN]])
def test_a_rehearsal_accepts_nothing(findings: list[Finding]) -> None:
    assert judged("passed", "passed", findings=findings, mode="rehearsal").verdict == "rehearsed"
    assert judged("passed", "failed", findings=[FAIL], mode="rehearsal").verdict == "rejected"


def test_a_lost_node_says_why() -> None:
    node = judged("passed", "passed", lost="no answer for 30 s")
    assert node.verdict == "lost"
    assert "no answer for 30 s" in node.unverified[0].reason


def test_every_case_of_a_required_check_counts() -> None:
    cases = [CheckResult(f"{B}[{n}]", "n", o) for n, o in ((2, "passed"), (4, "skipped"))]  # type: ignore[arg-type]
    node = judged(results=[CheckResult(A, "n", "passed"), *cases])
    assert list(reasons(node)) == [f"{B}[4]"]


@pytest.mark.parametrize(("worse", "better"), [*itertools.combinations(WORST_FIRST, 2)])
def test_the_cluster_is_as_good_as_its_worst_node(worse: VerdictName, better: VerdictName) -> None:
    verdict = made_up.verdict_of(NodeVerdict("a", better), NodeVerdict("b", worse))
    assert verdict.verdict == worse
    assert verdict.counts == {worse: 1, better: 1}


def test_a_cluster_without_nodes_is_unverified() -> None:
    assert made_up.verdict_of().verdict == "unverified"


CODES = {
    "accepted": 0,
    "accepted_with_warnings": 0,
    "rehearsed": 0,
    "rejected": 1,
    "lost": 1,
    "unverified": 8,
}


@pytest.mark.parametrize(("verdict", "code"), list(CODES.items()))
def test_exit_codes(verdict: str, code: int) -> None:
    assert exit_code(verdict, 0) == code
    assert exit_code(verdict, 1) == (code or 1)
    for own in (2, 3, 4, 5, 6):
        assert exit_code(verdict, own) == own


outcomes_ = st.sampled_from(["passed", "failed", "crashed", "skipped", "not_run"])
severities = st.lists(st.sampled_from([WARN, FAIL]), max_size=3)


@given(st.lists(outcomes_, max_size=2), severities, st.booleans(), st.booleans())
def test_accepted_means_everything_required_passed_and_nothing_failed(
    outcomes: list[str], findings: list[Finding], gap: bool, lost: bool
) -> None:
    node = judged(
        *outcomes,
        findings=findings,
        unverified=[NotChecked(A, "x", "n")] if gap else [],
        lost="gone" if lost else None,
    )
    good = outcomes == ["passed", "passed"] and FAIL not in findings and not gap and not lost
    assert node.verdict.startswith("accepted") == good


@pytest.mark.parametrize("name", sorted(set(made_up.ALL) - {"hostile"}))
def test_every_verdict_fits_the_schema(name: str) -> None:
    verdict, _ = made_up.ALL[name]()
    assert validate(to_json(verdict))["verdict"] == verdict.verdict


def test_the_schema_describes_every_field_that_is_written() -> None:
    written = json.loads(to_json(made_up.rejected()[0]))
    written["nodes"] += json.loads(to_json(made_up.cluster()[0]))["nodes"]
    _described(written, schema(), "$")


def _described(value: Any, described: dict[str, Any], place: str) -> None:
    if "$ref" in described:
        described = {**schema()["$defs"][described["$ref"].split("/")[-1]], **described}
    assert described.get("description"), f"{place} has no description"
    if "oneOf" in described:
        described = described["oneOf"][-1]
    if isinstance(value, list):
        for entry in value:
            items = described["items"]
            _described(entry, {"description": "an item", **items}, f"{place}[]")
    elif isinstance(value, dict) and "properties" in described:
        for key, entry in value.items():
            _described(entry, described["properties"][key], f"{place}.{key}")


def broken(**changes: Any) -> bytes:
    return json.dumps({**json.loads(to_json(made_up.rejected()[0])), **changes}).encode()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"{", "not JSON"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[]", "$: [] is not of type 'object'"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (broken(schema_version=2), "$.schema_version"),
        (broken(verdict="fine"), "$.verdict"),
        (broken(nodes=[{"name": "n", "verdict": "accepted"}]), "$.nodes[0]"),
    ],
)
def test_what_is_no_verdict_is_refused_with_the_place(text: bytes, named: str) -> None:
    with pytest.raises(VerdictError) as caught:
        validate(text, "there.json")
    assert str(caught.value).startswith("there.json: ")
    assert named in str(caught.value)


def test_an_accepted_node_with_a_failure_or_a_gap_does_not_fit_the_schema() -> None:
    node = NodeVerdict("n", "accepted", (FAIL,))
    gap = replace(node, findings=(), unverified=(NotChecked(A, "x", "n"),))
    for wrong in (node, gap, NodeVerdict("n", "rejected"), NodeVerdict("n", "unverified")):
        with pytest.raises(VerdictError, match=r"nodes\[0\]"):
            validate(to_json(made_up.verdict_of(wrong)))


def test_fields_of_a_later_release_are_allowed() -> None:
    assert validate(broken(signature="..."))["signature"] == "..."
