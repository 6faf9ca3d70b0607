"""The launchers, a row each: how a process recognises its launcher, and what the package does under
it.

Everything else follows from `LAUNCHERS`: which launcher a process has, which strategies run there,
how the benchmarks start it, and which variables a process must not pass to a job that it starts
itself.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Environment = Mapping[str, str]

# Where rank 0 listens when nobody says it: torch's own port, and that of Azure ML's PyTorch jobs.
# The port of its MPI jobs is in use:
# https://azure.github.io/azureml-cheatsheets/docs/cheatsheets/python/v1/distributed-training
DEFAULT_PORT = 29500
AZURE_PORT = 6105
# Services that set torchrun's variables themselves, and a variable that tells each.
SERVICES = {"Azure ML": "AZUREML_RUN_ID", "Ray Train": "RAY_JOB_ID"}


class Meeting(NamedTuple):
    """Where the ranks meet, as texts, and the service behind the launcher; None where unknown."""

    address: str | None = None
    port: str | None = None
    service: str | None = None


def torch_meeting(environment: Environment) -> Meeting:
    """The variables that torch itself reads."""
    return Meeting(environment.get("MASTER_ADDR") or None, environment.get("MASTER_PORT") or None)


def service_meeting(environment: Environment) -> Meeting:
    """torch's variables, set by one of `SERVICES` or by a user."""
    callers = [service for service, name in SERVICES.items() if name in environment]
    return torch_meeting(environment)._replace(service=callers[0] if callers else None)


def mpi_meeting(environment: Environment) -> Meeting:
    """Azure ML's MPI jobs name their first host; mpirun itself does not.

    AZ_BATCH_MASTER_NODE has it with a port; on a single host only the other variable is set.
    """
    said = torch_meeting(environment)
    host = environment.get("AZ_BATCH_MASTER_NODE", "").rpartition(":")[0]
    master = host or environment.get("AZ_BATCHAI_MPI_MASTER_NODE")
    if not master:
        return said
    return Meeting(said.address or master, said.port or str(AZURE_PORT), "Azure ML")


def slurm_meeting(environment: Environment) -> Meeting:
    """The first host of the step, at a port that follows from the job's number."""
    said = torch_meeting(environment)
    job = int(environment.get("SLURM_JOB_ID", 0))
    step = int(environment.get("SLURM_STEP_ID", 0))
    first = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    return Meeting(said.address or first, said.port or str(slurm_port(job, step)))


def first_host(node_list: str) -> str | None:
    """The first of Slurm's list of hosts, such as gpu-007 of "gpu-[007-009,12],login"; None without
    any.
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", node_list)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0]) if first else None


def slurm_port(job: int, step: int) -> int:
    """A port, 10000 to 29999, that all processes of a step agree on.

    Other jobs and steps of the step's first host rarely have the same one.
    """
    return 10_000 + (job + 1009 * step) % 20_000


def tasks_of_node(tasks_per_node: str, node: int) -> int:
    """Slurm's list of task counts at a node, as 1 of "4(x2),1" at node 2.

    Raises ValueError or IndexError for another text.
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts[node]


class Names(NamedTuple):
    """The variables of one launcher; the first two make it that launcher's."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str = ""  # not said


@dataclass(frozen=True)
class Launcher:
    """A launcher, as the package knows it.

    A process has the first launcher of `LAUNCHERS` whose rank, world size and `also` are set,
    unless they are `foreign`: another launcher's, which sets the same variables. The first of
    `strategies`, those that can train in its processes, is the one of `strategy=auto`.
    """

    name: str
    names: Names
    strategies: tuple[str, ...]
    also: str = ""  # a variable that must be set, too
    foreign: Callable[[Environment], bool] = lambda environment: False
    meeting: Callable[[Environment], Meeting] = torch_meeting
    # reads `names.local_world_size`: most launchers say the size of the process's own node
    ranks_of_node: Callable[[str, int], int] = lambda text, node: int(text)
    fills_one_node: bool = True  # where the node's size is not said and its number is 0 or not said
    clears: tuple[str, ...] = ()  # further variables, by their beginnings, that its processes have
    title: str = ""  # in messages, by default the name
    hint: str = ""  # the words before the module's name of a start by hand
    command: tuple[str, ...] = ()  # that starts {n} processes of the Python module named after it
    needs: str = ""  # what Horovod must be built with


def _is_slurms(environment: Environment) -> bool:
    """Whether PMI's variables are those of `srun --mpi=pmi2`, which sets no local rank in them."""
    if MPICH.local_rank in environment:
        return False
    pairs = ((MPICH.rank, SLURM.rank), (MPICH.world_size, SLURM.world_size))
    return all(environment[mpich] == environment.get(slurm) for mpich, slurm in pairs)


