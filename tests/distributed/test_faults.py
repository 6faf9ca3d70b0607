"""Processes that are killed, asked to end or added while a training goes on.

`make chaos` does this a hundred times.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from retina_dist.strategies.start_processes import executable
from tests import chaos, commands
from tests.chaos import differences, rank_processes, steps_done
from tests.commands import free_port, listens, run_command
from tests.distributed.ranks import launched, variables
from tests.distributed.test_training import MODULE, checkpoint, same_training, same_weights

END_S = 240
# Five images a step, which two processes cannot share equally, and norms over all of them; plain
# SGD makes little of rounding.
JOB = (*chaos.JOB, "data.batch_size=5", "trainer.max_duration=16steps", "trainer.keep_last=1", "model.norm=sync_bn",
       "optimizer=sgd", "optimizer.lr=0.005")  # fmt: skip


def started(line: list[str], place: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A job whose processes are all ended afterwards; its output goes to log.txt."""
    return chaos.running(line, place / "run", place / "log.txt", cwd=place)


def log_of(place: Path) -> str:
    return (place / "log.txt").read_text(errors="replace")


def wait_for(condition: Callable[[], bool], place: Path) -> None:
    commands.wait_for(condition, END_S, lambda: log_of(place))


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    place = tmp_path_factory.mktemp("alone")
    run_command(MODULE, *JOB, "output_dir=run", cwd=place)
    return place / "run"


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("python", "horovodrun", "mpirun")]


@pytest.mark.parametrize("launcher", ["torchrun", *LONG])
def test_one_rank_that_is_asked_to_end_ends_all_with_a_checkpoint(
    launcher: str, tmp_path: Path
) -> None:
    line = launched(
        launcher, 2, "retina_dist.train", *JOB, "output_dir=run", "trainer.max_duration=1000steps"
    )
    run = tmp_path / "run"
    with started(line, tmp_path) as job:
        wait_for(lambda: steps_done(run) >= 2, tmp_path)
        os.kill(rank_processes(run)[-1], signal.SIGTERM)
        code = job.wait(END_S)
    # torchrun ends with 1 whatever its processes end with, and prints their code
    assert code == (1 if launcher == "torchrun" else os.EX_TEMPFAIL), log_of(tmp_path)
    assert re.search(r"[Ee]xit *code *:? 75", log_of(tmp_path)) or launcher in ("python", "mpirun")
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "preempted"
    content = checkpoint(run)
    assert f"stopped at step {content['step']} (" in result["error"]
    assert f"stopped at step {content['step']} (" in log_of(tmp_path)
    assert content["step"] >= steps_done(run) - 1


@pytest.mark.long
def test_torchrun_goes_on_with_the_hosts_that_are_left(tmp_path: Path, alone: Path) -> None:
    port = free_port()
    meeting = "join_timeout=60,last_call_timeout=15,keep_alive_interval=1,keep_alive_max_attempt=10"
    options = f"--nnodes 1:2 --nproc-per-node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint localhost:{port} "
    options += f"--rdzv-id job --rdzv-conf {meeting} -m {MODULE} output_dir=run resume=auto"
    line = [sys.executable, "-m", "torch.distributed.run", *options.split(), *JOB]
    run = tmp_path / "run"
    with ExitStack() as jobs:
        first = jobs.enter_context(started(line, tmp_path))
        wait_for(
            lambda: listens(port), tmp_path
        )  # it holds the meeting point, so it must be the one that stays
        second = jobs.enter_context(started(line, tmp_path))
        wait_for(lambda: len(rank_processes(run)) == 2 and steps_done(run) >= 7, tmp_path)
        for process in (second.pid, *(p for p in rank_processes(run) if parent(p) == second.pid)):
            os.kill(process, signal.SIGKILL)
        assert first.wait(END_S) == 0, log_of(tmp_path)
    assert "one process, cpu" in log_of(tmp_path) or "DDP over Gloo, cpu, 1 thread\n" in log_of(
        tmp_path
    )
    same_training(run, alone)


def elastic(
    place: Path, hosts: str, *extra: str, job: tuple[str, ...] = JOB, module: str = MODULE
) -> list[str]:
    """horovodrun on the hosts that a file lists; localhost and 127.0.0.1 stand for two."""
    launched("horovodrun", 2, module)  # or skip
    (place / "hosts").write_text(hosts)
    script = place / "discover.sh"
    script.write_text(f"#!/bin/sh\ncat {place / 'hosts'}\n")
    script.chmod(0o755)
    options = f"--gloo -np {hosts.count(':')} --min-np 1 --max-np 2 --network-interfaces lo --host-discovery-script {script}"
    line = [str(executable("horovodrun")), *options.split(), sys.executable, "-m", module]
    return [*line, *job, "output_dir=run", "strategy.commit_every=2", *extra]


