"""Software and environment: present, new enough, fitting together, nothing left over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_gpucluster.checks import test_environment as environment
from pytest_gpucluster.checks import test_software as software
from pytest_gpucluster.facts.model import Host, NetworkPort, NodeFacts, Software, Unreadable
from tests.unit.checking import L40S, Found, check, gpus, node, profile

HEALTHY = Software(
    python="3.11.7",
    driver="580.65.06",
    nvml_binding="nvidia-ml-py 13.580",
    torch="2.9.0+cu130",
    torch_cuda="13.0",
    torch_nccl="2.27.5",
    fabric_manager="580.65.06",
)
CHECKS = [
    software.test_python,
    software.test_torch,
    software.test_torch_uses_cuda,
    software.test_driver,
    software.test_nccl,
    software.test_nvml_binding,
]


def look(function: Any, by: str | None = None, **changed: Any) -> Found:
    facts = node(*gpus(8), software=replace(HEALTHY, **changed))
    return check(function, facts, profile(by) if by else None)


def codes(found: Found) -> list[tuple[str, str]]:
    return [(severity, code) for severity, code, _ in found.short]


@pytest.mark.parametrize("function", CHECKS)
def test_a_healthy_installation_is_quiet(function: Any) -> None:
    assert look(function).quiet


@pytest.mark.parametrize(
    ("function", "changed", "code"),
    [
        (software.test_python, {"python": "3.7.16"}, "software.python"),
        (software.test_torch, {"torch": "1.9.1"}, "software.torch"),
        (software.test_torch, {"torch": None}, "software.torch"),
        (software.test_torch_uses_cuda, {"torch_cuda": None}, "software.cuda"),
        (software.test_torch_uses_cuda, {"torch_cuda": "10.2"}, "software.cuda"),
        (software.test_driver, {"driver": "440.33.01", "torch_cuda": "10.2"}, "software.driver"),
        (software.test_driver, {"driver": "535.54.03"}, "software.driver"),
        (software.test_nccl, {"torch_nccl": None}, "software.nccl"),
    ],
)
def test_what_is_missing_or_too_old_fails(function: Any, changed: Any, code: str) -> None:
    found = look(function, **changed)
    assert codes(found) == [("fail", code)]
    assert found.findings[0].source


def test_a_driver_that_runs_cuda_by_minor_version_compatibility_only_warns() -> None:
    found = look(software.test_driver, torch_cuda="12.4", driver="525.60.13")
    assert codes(found) == [("warn", "software.driver_features")]


@pytest.mark.parametrize(
    ("function", "by", "code"),
    [
        (software.test_torch, '[software]\ntorch = ">=2.10"', "software.torch"),
        (software.test_torch_uses_cuda, '[software]\ncuda = "<13"', "software.cuda"),
        (software.test_driver, '[software]\ndriver = "==575.*"', "software.driver"),
        (software.test_nccl, '[software]\nnccl = ">=2.28"', "software.nccl"),
    ],
)
def test_a_profile_asks_for_more(function: Any, by: str, code: str) -> None:
    found = look(function, by)
    assert codes(found) == [("fail", code)]
    assert "site" in str(found.findings[0].source)


@pytest.mark.parametrize(
    ("function", "changed"),
    [
        (software.test_python, {"python": None}),
        (software.test_torch_uses_cuda, {"torch": None}),
        (software.test_driver, {"driver": None}),
        (software.test_nccl, {"torch_nccl": None, "torch_cuda": None}),
    ],
)
def test_what_is_not_known_is_unverified(function: Any, changed: Any) -> None:
    found = look(function, **changed)
    assert not found.findings
    assert len(found.unverified) == 1


@pytest.mark.parametrize(
    ("function", "changed", "subject"),
    [
        (software.test_torch, {"torch": None}, "torch"),
        (software.test_nccl, {"torch_nccl": None}, "torch nccl"),
    ],
)
def test_what_could_not_be_read_is_unverified_not_missing(
    function: Any, changed: Any, subject: str
) -> None:
    facts = node(
        *gpus(8),
        software=replace(HEALTHY, **changed),
        unreadable=(Unreadable(subject, "no answer in 5 s"),),
    )
    found = check(function, facts)
    assert not found.findings
    assert "no answer in 5 s" in found.unverified[0]


def test_a_second_nccl_of_another_version_warns() -> None:
    assert codes(look(software.test_nccl, system_nccl="2.21.5")) == [
        ("warn", "nccl.version_mismatch")
    ]
    assert look(software.test_nccl, system_nccl="2.27.5").quiet
    assert look(software.test_nccl, torch_nccl=None, system_nccl="2.27.5").quiet


def test_a_package_that_shadows_nvidias_binding_warns() -> None:
    found = look(software.test_nvml_binding, nvml_binding_problem="pynvml 11.5 shadows it")
    assert codes(found) == [("warn", "software.nvml_binding")]


def test_the_fabric_manager_must_have_the_drivers_version() -> None:
    function = software.test_fabric_manager_version
    assert look(function).quiet
    assert codes(look(function, fabric_manager="580.65.05")) == [("fail", "fabric.manager")]
    assert look(function, fabric_manager=None).not_applicable
    assert check(function, node(*gpus(8, L40S), software=HEALTHY)).not_applicable


# Environment


def host(**values: Any) -> NodeFacts:
    return node(*gpus(8), host=Host("n", **values))


@pytest.mark.parametrize(
    ("name", "value", "warns"),
    [
        ("NCCL_P2P_DISABLE", "1", True),
        ("NCCL_P2P_DISABLE", "0", False),
        ("NCCL_IB_DISABLE", "1", True),
        ("NCCL_SOCKET_IFNAME", "eth0", True),
        ("NCCL_NVLS_ENABLE", "0", True),
        ("NCCL_DEBUG", "INFO", False),
        ("CUDA_HOME", "/usr/local/cuda", False),
    ],
)
def test_left_over_variables_warn_and_say_what_they_do(name: str, value: str, warns: bool) -> None:
    found = check(environment.test_stray_variables, host(environment={name: value}))
    assert found.short == ([("warn", "nccl.stray_variable", name)] if warns else [])
    for finding in found.findings:
        assert f"{name}={value}" in finding.message


@pytest.mark.parametrize(
    ("visible", "hidden"), [(None, 0), ("0,1,2,3,4,5,6,7", 0), ("0,1", 6), ("", 8)]
)
def test_hidden_gpus_are_unverified(visible: str | None, hidden: int) -> None:
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = check(environment.test_all_gpus_visible, host(environment=given))
    assert not found.findings
    assert bool(found.unverified) == bool(hidden)
    assert all(f"hides {hidden} of 8" in reason for reason in found.unverified)


def test_little_shared_memory_warns_less_than_the_profile_asks_fails() -> None:
    function = environment.test_shared_memory
    docker = host(shm_bytes=64 * 2**20)
    by = profile("[host]\nshm_gb = 32")
    assert check(function, docker).short == [("warn", "host.shm_small", "node")]
    assert check(function, host(shm_bytes=16 * 10**9)).quiet
    assert check(function, host(shm_bytes=16 * 10**9), by).short == [
        ("fail", "host.shm_small", "node")
    ]
    assert len(check(function, host()).unverified) == 1


def test_locked_memory_matters_where_rdma_is() -> None:
    function = environment.test_locked_memory
    by = profile("[host]\nmemlock_unlimited = true")
    rdma = (NetworkPort("mlx5_0", kind="infiniband"),)
    limited = host(memlock_bytes=8 * 2**20)
    assert check(function, limited).not_applicable
    assert check(function, replace(limited, network=rdma)).short == [
        ("warn", "host.memlock_low", "node")
    ]
    assert check(function, limited, by).short == [("fail", "host.memlock_low", "node")]
    assert check(function, replace(host(memlock_bytes=-1), network=rdma)).quiet
    assert len(check(function, replace(host(), network=rdma)).unverified) == 1
