"""The environment jobs will inherit: stray variables and host limits."""

from __future__ import annotations

import pytest

from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import Gpu, NodeFacts
from pytest_gpucluster.facts.visible import visible_gpus
from pytest_gpucluster.verdict.recorder import Findings

# What a left-over variable does (NCCL user guide, environment variables).
SWITCHED_OFF = {
    "NCCL_P2P_DISABLE": "switches off peer access: GPUs talk through host memory",
    "NCCL_SHM_DISABLE": "switches off shared memory: ranks of a node talk over the network",
    "NCCL_IB_DISABLE": "switches off InfiniBand and RoCE: nodes talk over TCP",
    "NCCL_NET_DISABLE_INTRA": "keeps the network from being used inside a node",
    "NCCL_CUMEM_ENABLE": "changes how NCCL allocates memory",
    "NCCL_NVLS_ENABLE": "decides whether NVLink SHARP is used",
}
STEERING = {
    "NCCL_SOCKET_IFNAME": "limits NCCL to the named interfaces",
    "NCCL_IB_HCA": "limits NCCL to the named adapters",
    "NCCL_NET": "fixes the network plugin",
    "NCCL_ALGO": "fixes the algorithm",
    "NCCL_PROTO": "fixes the protocol",
    "NCCL_P2P_LEVEL": "fixes how far apart GPUs may be for peer access",
    "NCCL_NET_GDR_LEVEL": "fixes how far a NIC may be from a GPU for GPUDirect RDMA",
    "NCCL_MIN_NCHANNELS": "fixes the number of channels",
    "NCCL_MAX_NCHANNELS": "limits the number of channels",
    "NCCL_NTHREADS": "fixes the number of threads per block",
    "NCCL_BUFFSIZE": "fixes the buffer size",
    "NCCL_TOPO_FILE": "replaces the detected topology",
    "NCCL_GRAPH_FILE": "replaces the computed rings and trees",
    "NCCL_CROSS_NIC": "fixes whether rings may change rails",
    "NCCL_IGNORE_CPU_AFFINITY": "lets NCCL ignore CPU affinity",
}
HARMLESS_IF_ZERO = frozenset(
    {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET_DISABLE_INTRA"}
)
NCCL_SHM_GB = 1.0  # 64 MB, a container's default, is the size known to break NCCL


def test_stray_variables(
    node_gpus: tuple[Gpu, ...], node_facts: NodeFacts, findings: Findings
) -> None:
    """No ``NCCL_*`` variable is left over that changes how jobs run.

    Needs: nothing. Threshold: none of those listed in the docs; each one warns and says what
    it does. When it warns: unset it, or set it on purpose in the job instead.
    """
    for name, value in sorted(node_facts.host.environment.items()):
        effect = SWITCHED_OFF.get(name) or STEERING.get(name)
        if effect is None or (name in HARMLESS_IF_ZERO and value in ("0", "")):
            continue
        findings.report(
            "warn",
            "nccl.stray_variable",
            name,
            f"{name}={value} is set: it {effect}.",
            next_step=f"unset {name} (look in /etc/nccl.conf, /etc/environment and profiles).",
            measured=value,
            expected="unset",
            source="NCCL user guide: environment variables",
        )


def test_all_gpus_visible(
    node_gpus: tuple[Gpu, ...], node_facts: NodeFacts, findings: Findings
) -> None:
    """``CUDA_VISIBLE_DEVICES`` hides no GPU from the checks.

    Needs: a GPU. When it is unverified: unset the variable, so that all GPUs are tested.
    """
    visible = node_facts.host.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return
    shown = len(visible_gpus(node_gpus, visible))
    if shown < len(node_gpus):
        findings.unverified(
            f"CUDA_VISIBLE_DEVICES={visible} hides {len(node_gpus) - shown} of "
            f"{len(node_gpus)} GPUs from the checks that compute: unset it"
        )


def test_shared_memory(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """/dev/shm is large enough for NCCL and data loaders.

    Needs: nothing. Threshold: the profile's ``host.shm_gb`` fails, below 1 GB warns. When it
    fails: start the container with --shm-size or --ipc=host.
    """
    expected, size = node_expectations.shm_gb, node_facts.host.shm_bytes
    if size is None:
        findings.unverified("the size of /dev/shm could not be read")
        return
    wanted = expected.value if expected else NCCL_SHM_GB
    if size < wanted * 1e9:
        findings.report(
            "fail" if expected else "warn",
            "host.shm_small",
            "node",
            f"/dev/shm has {size / 1e9:.2f} GB, expected at least {wanted:g} GB.",
            next_step="Remount it larger; in a container use --shm-size or --ipc=host.",
            measured=round(size / 1e9, 3),
            expected=wanted,
            unit="GB",
            source=expected.source if expected else "default",
        )


def test_locked_memory(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """RDMA may lock as much memory as it needs.

    Needs: an RDMA port, or a profile with ``host.memlock_unlimited``. Threshold: unlimited;
    without a profile less warns. When it fails: raise RLIMIT_MEMLOCK (limits.conf, systemd
    LimitMEMLOCK, --ulimit memlock=-1).
    """
    expected = node_expectations.memlock_unlimited
    rdma = any(port.kind in ("infiniband", "roce", "efa") for port in node_facts.network or ())
    if not rdma and not (expected and expected.value):
        findings.not_applicable("no RDMA port needs locked memory")
        pytest.skip("no RDMA port needs locked memory")
    limit = node_facts.host.memlock_bytes
    if limit is None:
        findings.unverified("the limit for locked memory could not be read")
    elif limit != -1:
        findings.report(
            "fail" if expected and expected.value else "warn",
            "host.memlock_low",
            "node",
            f"locked memory is limited to {limit / 1e6:.0f} MB, expected unlimited.",
            next_step="Set memlock to unlimited in limits.conf, the service or the container.",
            measured=limit,
            expected="unlimited",
            unit="bytes",
            source=expected.source if expected else "default: RDMA pins its buffers",
        )
