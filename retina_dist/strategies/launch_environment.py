"""Who started this process, as which of how many, and where all of them meet: read from the
launcher's variables.

`python -m retina_dist.strategies.start_processes` under a launcher shows what each process was
told.
"""

import os
from dataclasses import dataclass

from retina_dist.base.errors import ConfigError
from retina_dist.strategies.launchers import ALONE, Environment, launcher_named, launcher_of


@dataclass(frozen=True)
class Launch:
    """What the launcher said; a process started by hand is rank 0 of 1.

    `launcher` is the name of a row of `launchers.LAUNCHERS`, or "python". `local_world_size` is 0
    if unknown. `node_rank` numbers the hosts, which mpirun, without a number, is assumed to fill
    one after the other. Rank 0 can listen at `master_address` and `master_port`, if known.
    `service` called the launcher.
    """

    launcher: str = "python"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_address: str | None = None
    master_port: int | None = None
    service: str | None = None

    def __str__(self) -> str:
        row = launcher_named(self.launcher)
        name = self.service or row.title or row.name
        if self.service == "Azure ML":
            name += " (type: mpi)" if self.launcher == "mpirun" else " (type: pytorch)"
        plural = "es" if self.world_size > 1 else ""
        return f"{name} with {self.world_size} process{plural}"


def detect_launch(environment: Environment = os.environ) -> Launch:
    """Read the launcher's variables; of several launchers the innermost counts.

    A missing local rank is 0; a missing local size follows from the node's number. Raises
    ConfigError for impossible values.
    """
    launcher = launcher_of(environment)
    if launcher is ALONE:
        return Launch()
    names = launcher.names
    try:
        rank = int(environment[names.rank])
        world_size = int(environment[names.world_size])
        local_rank = int(environment.get(names.local_rank, "0"))
        node = int(environment.get(names.node_rank, "-1"))  # not said
        said = environment.get(names.local_world_size)
        local_size = 0
        if said is not None:
            local_size = launcher.ranks_of_node(said, node)
        elif node > 0:  # the ranks of the nodes before give the size
            local_size = (rank - local_rank) // node
        elif launcher.fills_one_node:
            local_size = world_size
        address, port_text, service = launcher.meeting(environment)
        port = None
        if port_text:
            port = int(port_text)
    except (ValueError, IndexError):
        read = (*names, "MASTER_PORT")
        found = [f"{name}={environment[name]}" for name in read if name in environment]
        starter = "something" if launcher.title else launcher.name
        raise ConfigError(
            f"{starter} set {', '.join(found)}, which are not all whole numbers; "
            "unset them or restart."
        ) from None
    of_node = local_size or world_size
    _check_meeting(address, port)
    _check_below(names.rank, rank, names.world_size, world_size)
    _check_below(names.local_rank, local_rank, names.local_world_size, of_node)
    if node < 0:  # the hosts are filled one after the other
        node = rank // of_node
    return Launch(
        launcher.name,
        rank,
        world_size,
        local_rank,
        local_size,
        node,
        address,
        port,
        service,
    )


def _check_meeting(address: str | None, port: int | None) -> None:
    if str(address).count(":") == 1:  # of a scheme or a port; IPv6 has more
        raise ConfigError(f"MASTER_ADDR={address} is not a host; give its name or address alone.")
    if port is not None and not 0 < port < 65536:  # as 10000 + $SLURM_JOB_ID can be
        raise ConfigError(
            f"MASTER_PORT={port} is not a port; give a number from 1 to 65535, or unset it."
        )


def _check_below(name: str, number: int, of: str, count: int) -> None:
    if not 0 <= number < count:
        raise ConfigError(
            f"{name}={number} is outside {of}={count}; unset them, or start by a launcher."
        )
