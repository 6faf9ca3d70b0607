"""Commands as a user starts them, in tenths of a second: each is forked from a process that has
imported torch and the package.

Only what is about processes themselves (launchers, signals to a process group, an installation)
needs `run_process`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from retina_dist.strategies.start_processes import environment

ROOT = Path(__file__).resolve().parents[1]
PRELOADED = ["torch", "torchvision", "hydra", "jinja2", "retina_dist.run.assemble"]
PRELOADED += ["retina_dist.detection.task", "retina_dist.classification.task"]


def run_process(line: Sequence[str], *, cwd: Path, timeout: float = 300) -> str:
    """What a command line prints, run with one thread in an environment without traces of a
    launcher; its exit code must be 0.
    """
    variables = {**environment(1), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        line, cwd=cwd, env=variables, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait_for(
    condition: Callable[[], object], seconds: float = 60, said: Callable[[], str] = str
) -> None:
    """Until it is true; raises AssertionError with the text of `said` when that takes longer."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, said()
        time.sleep(0.05)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(PRELOADED)


def run_command(
    module: str,
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS` from `cwd`, with one thread; `env` is added to this process's
    environment.

    With `check` the exit code must be 0. A command that takes longer than `timeout` seconds is
    killed, and an error.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(env or {})}
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _server.Process(
            target=_run, args=(module, arguments, str(cwd), environment, str(out), str(err))
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(
                f"{module} {' '.join(arguments)}\n{out.read_text()}{err.read_text()}"
            )
        result = subprocess.CompletedProcess(
            [module, *arguments],
            process.exitcode,
            out.read_text(errors="replace"),
            err.read_text(errors="replace"),
        )
    assert result.returncode == 0 or not check, result.stdout + result.stderr
    return result


def _run(
    module: str, arguments: tuple[str, ...], cwd: str, environment: dict[str, str], *outputs: str
) -> None:
    """In the forked process: take over the command's folder, environment, arguments and outputs,
    and become it.
    """
    for number, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = [module, *arguments]
    sys.path[0:0] = [cwd]
    sys.modules.pop(module, None)  # as `python -m` has it: not imported yet
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
