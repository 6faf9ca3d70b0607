"""A Slurm cluster of two nodes on one machine: two slurmd, a slurmctld and a munged of its own, all
on loopback.

The nodes are called 127.0.0.1 and 127.0.0.2, so that their names resolve on any machine without an
entry in /etc/hosts, and Slurm's way of writing them, 127.0.0.[1-2], has to be read. Nothing outside
the folder is written, and the system's own Slurm, if there is one, is not touched.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from retina_dist.strategies.launchers import slurm_port
from retina_dist.strategies.start_processes import environment
from tests.commands import wait_for
from tests.distributed.hosts import CannotRun, find, run, with_sbin

NODES = ("127.0.0.1", "127.0.0.2")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey")
START_S = 60

# No accounting, no cgroups: what a container allows. KillWait is the time from SIGTERM to SIGKILL.
# https://slurm.schedmd.com/archive/slurm-22.05.8/slurm.conf.html
SLURM_CONF = """\
ClusterName=retina
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=60
FirstJobId={first_job}
GresTypes=gpu
NodeName={nodes[0]} NodeHostname={host} NodeAddr={nodes[0]} Port={ports[1]} CPUs=1 Gres=gpu:1
NodeName={nodes[1]} NodeHostname={host} NodeAddr={nodes[1]} Port={ports[2]} CPUs=1 Gres=gpu:1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """Two idle nodes of one CPU each."""

    folder: Path
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """A user's, with which Slurm's commands find this cluster."""
        return {
            **environment(1),
            "PATH": with_sbin()["PATH"],
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

    def ask(self, *command: str) -> str:
        """The output of one of Slurm's commands; raises CannotRun."""
        return run(command, self.environment)

    def submit(self, *command: str, cwd: Path, variables: Mapping[str, str] | None = None) -> str:
        """`sbatch`: the number of the job."""
        env = {**self.environment, **(variables or {})}
        return run(["sbatch", "--parsable", f"--chdir={cwd}", *command], env).strip()

    def state(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says, by its own keys."""
        return dict(
            re.findall(r"(\S+?)=(\S*)", self.ask("scontrol", "show", "job", "--oneliner", job))
        )


@contextmanager
def slurm(folder: Path) -> Iterator[Cluster]:
    """Build a cluster whose files are in `folder`.

    Whatever happens, its jobs and daemons are gone afterwards.
    """
    cluster = Cluster(folder)
    try:
        configure(folder)
        start(cluster)
        yield cluster
    finally:
        stop(cluster)


def configure(folder: Path) -> None:
    """Keys and settings, on ports that are free now."""
    run(["mungekey", "--create", f"--keyfile={folder / 'munge.key'}"])
    sockets = [socket.create_server(("", 0)) for _ in range(3)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    host = socket.gethostname().split(".")[0]
    text = SLURM_CONF.format(
        folder=folder, host=host, nodes=NODES, ports=ports, first_job=first_job()
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")  # that job scripts can ask for
    (folder / "state").mkdir()


def first_job() -> int:
    """A job number whose training meets at a free port: other clusters may be on this machine."""
    while True:
        number = random.SystemRandom().randrange(1, 60_000)
        with suppress(OSError), socket.create_server(("", slurm_port(number, 0))):
            return number


def start(cluster: Cluster) -> None:
    """The daemons in the foreground, so that their process ids are those of what we started.

    Until both nodes are idle.
    """
    folder = cluster.folder
    munge = ["munged", "--foreground", "--force", f"--key-file={folder / 'munge.key'}"]
    munge += [f"--{name}-file={folder / f'munge.{name}'}" for name in ("log", "pid", "seed")]
    daemon(cluster, "munged", [*munge, f"--socket={folder / 'munge.socket'}"])
    until(lambda: (folder / "munge.socket").exists(), cluster)
    daemon(cluster, "slurmctld", ["slurmctld", "-D", "-c"])
    for node in NODES:
        daemon(cluster, f"slurmd-{node}", ["slurmd", "-D", "-N", node])

    def idle() -> bool:
        with suppress(CannotRun):
            return cluster.ask("sinfo", "--noheader", "--Node", "--format=%T").split() == [
                "idle",
                "idle",
            ]
        return False

    until(idle, cluster)


def daemon(cluster: Cluster, name: str, command: Sequence[str]) -> None:
    program = find(command[0])
    assert program is not None
    with (cluster.folder / f"{name}.log").open("wb") as log:
        line = [program, *command[1:]]
        cluster.daemons.append(
            subprocess.Popen(
                line, env=cluster.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        )


def until(condition: Callable[[], bool], cluster: Cluster, seconds: float = START_S) -> None:
    """Wait for it; raises AssertionError with the daemons' words when that takes too long."""

    def logs():
        return (
            f"{log.name}:\n{log.read_text(errors='replace')}"
            for log in cluster.folder.glob("*.log")
        )  # noqa: E731

    wait_for(condition, seconds, lambda: "\n".join(logs()))


def stop(cluster: Cluster) -> None:
    """Cancel what runs, wait for it to be gone, then end the daemons in the opposite order."""
    with suppress(CannotRun, AssertionError):
        cluster.ask("scancel", "--full", "--signal=KILL", "--user=root")
        cluster.ask("scancel", "--user=root")
        until(lambda: not cluster.ask("squeue", "--noheader"), cluster, seconds=20)
    for process in reversed(cluster.daemons):
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
