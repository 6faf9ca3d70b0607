"""Who started the process, read from the variables that each launcher sets."""

from __future__ import annotations

import os

import pytest

from retina_dist.base.errors import ConfigError
from retina_dist.strategies.launch_environment import Launch, detect_launch
from retina_dist.strategies.launchers import first_host, slurm_port, tasks_of_node


def variables(text: str) -> dict[str, str]:
    """As `env` prints them."""
    return dict(word.split("=", 1) for word in text.split())


# Rank 5 of 8, the second of four on its host, as each launcher says it.
HOROVODRUN = variables("HOROVOD_RANK=5 HOROVOD_SIZE=8 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=4")
OPEN_MPI = variables(
    "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
    "OMPI_COMM_WORLD_NODE_RANK=1"
)
MPICH = variables("PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4")
PLAIN = variables("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4")
TORCHRUN = {**PLAIN, "TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "1"}
SRUN = variables(
    "SLURM_JOB_ID=42685 SLURM_STEP_ID=2 SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 "
    "SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_STEP_NODELIST=gpu-[07-08]"
)
SLURM_MEETING = ("gpu-07", slurm_port(42685, 2))

ONE_OF_TWO = {"rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2}
ON_NODE_1 = {
    "rank": 1,
    "world_size": 2,
    "local_world_size": 1,
    "node_rank": 1,
    "master_address": "127.0.0.1",
}
AZURE = {
    "rank": 5,
    "world_size": 8,
    "local_rank": 1,
    "local_world_size": 4,
    "node_rank": 1,
    "service": "Azure ML",
}
SLURM_JOB = (
    "SLURM_JOB_ID=42685 SLURM_JOB_NODELIST=127.0.0.[1-2] SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_NTASKS=2 "
    "SLURM_TASKS_PER_NODE=1(x2) "
)
SLURM_STEP = (
    f"{SLURM_JOB}SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NODELIST=127.0.0.[1-2] SLURM_STEP_NUM_NODES=2 "
    "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 "
)

# The variables that each launcher sets, as far as the package reads them, what they mean, and how
# the launcher is called. Dumped from real starts: torchrun 2.15, horovodrun 0.28.1, Open MPI
# 5.0.11, MPICH 4.0.2 and Ray 2.60 with two processes on one machine, srun of Slurm 22.05 with two
# on two nodes; all of rank 1. Azure ML's are documented, not dumped: rank 5 of 8.
EXAMPLES: dict[str, tuple[str, Launch, str]] = {
    "torchrun": (
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 MASTER_ADDR=localhost "
        "MASTER_PORT=45737 TORCHELASTIC_RUN_ID=55eb2e5e TORCHELASTIC_USE_AGENT_STORE=True",
        Launch("torchrun", **ONE_OF_TWO, master_address="localhost", master_port=45737),
        "torchrun with 2 processes",
    ),
    "horovodrun": (
        "HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2 HOROVOD_CROSS_RANK=0 HOROVOD_CROSS_SIZE=1 "
        "HOROVOD_CONTROLLER=gloo",
        Launch("horovodrun", **ONE_OF_TWO),
        "horovodrun with 2 processes",
    ),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
        "OMPI_COMM_WORLD_NODE_RANK=1 OMPI_UNIVERSE_SIZE=2 PMIX_RANK=1 OMPI_VERSION=5.0.11",
        Launch("mpirun", **ONE_OF_TWO),
        "mpirun with 2 processes",
    ),
    "mpirun, MPICH": (
        "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
        Launch("mpirun", **ONE_OF_TWO),
        "mpirun with 2 processes",
    ),
    "srun": (
        f"{SLURM_STEP} SLURM_STEP_ID=0",
        Launch("srun", **ON_NODE_1, master_port=12685),
        "srun with 2 processes",
    ),
    "srun --mpi=pmi2": (
        f"{SLURM_STEP} SLURM_STEP_ID=1 PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=42685.1",
        Launch("srun", **ON_NODE_1, master_port=13694),
        "srun with 2 processes",
    ),
    # A script of sbatch, without srun: one process, whatever SLURM_PROCID and SLURM_NTASKS say.
    "sbatch": (
        f"{SLURM_JOB} SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0",
        Launch(),
        "python with 1 process",
    ),
    # The shell of salloc, which sets no rank ...
    "salloc": (SLURM_JOB, Launch(), "python with 1 process"),
    # ... and with LaunchParameters=use_interactive_step, where it is a step of one task.
    "salloc, interactive step": (
        f"{SLURM_JOB} SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_ID=4294967290 SLURM_STEP_NODELIST=127.0.0.1 "
        "SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1",
        Launch("srun", master_address="127.0.0.1", master_port=slurm_port(42685, 4294967290)),
        "srun with 1 process",
    ),
    # https://azure.github.io/azureml-cheatsheets/docs/cheatsheets/python/v1/distributed-training
    "Azure ML, type: mpi": (
        "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
        "OMPI_COMM_WORLD_NODE_RANK=1 AZUREML_RUN_ID=gentle_apple_1 AZ_BATCH_MASTER_NODE=10.0.0.4:6000 "
        "AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.4",
        Launch("mpirun", **AZURE, master_address="10.0.0.4", master_port=6105),
        "Azure ML (type: mpi) with 8 processes",
    ),
    # https://learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu
    "Azure ML, type: pytorch": (
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 NODE_RANK=1 MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 AZUREML_RUN_ID=gentle_apple_1",
        Launch("variables", **AZURE, master_address="10.0.0.4", master_port=6105),
        "Azure ML (type: pytorch) with 8 processes",
    ),
    "Ray Train": (
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=0 MASTER_ADDR=192.0.2.2 MASTER_PORT=44785 "
        "RAY_JOB_ID=01000000",
        Launch(
            "variables",
            **ONE_OF_TWO,
            master_address="192.0.2.2",
            master_port=44785,
            service="Ray Train",
        ),
        "Ray Train with 2 processes",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_each_launcher_sets_is_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.clear()
    given, expected, words = EXAMPLES[name]
    os.environ.update(
        variables(given)
    )  # the real os.environ refuses values other than text, which a dict would take
    launch = detect_launch(os.environ)
    assert (launch, str(launch)) == (expected, words)


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        *((HOROVODRUN, "horovodrun"), (OPEN_MPI, "mpirun"), (MPICH, "mpirun")),
        *((TORCHRUN, "torchrun"), (PLAIN, "variables"), (SRUN, "srun")),
    ],
)
def test_a_second_host(environment: dict[str, str], launcher: str) -> None:
    meeting = SLURM_MEETING if launcher == "srun" else ()
    assert detect_launch(environment) == Launch(launcher, 5, 8, 1, 4, 1, *meeting)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({**PLAIN, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, "mpirun"),
        ({**OPEN_MPI, "HOROVOD_RANK": "2", "HOROVOD_SIZE": "3"}, "horovodrun"),
        ({**SRUN, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, "mpirun"),
        (
            {**SRUN, "PMI_RANK": "2", "PMI_SIZE": "3"},
            "mpirun",
        ),  # MPICH's, whose proxies srun started
        ({**SRUN, "RANK": "2", "WORLD_SIZE": "3"}, "variables"),
        ({**OPEN_MPI, "TORCHELASTIC_RUN_ID": "none", "RANK": "2", "WORLD_SIZE": "3"}, "torchrun"),
        ({**SRUN, "TORCHELASTIC_RUN_ID": "none", "RANK": "2", "WORLD_SIZE": "3"}, "torchrun"),
    ],
)
def test_of_several_launchers_variables_the_innermost_count_alone(
    environment: dict[str, str], launcher: str
) -> None:
    found = detect_launch(environment)
    assert (found.launcher, found.rank, found.world_size) == (launcher, 2, 3)


def test_a_rank_without_a_size_means_no_launcher() -> None:
    """Slurm and users set such variables for themselves."""
    assert detect_launch({"RANK": "1"}) == Launch()
    assert detect_launch({"WORLD_SIZE": "4"}) == Launch()
    assert detect_launch({"TORCHELASTIC_RUN_ID": "none"}) == Launch()
    assert detect_launch({"HOROVOD_RANK": "1", **TORCHRUN}).launcher == "torchrun"
    assert detect_launch({"PMI_RANK": "2", "PMI_SIZE": "3"}) == Launch("mpirun", 2, 3, 0, 3)


def test_the_first_host_of_slurms_list() -> None:
    assert first_host("") is None
    assert first_host("n1,n2") == "n1"
    assert first_host("gpu-[007-009,12],login") == "gpu-007"
    assert first_host("rack[01-04]n[5,7].example.org,x") == "rack01n5.example.org"


def test_slurms_tasks_of_a_node() -> None:
    assert [tasks_of_node("4(x2),1,3", node) for node in range(4)] == [4, 4, 1, 3]
    uneven = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "5,3", "SLURM_LOCALID": "0"}
    assert detect_launch(uneven).local_world_size == 3


TEXT = "^something set RANK=one, WORLD_SIZE=2, LOCAL_RANK=, which are not all whole numbers; unset them or restart.$"
OUTSIDE = "^HOROVOD_RANK={} is outside HOROVOD_SIZE=2; unset them, or start by"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": ""}, TEXT),
        *(
            ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": n}, "srun set .*SLURM_STEP_TASKS_PER_NODE=")
            for n in ("4(x1)", "four")
        ),
        *(
            ({"HOROVOD_RANK": rank, "HOROVOD_SIZE": "2"}, OUTSIDE.format(rank))
            for rank in ("2", "-1")
        ),
        *(
            ({**SRUN, "MASTER_PORT": port}, f"MASTER_PORT={port} is not a port; give")
            for port in ("0", "65536")
        ),
        *(
            ({**SRUN, "MASTER_ADDR": address}, f"MASTER_ADDR={address} is not a host; give its")
            for address in ("tcp://node1", "node1:29500")
        ),
        ({**SRUN, "MASTER_PORT": "http"}, "srun set .*, MASTER_PORT=http, which are not all whole"),
    ],
)
def test_impossible_variables_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        detect_launch(environment)
