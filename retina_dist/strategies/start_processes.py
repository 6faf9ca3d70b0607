"""The launchers that are installed, and how each starts N processes on this machine.

    python -m retina_dist.strategies.start_processes                  starts two processes with each installed launcher
    srun -n 8 python -m retina_dist.strategies.start_processes        under any launcher: how each process understands it

For commands that start others (parity, benchmarks). A user types the launcher instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from retina_dist.errors import ConfigError
from retina_dist.strategies.launch_environment import BY_LAUNCHER, DEFAULT_PORT, PLAIN, detect_launch

LauncherName = Literal["torchrun", "horovodrun", "mpirun"]
LAUNCHERS: tuple[LauncherName, ...] = ("torchrun", "horovodrun", "mpirun")

START_S = 120  # that a launcher may take to start two processes

# Several processes on few cores, in a container that runs as root: Open MPI needs these variables. Others ignore them.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def executable(name: str) -> str | None:
    """The program `name` beside this Python, else on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def why_missing(launcher: str) -> str | None:
    """Why a launcher cannot be used here, or None if it can."""
    if launcher == "torchrun":
        return None
    program = executable("horovodrun")
    if program is None:
        return "Horovod is not installed"
    if launcher == "mpirun" and executable("mpirun") is None:
        return "mpirun is not installed"
    wanted = "Gloo" if launcher == "horovodrun" else "MPI"
    return None if f"[X] {wanted}" in _built(program) else f"Horovod was built without {wanted}"


@cache
def _built(horovodrun: str) -> str:
    """What Horovod was built with; asked once, since it imports torch several times to say so."""
    return subprocess.run([horovodrun, "--check-build"], capture_output=True, text=True, env=environment(1)).stdout


def command(launcher: str, processes: int, module: str, arguments: Sequence[str]) -> list[str]:
    """The command line that runs `python -m MODULE ARGUMENTS` as so many processes. Raises ConfigError if it cannot."""
    reason = why_missing(launcher)
    if reason:
        raise ConfigError(f"{launcher} cannot be used: {reason}; run scripts/install_horovod.py, or take torchrun.")
    return [*_start(launcher, processes), "-m", module, *arguments]


def _start(launcher: str, processes: int) -> list[str]:
    """The launcher with its options, up to "-m"."""
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    options = {
        "horovodrun": ["--gloo", "-np", str(processes), "-H", f"localhost:{processes}"],
        "mpirun": ["-np", str(processes)],
        "srun": ["--ntasks", str(processes), "--immediate=30"],  # seconds to wait for them
    }[launcher]
    return [str(executable(launcher)), *options, sys.executable]


def environment(threads: int) -> dict[str, str]:
    """This process's environment for a child that starts others: so many threads each, no trace of an outer launcher."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_COMM_", "PMI_", "PMIX_"))}
    for name in list(ours):
        if (
            name in PLAIN
            or name in ("MASTER_ADDR", "MASTER_PORT")
            or (name.startswith("SLURM_") and name != "SLURM_CONF")
        ):
            ours.pop(name)
    bin_folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([bin_folder, ours.get("PATH", "")])
    return {**ours, **OPEN_MPI, "PATH": path, "OMP_NUM_THREADS": str(threads)}


def described(variables: Mapping[str, str] = os.environ) -> str:
    """How a process with these variables understands its launcher, in one line. Raises ConfigError."""
    launch = detect_launch(variables)
    host = f"local rank {launch.local_rank} of {launch.local_world_size or '?'} on node {launch.node_rank}"
    place = launch.master_address and f", meeting at {launch.master_address}:{launch.master_port or DEFAULT_PORT}"
    return f"rank {launch.rank} of {launch.world_size}, {host}{place or ''}, strategy {BY_LAUNCHER[launch.launcher]}: {launch}"


def started(launcher: str) -> tuple[str | None, str]:
    """The line of rank 1 of two processes that the launcher starts here, or None and why it does not."""
    if launcher != "torchrun" and executable(launcher) is None:
        return None, f"{launcher} is not installed"
    try:
        line = [*_start(launcher, 2), "-m", "retina_dist.strategies.start_processes"]
        done = subprocess.run(line, env=environment(1), capture_output=True, text=True, timeout=START_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{launcher} has not started two processes ({type(error).__name__})"
    words = done.stdout + done.stderr
    if found := re.search(r"rank 1 of 2.*", words):
        return found[0], ""
    last = (words.strip().splitlines() or ["no output"])[-1]
    return None, f"{launcher} has not started two processes ({last[:120]})"


def main() -> None:
    """Under a launcher a line of each process; without one, a table of the launchers."""
    if detect_launch().launcher != "python":
        sys.stdout.write(described() + "\n")  # in one piece: others write to the same place
        return
    print("How a process understands its launcher, here the last of two.\n")
    print(f"{'python':<12}{described()}")
    for launcher in ("torchrun", "horovodrun", "mpirun", "srun"):
        line, reason = started(launcher)
        print(f"{launcher:<12}{line or reason}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)  # there are no arguments
    main()
