"""The launchers that are installed, and how each starts N processes on this machine.

Layer 4, for commands that start others (parity, benchmarks). A user types the launcher instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from retina_dist.errors import ConfigError

LauncherName = Literal["torchrun", "horovodrun", "mpirun"]
LAUNCHERS: tuple[LauncherName, ...] = ("torchrun", "horovodrun", "mpirun")

# Several processes on few cores, in a container that runs as root: Open MPI wants to be told. Others ignore it.
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


def why_missing(launcher: LauncherName) -> str | None:
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


def command(launcher: LauncherName, processes: int, module: str, arguments: Sequence[str]) -> list[str]:
    """The command line that runs `python -m MODULE ARGUMENTS` as so many processes. Raises ConfigError if it cannot."""
    reason = why_missing(launcher)
    if reason:
        raise ConfigError(f"{launcher} cannot be used: {reason}; run scripts/install_horovod.py, or take torchrun.")
    if launcher == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        return [*start, "-m", module, *arguments]
    start = {
        "horovodrun": [str(executable("horovodrun")), "--gloo", "-np", str(processes), "-H", f"localhost:{processes}"],
        "mpirun": [str(executable("mpirun")), "-np", str(processes)],
    }[launcher]
    return [*start, sys.executable, "-m", module, *arguments]


def environment(threads: int) -> dict[str, str]:
    """This process's environment for a child that starts others: so many threads each, no trace of an outer launcher."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_COMM_", "PMI_", "PMIX_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        ours.pop(name, None)
    bin_folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([bin_folder, ours.get("PATH", "")])
    return {**ours, **OPEN_MPI, "PATH": path, "OMP_NUM_THREADS": str(threads)}