def test_elastic_horovod_goes_on_with_those_that_are_left(tmp_path: Path, alone: Path) -> None:
    run = tmp_path / "run"
    with started(elastic(tmp_path, "localhost:1\n127.0.0.1:1\n"), tmp_path) as job:
        wait_for(lambda: len(rank_processes(run)) == 2 and steps_done(run) >= 7, tmp_path)
        os.kill(rank_processes(run)[1], signal.SIGKILL)
        assert job.wait(END_S) == 0, log_of(tmp_path)
    assert "resumed from memory, step " in log_of(tmp_path)
    same_training(run, alone)


@pytest.mark.long
def test_elastic_horovod_with_virtual_ranks_has_the_bits_of_one_process(tmp_path: Path) -> None:
    """In float32, over the loss of a rank."""
    module = "retina_dist.train"
    job = (*chaos.JOBS["any"], "trainer.max_duration=16steps")
    line = elastic(tmp_path, "localhost:1\n127.0.0.1:1\n", job=job, module=module)
    run = tmp_path / "run"
    with started(line, tmp_path) as process:
        wait_for(lambda: len(rank_processes(run)) == 2 and steps_done(run) >= 7, tmp_path)
        os.kill(rank_processes(run)[1], signal.SIGKILL)
        assert process.wait(END_S) == 0, log_of(tmp_path)
    assert "resumed from memory, step " in log_of(tmp_path)
    run_command(module, *job, "output_dir=one", cwd=tmp_path)
    assert differences(run, tmp_path / "one") == ""


@pytest.mark.long
def test_elastic_horovod_takes_in_those_that_come(tmp_path: Path, alone: Path) -> None:
    run = tmp_path / "run"
    # no log line at most steps: nothing then waits for one question before the next
    with started(elastic(tmp_path, "localhost:1\n", "trainer.log_every=4"), tmp_path) as job:
        wait_for(lambda: steps_done(run) >= 2, tmp_path)
        (tmp_path / "hosts").write_text("localhost:1\n127.0.0.1:1\n")
        assert job.wait(END_S) == 0, log_of(tmp_path)
    assert "2 processes" in log_of(tmp_path)
    assert "resumed from memory, step " in log_of(tmp_path)
    same_weights(run, alone)


@pytest.mark.long
def test_eight_seven_and_eight_processes_train_what_one_does(tmp_path: Path) -> None:
    """A batch that neither number divides, and a last step of fewer images than processes.

    The folder passes between launchers.
    """
    settings = (*JOB, "data.batch_size=9", "trainer.max_duration=9steps")
    legs = (("torchrun", 8, 3), ("horovodrun", 7, 6), ("torchrun", 8, 9))
    lines = [
        (
            launcher,
            n,
            MODULE,
            *settings,
            "output_dir=run",
            "resume=auto",
            f"trainer.stop_after={stop}steps",
        )
        for launcher, n, stop in legs
    ]
    for line in (*lines, ("python", 1, MODULE, *settings, "output_dir=one")):
        with started(launched(*line), tmp_path) as job:
            assert job.wait(3 * END_S) == 0, log_of(tmp_path)
    assert "9 images a step = 7 processes x 1 or 2" in log_of(tmp_path)
    same_training(tmp_path / "run", tmp_path / "one")


@pytest.mark.long
def test_three_ranks_go_on_bit_for_bit_when_asked_to_be_deterministic(tmp_path: Path) -> None:
    """A sum of three depends on its order: on which gradients share a message, and that on the
    step.
    """
    job = [*JOB, "trainer.max_duration=9steps", "data.batch_size=6", "trainer.deterministic=true"]
    parts = {"whole": [[]], "run": [["trainer.stop_after=4steps"], ["resume=auto"]]}
    for folder, starts in parts.items():
        for extra in starts:
            line = launched(
                "torchrun", 3, "retina_dist.train", *job, f"output_dir={folder}", *extra
            )
            with started(line, tmp_path) as process:
                assert process.wait(END_S) == 0, log_of(tmp_path)
    assert differences(tmp_path / "run", tmp_path / "whole") == ""


def test_a_pinch_of_chaos(tmp_path: Path) -> None:
    arguments = "--faults 1 --kinds single --per-training 1 --seed 11"
    line = [sys.executable, "-m", "tests.chaos", *arguments.split()]
    done = subprocess.run(
        line,
        env={**variables(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 survived" in done.stdout
