"""The machine around the GPUs, out of made-up procfs and sysfs trees."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pytest_gpucluster.facts.host import communication_variables, node_name, read_host
from pytest_gpucluster.facts.model import to_json

X86 = "processor\t: 0\nmodel name\t: Xeon\t8480C\n\nprocessor\t: 1\nmodel name\t: Xeon\t8480C\n"
GRACE = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n"


def write(root: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_whole_host(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__cpuinfo=X86,
        proc__meminfo="MemTotal:       2113456789 kB\nMemFree: 1 kB\n",
        sys__devices__system__node__has_cpu="0-1\n",
    )
    (tmp_path / "dev/shm").mkdir(parents=True)
    facts = read_host(tmp_path, {"SLURMD_NODENAME": "node-7", "NCCL_DEBUG": "INFO", "HOME": "/"})
    host = facts.host
    assert facts.unreadable == ()
    assert (host.name, host.cpus, host.cpu_model) == ("node-7", 2, "Xeon 8480C")
    assert host.memory_bytes == 2113456789 * 1024
    assert host.numa_nodes == 2
    assert host.environment == {"NCCL_DEBUG": "INFO"}
    assert host.container is None
    assert host.shm_bytes is not None
    assert host.shm_free_bytes is not None
    assert 0 < host.shm_free_bytes <= host.shm_bytes


def test_processors_that_have_numbers_for_names(tmp_path: Path) -> None:
    write(tmp_path, proc__cpuinfo=GRACE * 3)
    host = read_host(tmp_path, {}).host
    assert (host.cpus, host.cpu_model) == (3, "Arm implementer 0x41 part 0xd4f")


def test_memory_only_numa_nodes_do_not_count(tmp_path: Path) -> None:
    write(
        tmp_path,
        sys__devices__system__node__has_cpu="0,8\n",
        sys__devices__system__node__online="0-33\n",
    )
    assert read_host(tmp_path, {}).host.numa_nodes == 2


def test_nothing_mounted(tmp_path: Path) -> None:
    facts = read_host(tmp_path, {})
    host = facts.host
    assert (host.cpus, host.cpu_model, host.memory_bytes) == (None, None, None)
    assert (host.numa_nodes, host.shm_bytes, host.shm_free_bytes) == (None, None, None)
    subjects = [problem.subject for problem in facts.unreadable]
    assert subjects == ["host processors", "host memory", "host shared memory"]


def test_garbage(tmp_path: Path) -> None:
    garbage = bytes(range(256)) * 4096
    write(
        tmp_path,
        proc__cpuinfo=garbage,
        proc__meminfo=b"MemTotal: -5 kB\n" + garbage,
        sys__devices__system__node__has_cpu="0-99999999999999",
        proc__1__cgroup=garbage,
    )
    facts = read_host(tmp_path, {"SLURMD_NODENAME": "n\x1b[2J" + os.fsdecode(b"\xff") + "x" * 999})
    assert (facts.host.cpus, facts.host.memory_bytes, facts.host.numa_nodes) == (None, None, None)
    assert facts.host.name.isprintable()
    assert len(facts.host.name) <= 255
    to_json(facts)


def test_memlock_is_this_process_limit() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert read_host(environment={}).host.memlock_bytes == soft
    assert resource.RLIM_INFINITY == -1


def test_name_without_slurm_is_the_host_name() -> None:
    assert node_name({}) == os.uname().nodename
    assert node_name({"SLURMD_NODENAME": ""}) == os.uname().nodename


@pytest.mark.parametrize(
    ("path", "content", "environment", "container"),
    [
        (".dockerenv", "", {}, "docker"),
        ("run/.containerenv", "", {}, "podman"),
        ("proc/1/cgroup", "0::/kubepods.slice/docker-9.scope\n", {}, "kubernetes"),
        ("proc/1/cgroup", "12:cpu:/lxc/7\n", {}, "lxc"),
        ("proc/1/cgroup", "0::/init.scope\n", {}, None),
        (".dockerenv", "", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ("x", "", {"APPTAINER_CONTAINER": "/a.sif"}, "apptainer"),
    ],
)
def test_container(
    tmp_path: Path,
    path: str,
    content: str,
    environment: dict[str, str],
    container: str | None,
) -> None:
    write(tmp_path, **{path.replace("/", "__"): content})
    assert read_host(tmp_path, environment).host.container == container


def test_secrets_stay_where_they_are() -> None:
    secrets = {
        "NVIDIA_API_KEY": "hunter2",
        "NVIDIA_APIKEY": "hunter2",
        "CUDA_AUTH_TOKEN": "hunter2",
        "UCX_PASSWORD": "hunter2",
        "NCCL_SECRET": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "PATH": "hunter2",
    }
    seen = communication_variables(secrets)
    assert "hunter2" not in repr(seen)
    assert set(seen) == set(secrets) - {"AWS_SECRET_ACCESS_KEY", "PATH"}


def test_variables_that_matter_are_seen_with_their_values() -> None:
    variables = {
        "NCCL_IB_PKEY": "3",
        "GLOO_SOCKET_IFNAME": "eth0",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
    }
    assert communication_variables(variables) == variables


def test_hostile_variables() -> None:
    name, value = os.fsdecode(b"NCCL_\xff"), "\x1b]0;x\x07" + "A" * 10**6
    ((seen_name, seen_value),) = communication_variables({name: value}).items()
    assert seen_name.isprintable()
    assert seen_value.isprintable()
    assert len(seen_value) <= 1000