PLAIN = Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
HOROVOD = Names(
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
)
# OMPI_COMM_WORLD_NODE_RANK does not number nodes, but the user's processes on a node.
OPEN_MPI = Names(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
MPICH = Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
# The size is the step's: a batch script's one process and the shell of salloc see SLURM_PROCID=0
# and SLURM_NTASKS=N too. https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
SLURM = Names(
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NODEID",
)
MPIRUN = ("mpirun", "-np", "{n}", "python", "-m")

# From the innermost: torchrun may run in an allocation of Slurm, and srun may start the proxies of
# MPICH.
LAUNCHERS = (
    Launcher(
        "torchrun",
        PLAIN._replace(node_rank="GROUP_RANK"),
        ("ddp",),
        also="TORCHELASTIC_RUN_ID",
        clears=("MASTER_",),
        hint="torchrun --nproc-per-node N -m",
        command=(
            *("python", "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node", "{n}", "-m"),
        ),
    ),
    Launcher(
        "horovodrun",
        HOROVOD,
        ("horovod",),
        clears=("HOROVOD_",),
        hint="horovodrun -np N python -m",
        # its cache is one file of the user, which two starts at a time can break
        command=(
            *("horovodrun", "--gloo", "--disable-cache", "-np", "{n}", "-H", "localhost:{n}"),
            *("python", "-m"),
        ),
        needs="Gloo",
    ),
    Launcher(
        "mpirun",
        OPEN_MPI,
        ("horovod", "ddp"),
        meeting=mpi_meeting,
        clears=("OMPI_COMM_", "PMIX_"),
        command=MPIRUN,
        needs="MPI",
    ),
    Launcher(
        "mpirun",
        MPICH,
        ("horovod", "ddp"),
        foreign=_is_slurms,
        meeting=mpi_meeting,
        clears=("PMI_",),
        command=MPIRUN,
        needs="MPI",
    ),
    Launcher(
        # torchrun's, set by a service, a user or Kubernetes' operators without torchrun
        "variables",
        PLAIN,
        ("ddp",),
        meeting=service_meeting,
        fills_one_node=False,
        clears=("MASTER_",),
        title="RANK and WORLD_SIZE",
    ),
    Launcher(
        "srun",
        SLURM,
        ("ddp", "horovod"),
        meeting=slurm_meeting,
        ranks_of_node=tasks_of_node,
        clears=("SLURM_",),
    ),
)
# A process that no launcher started.
ALONE = Launcher(
    "python",
    Names("", "", "", ""),
    ("single", "ddp", "horovod"),
    command=("python", "-m"),
)


def launcher_of(environment: Environment) -> Launcher:
    """The launcher that started a process with these variables; `ALONE` without one."""
    for launcher in LAUNCHERS:
        needed = {launcher.names.rank, launcher.names.world_size, launcher.also} - {""}
        if needed <= environment.keys() and not launcher.foreign(environment):
            return launcher
    return ALONE


def launcher_named(name: str) -> Launcher:
    """The first row of that name. Raises KeyError for an unknown one."""
    for launcher in (*LAUNCHERS, ALONE):
        if launcher.name == name:
            return launcher
    raise KeyError(name)


def startable() -> tuple[str, ...]:
    """The launchers that `start_processes` can call."""
    return tuple(dict.fromkeys(row.name for row in LAUNCHERS if row.command))


def traces(*, but_of: str = "") -> tuple[str, ...]:
    """The beginnings of all variables by which a process could take itself for a launcher's.

    `but_of` names a launcher whose variables are left out.
    """
    kept = launcher_named(but_of).names.rank if but_of else ""
    found: dict[str, None] = {}
    for launcher in LAUNCHERS:
        if launcher.names.rank != kept:
            found |= dict.fromkeys((*launcher.clears, *filter(None, launcher.names)))
    return tuple(found)
