"""Where a session stands among the processes of a launch, read from the environment."""

from __future__ import annotations

import socket

import pytest

from pytest_gpucluster.ranks.placement import Placement, PlacementError, find_placement

LAUNCHERS = [
    ("torchrun", "WORLD_SIZE", "RANK"),
    ("Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MPI", "PMI_SIZE", "PMI_RANK"),
]


def test_without_a_launcher_the_machine_is_alone() -> None:
    found = find_placement({})
    assert found == Placement("alone", socket.gethostname())
    assert found.describe() == f"one machine: {socket.gethostname()}"


@pytest.mark.parametrize(("launcher", "size", "number"), LAUNCHERS)
def test_a_launch_of_one_process_is_accepted(launcher: str, size: str, number: str) -> None:
    assert find_placement({size: "1", number: "0"}).launcher == launcher


def test_slurms_names_of_node_and_job_are_told() -> None:
    found = find_placement(
        {
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_PROCID": "0",
            "SLURM_JOB_ID": "4711",
            "SLURMD_NODENAME": "gpu-017",
        }
    )
    assert found == Placement("Slurm", "gpu-017", "4711")
    assert found.describe() == "Slurm job 4711: one machine, gpu-017"


@pytest.mark.parametrize(("launcher", "size", "number"), LAUNCHERS)
def test_several_processes_are_refused_with_the_way_out(
    launcher: str, size: str, number: str
) -> None:
    with pytest.raises(PlacementError) as wrong:
        find_placement({size: "8", number: "3"})
    text = str(wrong.value)
    assert text.startswith(f"{launcher} started 8 processes ({size}=8, {number}=3)")
    assert "start one process on one node" in text


@pytest.mark.parametrize(
    ("size", "number"), [("two", "0"), ("1", "1"), ("2", "-1"), ("", "0"), ("1", "x"), ("0", "0")]
)
def test_variables_that_do_not_fit_together_are_named(size: str, number: str) -> None:
    with pytest.raises(PlacementError, match=r"WORLD_SIZE=.* and RANK=.* do not fit together"):
        find_placement({"WORLD_SIZE": size, "RANK": number})


def test_half_of_a_launchers_variables_is_no_launch() -> None:
    """An interactive shell inside an allocation has a node name, not a process number."""
    found = find_placement({"WORLD_SIZE": "8", "SLURMD_NODENAME": "gpu-017"})
    assert found == Placement("alone", "gpu-017")
