"""Driver, CUDA, NCCL, PyTorch and Python: present, new enough, and fitting together."""

from __future__ import annotations

import pytest

from pytest_gpucluster.checks.versions import at_least, meets
from pytest_gpucluster.expectations.catalogue import cuda_needs_driver
from pytest_gpucluster.expectations.expect import NodeExpectations
from pytest_gpucluster.facts.model import Gpu, NodeFacts
from pytest_gpucluster.verdict.recorder import Findings

MINIMA = "prerequisites of distributed training"
OLDEST_PYTHON = "3.8"
OLDEST_TORCH = "1.10"
OLDEST_DRIVER = "450.80"
OLDEST_CUDA = "11.0"


def test_python(node_facts: NodeFacts, findings: Findings) -> None:
    """Python is at least 3.8.

    Needs: nothing. Threshold: 3.8 (oldest that PyTorch 1.10 supports). When it fails: use a
    newer interpreter.
    """
    found = node_facts.software.python
    if found is None:
        return findings.unverified("the Python version could not be read")
    if not at_least(found, OLDEST_PYTHON):
        findings.report(
            "fail",
            "software.python",
            "node",
            f"Python {found} is older than {OLDEST_PYTHON}.",
            next_step=f"Install Python {OLDEST_PYTHON} or newer.",
            measured=found,
            expected=f">={OLDEST_PYTHON}",
            source=MINIMA,
        )
    return None


def test_torch(
    node_facts: NodeFacts, node_expectations: NodeExpectations, findings: Findings
) -> None:
    """PyTorch is installed, at least 1.10, and what the profile asks for.

    Needs: nothing. Threshold: 1.10, or the profile's ``software.torch``. When it fails:
    install a build of PyTorch that satisfies it.
    """
    found = node_facts.software.torch
    wanted = node_expectations.torch
    if found is None:
        why = node_facts.why_unreadable("torch")
        if why:
            return findings.unverified(f"the PyTorch version could not be read: {why}")
        specifier = wanted.value if wanted else f">={OLDEST_TORCH}"
        problem = "PyTorch is not installed."
    else:
        specifier = wanted.value if wanted else f">={OLDEST_TORCH}"
        problem = f"PyTorch {found} does not satisfy {specifier}."
    if found is None or not meets(found, specifier):
        findings.report(
            "fail",
            "software.torch",
            "node",
            problem,
            next_step=f"Install torch{specifier} for this node's CUDA.",
            measured=found,
            expected=specifier,
            source=wanted.source if wanted else MINIMA,
        )
    return None


