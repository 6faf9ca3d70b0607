"""The launchers that are installed, and how each starts N processes here.

Under a launcher it prints how each process understands it:

    srun -n 8 python -m retina_dist.strategies.start_processes
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from retina_dist.base.errors import ConfigError, UserError
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.launchers import (
    ALONE,
    DEFAULT_PORT,
    Environment,
    launcher_named,
    startable,
    traces,
)

LAUNCHERS = startable()
# Several processes on few cores, in a container that runs as root: Open MPI 4 and 5 need these
# variables. Others ignore them.
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
    if launcher not in (*startable(), ALONE.name):
        *names, last = startable()
        return f"it is none of {', '.join(names)} and {last}"
    row = launcher_named(launcher)
    if not row.needs:
        return None
    horovodrun = executable("horovodrun")
    if horovodrun is None:
        return "Horovod is not installed"
    if executable(row.command[0]) is None:
        return f"{row.command[0]} is not installed"
    if f"[X] {row.needs}" not in _built(horovodrun):
        return f"Horovod was built without {row.needs}"
    return None


@cache
def _built(horovodrun: str) -> str:
    """The output of horovodrun --check-build; asked once, since it imports torch several times."""
    return subprocess.run(
        [horovodrun, "--check-build"], capture_output=True, text=True, env=environment(1)
    ).stdout


def command(
    launcher: str,
    processes: int,
    module: str,
    arguments: Sequence[str],
    python: str = sys.executable,
) -> list[str]:
    """The command line that runs `python -m MODULE ARGUMENTS` as so many processes.

    Raises ConfigError if it cannot.
    """
    if reason := why_missing(launcher):
        raise ConfigError(
            f"{launcher} cannot be used: {reason}; "
            "run scripts/install_horovod.py, or take torchrun."
        )
    words = [word.format(n=processes) for word in launcher_named(launcher).command]
    programs = {words[0]: executable(words[0]), "python": python}
    start = [str(programs.get(word) or word) for word in words]
    return [*start, module, *arguments]


def environment(threads: int) -> dict[str, str]:
    """This process's environment for a child that starts others: so many threads each, no trace of
    an outer launcher.
    """
    ours = {}
    for name, value in os.environ.items():
        if name == "SLURM_CONF" or not name.startswith(traces()):
            ours[name] = value
    path = os.pathsep.join([str(Path(sys.executable).parent), ours.get("PATH", "")])
    return {**ours, **OPEN_MPI, "PATH": path, "OMP_NUM_THREADS": str(threads)}


def described(variables: Environment = os.environ) -> str:
    """How a process with these variables understands its launcher, in one line.

    Raises ConfigError.
    """
    launch = detect_launch(variables)
    host = (
        f"local rank {launch.local_rank} of {launch.local_world_size or '?'} "
        f"on node {launch.node_rank}"
    )
    place = ""
    if launch.master_address:
        place = f", meeting at {launch.master_address}:{launch.master_port or DEFAULT_PORT}"
    strategy = launcher_named(launch.launcher).strategies[0]
    return (
        f"rank {launch.rank} of {launch.world_size}, {host}{place}, strategy {strategy}: {launch}"
    )


def usable(launchers: Sequence[str]) -> list[str]:
    """The launchers that can be used here; prints why others cannot.

    Raises ConfigError if none can.
    """
    reasons = {name: why_missing(name) for name in launchers}
    for name, reason in reasons.items():
        if reason:
            print(f"{name} left out: {reason}", flush=True)
    if all(reasons.values()):
        raise ConfigError(
            f"launchers={list(launchers)}: none can be used here; give launchers=[torchrun]."
        )
    return [name for name, reason in reasons.items() if not reason]


def launcher_like(name: str, processes: int) -> str:
    """The launcher that starts so many processes here as `name` does; torchrun for one that cannot,
    such as srun.
    """
    is_alone = name == ALONE.name and processes == 1
    return name if is_alone or name in LAUNCHERS else "torchrun"


def run_job(
    launcher: str,
    processes: int,
    module: str,
    folder: Path,
    *,
    further: Sequence[str] = (),
    python: str = sys.executable,
    threads: int = 1,
) -> dict[str, Any]:
    """The JSON that a job of `module` writes to its setting `worker`, a file in `folder`.

    Its arguments are this process's and `further` ones; each process is run by `python`, with so
    many threads.

    The job's output goes to stderr. Raises UserError if it fails.
    """
    result = folder / f"{launcher}_{processes}.json"
    result.unlink(missing_ok=True)
    arguments = [*sys.argv[1:], *further, f"worker={result}"]
    line = command(launcher, processes, module, arguments, python)
    # torchrun starts its processes by what the variable names
    variables = {**environment(threads), "PYTHON_EXEC": python}
    code = subprocess.run(line, env=variables, stdout=sys.stderr).returncode
    if code or not result.exists():
        raise UserError(
            f"{launcher} with {processes} processes failed (exit code {code}); its output is above."
        )
    return json.loads(result.read_text())


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)  # there are no arguments
    sys.stdout.write(described() + "\n")  # in one piece: others write to the same place
