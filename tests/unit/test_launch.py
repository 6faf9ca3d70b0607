"""Who started the process, read from the variables that each launcher sets."""

from __future__ import annotations

import pytest

from retina_dist.errors import ConfigError
from retina_dist.strategies.launch import Launch, detect_launch

# Rank 5 of 8, the second of four on its host, as each launcher says it.
HOROVODRUN = {"HOROVOD_RANK": "5", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def test_a_process_started_by_hand_is_rank_0_of_1() -> None:
    assert detect_launch({"PATH": "/bin"}) == Launch("python", 0, 1, 0, 1)


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [(HOROVODRUN, "horovodrun"), (OPEN_MPI, "mpirun"), (MPICH, "mpirun"), (TORCHRUN, "torchrun")],
    ids=["horovodrun", "Open MPI", "MPICH", "torchrun"],
)
def test_each_launcher_is_understood(environment: dict[str, str], launcher: str) -> None:
    assert detect_launch(environment) == Launch(launcher, rank=5, world_size=8, local_rank=1, local_world_size=4)


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOROVODRUN.items():
        monkeypatch.setenv(name, value)
    assert detect_launch().rank == 5


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({**TORCHRUN, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, "mpirun"),  # Azure ML's MPI jobs
        ({**OPEN_MPI, "HOROVOD_RANK": "2", "HOROVOD_SIZE": "3"}, "horovodrun"),
        ({**MPICH, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, "mpirun"),
    ],
    ids=["MPI before torchrun", "horovodrun before MPI", "Open MPI before MPICH"],
)
def test_of_several_launchers_variables_the_first_set_counts_alone(environment: dict[str, str], launcher: str) -> None:
    found = detect_launch(environment)
    assert (found.launcher, found.rank, found.world_size) == (launcher, 2, 3)


def test_a_rank_without_a_size_is_no_launcher() -> None:
    """SLURM and users set such variables for themselves."""
    assert detect_launch({"RANK": "1"}) == Launch()
    assert detect_launch({"WORLD_SIZE": "4"}) == Launch()
    assert detect_launch({"HOROVOD_RANK": "1", **TORCHRUN}).launcher == "torchrun"


def test_a_missing_local_rank_is_0_and_a_missing_local_size_the_whole() -> None:
    assert detect_launch({"PMI_RANK": "2", "PMI_SIZE": "3"}) == Launch("mpirun", 2, 3, 0, 3)


def test_values_that_are_no_numbers_are_named_with_their_variables() -> None:
    with pytest.raises(ConfigError) as caught:
        detect_launch({"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": ""})
    assert str(caught.value) == (
        "torchrun set RANK=one, WORLD_SIZE=2, LOCAL_RANK=, which are not all whole numbers; unset them or start anew."
    )


@pytest.mark.parametrize("name", OPEN_MPI)
def test_each_variable_must_be_a_whole_number(name: str) -> None:
    with pytest.raises(ConfigError, match=f"mpirun set .*{name}=1.5.* not all whole numbers"):
        detect_launch({**OPEN_MPI, name: "1.5"})


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("-1", "2"), ("0", "0")])
def test_a_rank_outside_the_job_is_refused(rank: str, size: str) -> None:
    with pytest.raises(ConfigError) as caught:
        detect_launch({"HOROVOD_RANK": rank, "HOROVOD_SIZE": size})
    assert str(caught.value) == (
        f"HOROVOD_RANK={rank} is no rank of HOROVOD_SIZE={size}; unset them, or start by a launcher."
    )


def test_a_launch_in_words() -> None:
    assert str(Launch()) == "python with 1 process"
    assert str(Launch("torchrun", 1, 2)) == "torchrun with 2 processes"
