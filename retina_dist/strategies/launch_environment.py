"""Who started this process, as which of how many, and where all of them meet: read from the launcher's variables.

`python -m retina_dist.strategies.start_processes` under a launcher shows what each process was told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from retina_dist.base.errors import ConfigError

# "variables": torchrun's, set by Azure ML (`type: pytorch`), Ray Train or Kubernetes' operators without torchrun.
Launcher = Literal["python", "torchrun", "horovodrun", "mpirun", "srun", "variables"]
Service = Literal["Azure ML", "Ray Train"]
BY_LAUNCHER = dict(
    python="single",
    torchrun="ddp",
    horovodrun="horovod",
    mpirun="horovod",
    srun="ddp",
    variables="ddp",
)

# Where rank 0 listens when nobody says it: torch's own port, and that of Azure ML's PyTorch jobs; the one of its MPI jobs is in use
# (https://azure.github.io/azureml-cheatsheets/docs/cheatsheets/python/v1/distributed-training).
DEFAULT_PORT = 29500
AZURE_PORT = 6105
SERVICES: dict[Service, str] = {
    "Azure ML": "AZUREML_RUN_ID",
    "Ray Train": "RAY_JOB_ID",
}  # a variable that tells each


class Names(NamedTuple):
    """The variables of one launcher; the first two make it that launcher's."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str = ""  # not said


HOROVOD = Names(
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"
)
# OMPI_COMM_WORLD_NODE_RANK does not number nodes, but the user's processes on a node.
OPEN_MPI = Names(
    *(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
)
MPICH = Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
# The size is the step's: a batch script's one process and the shell of salloc see SLURM_PROCID=0 and SLURM_NTASKS=N too.
# https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
SLURM = Names(
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NODEID",
)
PLAIN = Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
TORCHRUN = PLAIN._replace(node_rank="GROUP_RANK")


@dataclass(frozen=True)
class Launch:
    """What the launcher said; a process started by hand is rank 0 of 1.

    `local_world_size` is 0 if unknown. `node_rank` numbers the hosts, which mpirun, without a number, is assumed to fill one after
    the other. Rank 0 can listen at `master_address` and `master_port`, if known. `service` called the launcher.
    """

    launcher: Launcher = "python"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_address: str | None = None
    master_port: int | None = None
    service: Service | None = None

    def __str__(self) -> str:
        if self.service == "Azure ML":
            name = f"Azure ML (type: {'mpi' if self.launcher == 'mpirun' else 'pytorch'})"
        else:
            name = self.service or (
                "RANK and WORLD_SIZE" if self.launcher == "variables" else self.launcher
            )
        return f"{name} with {self.world_size} process{'es' if self.world_size > 1 else ''}"


def detect_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Read the launcher's variables; of several launchers the innermost counts, such as torchrun in an allocation of Slurm.

    A missing local rank is 0; a missing local size follows from the node's number. Raises ConfigError for impossible values.
    """
    launcher, names = _launcher(environment)
    if names is None:
        return Launch()
    launch = _read(launcher, names, environment)
    address, port = environment.get("MASTER_ADDR") or None, environment.get("MASTER_PORT") or None
    service: Service | None = None
    if launcher == "mpirun" and (master := _azure_master(environment)):
        service, address, port = "Azure ML", address or master, port or str(AZURE_PORT)
    elif launcher == "variables":
        service = next((service for service, name in SERVICES.items() if name in environment), None)
    elif launcher == "srun":
        address = address or first_host(environment.get("SLURM_STEP_NODELIST", ""))
        job, step = (int(environment.get(name, 0)) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        port = port or str(slurm_port(job, step))
    if port is not None and not (port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(
            f"MASTER_PORT={port} is not a port; give a number from 1 to 65535, or unset it."
        )
    return replace(
        launch, master_address=address, master_port=int(port) if port else None, service=service
    )


def _launcher(environment: Mapping[str, str]) -> tuple[Launcher, Names | None]:
    def given(names: Names) -> bool:
        return names.rank in environment and names.world_size in environment

    if "TORCHELASTIC_RUN_ID" in environment and given(TORCHRUN):
        return "torchrun", TORCHRUN
    if given(HOROVOD):
        return "horovodrun", HOROVOD
    if given(OPEN_MPI):
        return "mpirun", OPEN_MPI
    if given(MPICH) and not _of_srun(environment):
        return "mpirun", MPICH
    if given(PLAIN):
        return "variables", PLAIN
    if given(SLURM):
        return "srun", SLURM
    return "python", None


def _of_srun(environment: Mapping[str, str]) -> bool:
    """Whether PMI's variables are those of `srun --mpi=pmi2`, which has no local rank among them."""
    own = (environment.get(SLURM.rank), environment.get(SLURM.world_size))
    return MPICH.local_rank not in environment and own == (
        environment[MPICH.rank],
        environment[MPICH.world_size],
    )


def _azure_master(environment: Mapping[str, str]) -> str | None:
    """The first host of Azure ML's MPI job: AZ_BATCH_MASTER_NODE has it with a port; on a single host only the other is set."""
    host = environment.get("AZ_BATCH_MASTER_NODE", "").rpartition(":")[0]
    return host or environment.get("AZ_BATCHAI_MPI_MASTER_NODE")


def first_host(node_list: str) -> str | None:
    """The first of Slurm's list of hosts, such as gpu-007 of "gpu-[007-009,12],login"; None without any."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", node_list)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else None


def tasks_of_node(tasks_per_node: str, node: int) -> int:
    """Slurm's list of task counts at a node, as 1 of "4(x2),1" at node 2; ValueError or IndexError for another text."""
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts[node]


def slurm_port(job: int, step: int) -> int:
    """A port that all processes of a step agree on and other jobs and steps of its first host rarely have: 10000 to 29999."""
    return 10_000 + (job + 1009 * step) % 20_000


def _read(launcher: Launcher, names: Names, environment: Mapping[str, str]) -> Launch:
    try:
        rank, size = int(environment[names.rank]), int(environment[names.world_size])
        local_rank = int(environment.get(names.local_rank, "0"))
        node = int(environment.get(names.node_rank, "-1"))
        said = environment.get(names.local_world_size)
        if said is None:  # on later nodes, the ranks of the nodes before give the size
            local_size = (
                (rank - local_rank) // node if node > 0 else 0 if launcher == "variables" else size
            )
        else:
            local_size = tasks_of_node(said, node) if names is SLURM else int(said)
    except (ValueError, IndexError):
        values = ", ".join(
            f"{name}={environment[name]}" for name in names if name and name in environment
        )
        starter = "something" if launcher == "variables" else launcher
        raise ConfigError(
            f"{starter} set {values}, which are not all whole numbers; unset them or restart."
        ) from None
    for name, number, of, count in (
        (names.rank, rank, names.world_size, size),
        (names.local_rank, local_rank, names.local_world_size, local_size or size),
    ):
        if not 0 <= number < count:
            raise ConfigError(
                f"{name}={number} is outside {of}={count}; unset them, or start by a launcher."
            )
    return Launch(
        launcher,
        rank,
        size,
        local_rank,
        local_size,
        rank // (local_size or size) if node < 0 else node,
    )
