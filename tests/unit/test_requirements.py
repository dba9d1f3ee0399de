"""The requires_* marks in a pytest run: listed, validated, and what an unmet one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpucluster import requirements, usage
from pytest_gpucluster.facts.model import Gpu, Host, NodeFacts, NvLink, Software, to_json

SIGNATURES = {
    "requires_gpus": "requires_gpus(n)",
    "requires_nvlink": "requires_nvlink(min_links=1, all_pairs=False)",
    "requires_nvswitch": "requires_nvswitch()",
    "requires_infiniband": "requires_infiniband(min_rate_gbps=0)",
    "requires_rdma": "requires_rdma(min_rate_gbps=0)",
    "requires_driver": "requires_driver(versions)",
    "requires_cuda": "requires_cuda(versions)",
    "requires_nccl": "requires_nccl(versions)",
    "requires_torch": "requires_torch(versions)",
    "requires_compute_capability": "requires_compute_capability(minimum)",
    "requires_gpu_memory": "requires_gpu_memory(gb)",
    "requires_nodes": "requires_nodes(n)",
}


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """Facts of a node with two L40S: no NVLink belongs there, a second GPU's memory does."""
    facts = NodeFacts(
        Host("node-1"),
        software=Software(torch="2.6.0"),
        gpus=tuple(
            Gpu(index, name="NVIDIA L40S", compute_capability="8.9", nvlinks=())
            for index in range(2)
        ),
    )
    return write(tmp_path, facts)


def write(folder: Path, facts: NodeFacts) -> str:
    path = folder / "facts.json"
    path.write_bytes(to_json(facts))
    return f"--gpucluster-evidence={path}"


def run(
    pytester: pytest.Pytester, mark: str, *arguments: str, body: str = "pass"
) -> pytest.RunResult:
    pytester.makepyfile(
        f"""
        import pytest
        from pytest_gpucluster import *

        @{mark}
        def test_it():
            {body}
        """
    )
    return pytester.runpytest_inprocess("-rs", *arguments)


