"""Who started this process, and as which of how many. Layer 1.

Launchers say it in environment variables:

    horovodrun        HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK, ...
    mpirun            OMPI_COMM_WORLD_RANK, ... (Open MPI); PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, ... (MPICH, Intel MPI)
    torchrun          RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ... (Azure ML's PyTorch jobs set the same)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from retina_dist.errors import ConfigError

Launcher = Literal["python", "torchrun", "horovodrun", "mpirun"]

# launcher: rank, world size, local rank, local world size
VARIABLES: dict[Launcher, list[tuple[str, str, str, str]]] = {
    "horovodrun": [("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")],
    "mpirun": [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ],
    "torchrun": [("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")],
}


@dataclass(frozen=True)
class Launch:
    """What the launcher said; a process started by hand is rank 0 of 1."""

    launcher: Launcher = "python"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    def __str__(self) -> str:
        return f"{self.launcher} with {self.world_size} process{'es' if self.world_size > 1 else ''}"


def detect_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Read the launcher's variables; the first launcher of `VARIABLES` whose rank and size are set counts.

    A torchrun within an allocation of MPI's or Slurm's counts before those.

    A missing local rank is 0, a missing local size the whole. Raises ConfigError for values that cannot be.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return _read("torchrun", VARIABLES["torchrun"][0], environment)
    for launcher, sets in VARIABLES.items():
        for names in sets:
            if names[0] in environment and names[1] in environment:
                return _read(launcher, names, environment)
    return Launch()


def _read(launcher: Launcher, names: tuple[str, ...], environment: Mapping[str, str]) -> Launch:
    defaults = ("", "", "0", environment[names[1]])  # the first two are there
    try:
        rank, size, local_rank, local_size = (
            int(environment.get(name, default)) for name, default in zip(names, defaults, strict=True)
        )
    except ValueError:
        said = ", ".join(f"{name}={environment[name]}" for name in names if name in environment)
        raise ConfigError(
            f"{launcher} set {said}, which are not all whole numbers; unset them or start anew."
        ) from None
    if not 0 <= rank < size:
        raise ConfigError(f"{names[0]}={rank} is no rank of {names[1]}={size}; unset them, or start by a launcher.")
    if not 0 <= local_rank < local_size:
        raise ConfigError(
            f"{names[2]}={local_rank} is no rank of {names[3]}={local_size}; unset them, or start by a launcher."
        )
    return Launch(launcher, rank, size, local_rank, local_size)