def test_torch_uses_cuda(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """PyTorch was built for CUDA 11 or newer (or what the profile asks for).

    Needs: a GPU. Threshold: 11.0, or the profile's ``software.cuda``. When it fails: a CPU
    build of PyTorch was installed, install the CUDA build.
    """
    software = node_facts.software
    wanted = node_expectations.cuda
    specifier = wanted.value if wanted else f">={OLDEST_CUDA}"
    if software.torch is None:
        return findings.unverified("PyTorch was not found, so its CUDA is not known")
    if software.torch_cuda is None or not meets(software.torch_cuda, specifier):
        built = f"for CUDA {software.torch_cuda}" if software.torch_cuda else "without CUDA"
        findings.report(
            "fail",
            "software.cuda",
            "node",
            f"PyTorch {software.torch} was built {built}, expected CUDA {specifier}.",
            next_step="Install a CUDA build of PyTorch (see pytorch.org, 'Get started').",
            measured=software.torch_cuda,
            expected=specifier,
            source=wanted.source if wanted else MINIMA,
        )
    return None


def test_driver(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """The driver is at least 450.80, runs PyTorch's CUDA, and is what the profile asks for.

    Needs: a GPU. Threshold: the minimum for minor-version compatibility of the CUDA that
    PyTorch was built for (CUDA release notes), not the driver shipped with that toolkit: below
    the latter some features are missing, which warns. When it fails: update the driver.
    """
    software = node_facts.software
    if software.driver is None:
        return findings.unverified("the driver version could not be read")
    wanted = node_expectations.driver
    if wanted is not None and not meets(software.driver, wanted.value):
        _old_driver(findings, software.driver, wanted.value, wanted.source, "")
        return None
    need = cuda_needs_driver(software.torch_cuda) if software.torch_cuda else None
    minimum, source = OLDEST_DRIVER, MINIMA
    if need is not None:
        minimum, source = need.minimum, need.source
    if not at_least(software.driver, minimum):
        reason = f" PyTorch uses CUDA {software.torch_cuda}." if need else ""
        _old_driver(findings, software.driver, f">={minimum}", source, reason)
    elif need is not None and need.toolkit and not at_least(software.driver, need.toolkit):
        findings.report(
            "warn",
            "software.driver_features",
            "node",
            f"Driver {software.driver} runs CUDA {need.cuda} by minor-version compatibility; the "
            f"toolkit's own driver is {need.toolkit}. Features that need it (JIT of PTX among "
            "them) are missing.",
            next_step=f"Update the driver to {need.toolkit} or newer when convenient.",
            measured=software.driver,
            expected=f">={need.toolkit}",
            source=need.source,
        )
    return None


def _old_driver(findings: Findings, found: str, wanted: str, source: str, reason: str) -> None:
    findings.report(
        "fail",
        "software.driver",
        "node",
        f"Driver {found} does not satisfy {wanted}.{reason}",
        next_step="Install a driver that does, then reboot.",
        measured=found,
        expected=wanted,
        source=source,
    )


def test_nccl(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """PyTorch comes with NCCL, in a version the profile accepts.

    Needs: a GPU. Threshold: present, or the profile's ``software.nccl``. A system NCCL of
    another version warns: programs built against it will not talk to PyTorch's. When it fails:
    install a CUDA build of PyTorch.
    """
    software = node_facts.software
    # Containers build PyTorch against the system's NCCL and ship no other.
    found, wanted = software.torch_nccl or software.system_nccl, node_expectations.nccl
    if found is None:
        if software.torch_cuda is None:
            return findings.unverified("PyTorch is not a CUDA build: its NCCL is not there")
        why = node_facts.why_unreadable("torch nccl")
        if why:
            return findings.unverified(f"NCCL could not be read: {why}")
        findings.report(
            "fail",
            "software.nccl",
            "node",
            "The NCCL that PyTorch should load was not found.",
            next_step="Reinstall PyTorch with its nvidia-nccl package.",
            expected="present",
            source=MINIMA,
        )
        return None
    if wanted is not None and not meets(found, wanted.value):
        findings.report(
            "fail",
            "software.nccl",
            "node",
            f"NCCL {found} does not satisfy {wanted.value}.",
            next_step="Install the NCCL that the profile names.",
            measured=found,
            expected=wanted.value,
            source=wanted.source,
        )
    if software.system_nccl and software.system_nccl != found:
        findings.report(
            "warn",
            "nccl.version_mismatch",
            "node",
            f"PyTorch loads NCCL {found}, the system has {software.system_nccl}.",
            next_step="Make sure that every program of a job loads the same NCCL.",
            measured=software.system_nccl,
            expected=found,
            source="PyTorch's own",
        )
    return None


def test_nvml_binding(
    node_gpus: tuple[Gpu, ...], node_facts: NodeFacts, findings: Findings
) -> None:
    """The Python module ``pynvml`` is NVIDIA's own (package nvidia-ml-py).

    Needs: a GPU. When it warns: an old package of the same name shadows it and may answer
    wrongly, uninstall it.
    """
    problem = node_facts.software.nvml_binding_problem
    if problem:
        findings.report(
            "warn",
            "software.nvml_binding",
            "node",
            problem,
            next_step="pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py",
            measured=node_facts.software.nvml_binding,
            expected="nvidia-ml-py",
        )


def test_fabric_manager_version(
    node_gpus: tuple[Gpu, ...],
    node_facts: NodeFacts,
    node_expectations: NodeExpectations,
    findings: Findings,
) -> None:
    """The fabric manager has exactly the driver's version.

    Needs: GPUs behind NVSwitch and an installed fabric manager. Threshold: equality, it refuses
    to start otherwise. When it fails: install nvidia-fabricmanager of the driver's version.
    """
    fabric_manager, driver = node_facts.software.fabric_manager, node_facts.software.driver
    fabric = node_expectations.fabric_completed
    if fabric is None or not fabric.value:
        findings.not_applicable("these GPUs need no fabric manager")
        pytest.skip("these GPUs need no fabric manager")
    if fabric_manager is None or driver is None:
        findings.not_applicable("no fabric manager was found; the fabric state is checked itself")
        pytest.skip("no fabric manager was found; the fabric state is checked itself")
    if fabric_manager != driver:
        findings.report(
            "fail",
            "fabric.manager",
            "node",
            f"Fabric manager {fabric_manager} does not match driver {driver}.",
            next_step=f"Install nvidia-fabricmanager {driver} and start it.",
            measured=fabric_manager,
            expected=driver,
            source="NVIDIA fabric manager user guide: versions must match",
        )
