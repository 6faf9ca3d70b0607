"""The job script of scripts/slurm on a real Slurm of two nodes: stopped and put back in the queue,
it ends as if left alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retina_dist.strategies.launchers import slurm_port
from tests.chaos import differences, steps_done
from tests.commands import run_process
from tests.distributed.hosts import find
from tests.distributed.ranks import ROOT, launched
from tests.distributed.slurm import NODES, PROGRAMS, Cluster, slurm, until
from tests.distributed.test_faults import JOB
from tests.distributed.test_training import checkpoint

SCRIPT = ROOT / "scripts" / "slurm" / "train.sbatch"
SMALL = ("--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=1")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid() != 0 or not all(map(find, PROGRAMS)):
        pytest.skip(
            f"Slurm with two nodes needs root and {', '.join(PROGRAMS)} (Debian: slurm-wlm, munge)"
        )
    with slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def wait_for(condition: Callable[[], bool], cluster: Cluster, job: str, log: Path) -> None:
    """Raises AssertionError, with what the job has said, when that takes too long or the job ends
    before.
    """

    def there_or_over() -> bool:
        return condition() or cluster.state(job)["JobState"] in ENDED

    try:
        until(there_or_over, cluster, seconds=150)
        assert condition()
    except AssertionError as error:
        words = log.read_text(errors="replace") if log.exists() else "nothing"
        raise AssertionError(f"{cluster.state(job)['JobState']}: {words}\n{error}") from None


def test_srun_is_told_from_a_plain_python_in_its_script(cluster: Cluster, tmp_path: Path) -> None:
    alone = f'{sys.executable} -c "from retina_dist.strategies.start_processes import described; print(described())"'
    each = f"{sys.executable} -m retina_dist.strategies.start_processes"
    script = "\n".join([alone, f"srun {each}", f"srun --mpi=pmi2 {each}"])
    options = ("--nodes=2", "--ntasks=2", "--output=said.txt", f"--wrap={script}")
    job = cluster.submit(*options, cwd=tmp_path, variables={"PYTHONPATH": str(ROOT)})
    wait_for(
        lambda: cluster.state(job)["JobState"] == "COMPLETED", cluster, job, tmp_path / "said.txt"
    )
    lines = (tmp_path / "said.txt").read_text().splitlines()
    first, *steps = [
        line for line in lines if not line.startswith("srun: ")
    ]  # which may have to wait for the step before
    assert (
        first == "rank 0 of 1, local rank 0 of 1 on node 0, strategy single: python with 1 process"
    )
    assert sorted(steps) == sorted(
        f"rank {rank} of 2, local rank 0 of 1 on node {rank}, meeting at {NODES[0]}:{slurm_port(int(job), step)}, strategy ddp: "
        "srun with 2 processes"
        for step in (0, 1)
        for rank in (0, 1)
    )


@pytest.mark.long
def test_a_job_that_is_stopped_in_the_middle_ends_as_if_it_had_not_been(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "mine"
    given = {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "RUN": str(run)}
    job = cluster.submit(
        *SMALL, str(SCRIPT), *JOB, "strategy.device=cpu", cwd=tmp_path, variables=given
    )
    log = tmp_path / f"retina-{job}.log"
    wait_for(lambda: steps_done(run) >= 3, cluster, job, log)
    cluster.ask(
        "scancel", "--batch", "--signal=USR1", job
    )  # as --signal=B:USR1@120 does it before the time limit
    wait_for(lambda: cluster.state(job)["Restarts"] == "1", cluster, job, log)
    wait_for(lambda: cluster.state(job)["JobState"] == "PENDING", cluster, job, log)
    stopped = checkpoint(run)["step"]
    assert 3 <= stopped < 16
    alone = tmp_path / "alone"  # while the nodes are free: Slurm waits two minutes
    line = launched("torchrun", 2, "retina_dist.train", *JOB, f"output_dir={alone}")
    run_process(line, cwd=tmp_path)
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for(lambda: cluster.state(job)["JobState"] == "COMPLETED", cluster, job, log)
    said = log.read_text()
    assert said.count("DDP over Gloo") == 2
    assert f"stopped at step {stopped} (SIGUSR1)" in said
    assert "resume=auto: no checkpoint" in said
    assert re.search(rf"resumed from {run}/checkpoints/\S+, step {stopped}\n", said)
    assert not differences(run, alone)
    assert os.EX_TEMPFAIL == 75  # what the script waits for