def test_every_mark_is_listed_with_its_signature_and_meaning(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--markers")
    assert set(SIGNATURES) == set(requirements.MARKS)
    for signature in SIGNATURES.values():
        line = next(x for x in result.outlines if x.startswith(f"@pytest.mark.{signature}: "))
        assert len(line.partition(": ")[2].split()) >= 4
    result.stdout.fnmatch_lines(
        ["@pytest.mark.distributed(world_size='all', backend='auto', isolation='shared', *"]
    )


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_mark_can_be_imported_and_is_pytests_own(name: str) -> None:
    import pytest_gpucluster

    assert getattr(pytest_gpucluster, name) == getattr(pytest.mark, name)
    assert name in pytest_gpucluster.__all__


@pytest.mark.parametrize(
    ("mark", "problem"),
    [
        ("requires_gpus", "missing 1 required positional argument: 'n'"),
        ("requires_gpus(0)", "n=0 is not a positive whole number"),
        ("requires_gpus(2, 3)", "takes 1 positional argument but 2 were given"),
        ("requires_nvlink(links=4)", "got an unexpected keyword argument 'links'"),
        ("requires_nvlink(all_pairs=1)", "all_pairs=1 is neither True nor False"),
        ("requires_nvswitch(18)", "takes 0 positional arguments but 1 was given"),
        ("requires_infiniband(min_rate_gbps='fast')", "min_rate_gbps='fast' is not a number"),
        ("requires_rdma(-1)", "min_rate_gbps=-1 is not a number"),
        ("requires_driver('535')", "'535' is not a version specifier"),
        ("requires_cuda(12)", "12 is not a text"),
        ("requires_nccl()", "missing 1 required positional argument: 'versions'"),
        ("requires_torch('new')", "'new' is not a version specifier"),
        ("requires_compute_capability(9.0)", "9.0 is not a compute capability"),
        ("requires_gpu_memory('80GB')", "gb='80GB' is not a number"),
        ("requires_nodes(0)", "n=0 is not a positive whole number"),
    ],
)
def test_wrong_arguments_are_usage_errors_that_show_the_signature(
    mark: str, problem: str, pytester: pytest.Pytester, saved: str
) -> None:
    result = run(pytester, mark, saved)
    name = mark.partition("(")[0]
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    error = next(line for line in result.errlines if line.startswith("ERROR: "))
    assert "::test_it: @" in error
    assert problem in error
    assert error.endswith(f"Use {SIGNATURES[name]}")


def test_a_met_mark_lets_the_test_run(pytester: pytest.Pytester, saved: str) -> None:
    run(pytester, "requires_gpus(2)", saved).assert_outcomes(passed=1)


def test_what_the_node_is_not_supposed_to_have_skips(pytester: pytest.Pytester, saved: str) -> None:
    result = run(pytester, "requires_nvlink()", saved)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * GPU0 has 0 of 1 NVLinks up"])


def test_what_the_node_is_supposed_to_have_fails(pytester: pytest.Pytester, tmp_path: Path) -> None:
    links = tuple(NvLink(link, active=False) for link in range(18))
    gpus = tuple(Gpu(i, name="NVIDIA H100 80GB HBM3", nvlinks=links) for i in range(8))
    evidence = write(tmp_path, NodeFacts(Host("n"), gpus=gpus))
    result = run(pytester, "requires_nvlink(min_links=18)", evidence)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*requires_nvlink(min_links=18): GPU0 has 0 of 18 NVLinks up*"])


def test_what_nobody_knows_is_skipped_as_unverified(pytester: pytest.Pytester, saved: str) -> None:
    result = run(pytester, "requires_driver('>=535')", saved)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * unverified: the driver version is not known"])


def test_the_policy_fail_fails_what_would_be_skipped(pytester: pytest.Pytester, saved: str) -> None:
    result = run(pytester, "requires_nvlink()", saved, "--gpucluster-missing=fail")
    result.assert_outcomes(errors=1)


def test_the_policy_skip_skips_what_would_fail(pytester: pytest.Pytester, tmp_path: Path) -> None:
    links = tuple(NvLink(link, active=False) for link in range(18))
    gpus = tuple(Gpu(i, name="NVIDIA H100 80GB HBM3", nvlinks=links) for i in range(8))
    evidence = write(tmp_path, NodeFacts(Host("n"), gpus=gpus))
    result = run(pytester, "requires_nvlink()", evidence, "--gpucluster-missing=skip")
    result.assert_outcomes(skipped=1)
    assert "unverified" not in result.stdout.str()


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_no_policy_makes_the_unknown_known(
    policy: str, pytester: pytest.Pytester, saved: str
) -> None:
    mark = "requires_driver('>=535')"
    result = run(pytester, mark, saved, f"--gpucluster-missing={policy}")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * unverified: *"])


def test_the_first_unmet_of_several_marks_is_told(pytester: pytest.Pytester, saved: str) -> None:
    marks = "requires_gpus(2)\n        @requires_compute_capability('9.0')"
    result = run(pytester, marks, saved)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * GPU0 (NVIDIA L40S) has 8.9"])


def test_a_rehearsal_judges_no_hardware_but_still_judges_torch(
    pytester: pytest.Pytester,
) -> None:
    rehearse = "--gpucluster-rehearse"
    hardware = run(pytester, "requires_gpus(1)", rehearse)
    hardware.assert_outcomes(skipped=1)
    hardware.stdout.fnmatch_lines(["SKIPPED * requires_gpus(1): a rehearsal judges no hardware"])
    run(pytester, "requires_torch('>=1.10')", rehearse).assert_outcomes(passed=1)


def test_the_body_of_a_gated_test_never_runs(pytester: pytest.Pytester, saved: str) -> None:
    body = "raise SystemExit('the body ran')"
    run(pytester, "requires_nvlink()", saved, body=body).assert_outcomes(skipped=1)


def test_every_mark_is_registered_under_its_name() -> None:
    assert {*requirements.MARKS, "distributed", "gpucluster_level"} == set(usage.MARKS)
