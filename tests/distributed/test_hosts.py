"""A job over two hosts trains what one process trains, by the command lines that a user would type
on real ones.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from retina_dist.strategies.start_processes import environment, executable, why_missing
from tests.commands import run_command
from tests.distributed.hosts import INTERFACE, CannotRun, Host, TwoHosts, find, two_hosts
from tests.distributed.ranks import KINDS, ROOT
from tests.distributed.test_training import MODULE, same_training
from tests.e2e.conftest import SMALL

BACKENDS = {"mpi": "Horovod over MPI", "horovod": "Horovod over Gloo", "ddp": "DDP over Gloo"}
SETTINGS = (
    *SMALL,
    "trainer.max_duration=3steps",
    "trainer.ema_decay=0.9",
    "model.norm=sync_bn",  # over all ranks, so that the statistics are those of the whole batch
    "optimizer=sgd",  # Adam would blow rounding in a tiny gradient up to a whole step
    "logging=quiet",
)
Commands = dict[Host, Sequence[str]]


def mpirun(hosts: TwoHosts, arguments: Sequence[str]) -> Commands:
    """On the first host, which starts the second by ssh.

    It would wait forever on an interface that leads nowhere.
    """
    options = (
        "-H",
        both(hosts),
        "--mca",
        "btl_tcp_if_include",
        INTERFACE,
        "-x",
        "PYTHONPATH",
        "-x",
        "OMP_NUM_THREADS",
    )
    return {hosts.first: [str(executable("mpirun")), *options, sys.executable, *arguments]}


def horovodrun(hosts: TwoHosts, arguments: Sequence[str]) -> Commands:
    """On the first host; --disable-cache, since the cache of what it knows of hosts would stay in
    the home folder.
    """
    options = (
        "--gloo",
        "--disable-cache",
        "-np",
        "2",
        "-H",
        both(hosts),
        "--network-interfaces",
        INTERFACE,
    )
    return {hosts.first: [str(executable("horovodrun")), *options, sys.executable, *arguments]}


def torchrun(hosts: TwoHosts, arguments: Sequence[str]) -> Commands:
    """On each host, without ssh."""
    meeting = ("--master-addr", hosts.first.name, "--master-port", "29500")
    start = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        *meeting,
    )
    return {
        host: [*start, "--node-rank", str(rank), *arguments]
        for rank, host in enumerate((hosts.first, hosts.second))
    }


def both(hosts: TwoHosts) -> str:
    """The hosts with one process each, as mpirun and horovodrun want it."""
    return f"{hosts.first.name}:1,{hosts.second.name}:1"


COMMANDS: dict[str, Callable[[TwoHosts, Sequence[str]], Commands]] = {
    "mpi": mpirun,
    "horovod": horovodrun,
    "ddp": torchrun,
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    if os.geteuid() != 0 or not find("ip") or not find("unshare"):
        pytest.skip(
            "two hosts on one machine need root, ip (Debian: iproute2) and unshare (util-linux)"
        )
    with ExitStack() as stack:
        try:
            made = stack.enter_context(two_hosts(tmp_path_factory.mktemp("hosts")))
        except CannotRun as error:
            pytest.skip(f"this machine does not allow network namespaces ({error})")
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process; the data it drew is beside it."""
    folder = tmp_path_factory.mktemp("shared")
    run_command(MODULE, *settings(folder, folder / "alone"), cwd=folder)
    return folder / "alone"


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long if kind == "mpi" else ()) for kind in COMMANDS],
)
def test_two_hosts_train_what_one_process_trains(
    kind: str, hosts: TwoHosts, request: pytest.FixtureRequest
) -> None:
    if reason := why_missing(KINDS[kind]):
        pytest.skip(f"{KINDS[kind]} over two hosts: {reason}")
    alone: Path = request.getfixturevalue("alone")  # only now, since it takes a while
    run = alone.parent / kind
    commands = COMMANDS[kind](hosts, ["-m", MODULE, *settings(alone.parent, run)])
    for exit_code, output in hosts.run(commands, variables(), timeout=120):
        assert exit_code == 0, output
    result = json.loads((run / "result.json").read_text())
    assert (result["backend"], result["world_size"]) == (BACKENDS[kind], 2)
    same_training(run, alone)


def settings(folder: Path, run: Path) -> list[str]:
    return [*SETTINGS, f"data.root={folder / 'data'}", f"output_dir={run}"]


def variables() -> dict[str, str]:
    """A child's environment without leave to oversubscribe: with it, Open MPI 5 puts both ranks on
    the first host.
    """
    ours = {name: value for name, value in environment(1).items() if "rmaps" not in name}
    return {**ours, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": INTERFACE}
