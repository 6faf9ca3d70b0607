"""Ray Train on a cluster of two nodes (two raylets of this machine): the same weights as
torchrun's, one worker killed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.strategies.start_processes import command, environment
from tests.chaos import equal
from tests.commands import run_process, wait_for
from tests.e2e.conftest import ROOT, SMALL

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed (make engines installs it)",
)

SCRIPT = ROOT / "scripts" / "ray" / "train.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of a command that finds a cluster of two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    ours = {**environment(1), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    before = dict(os.environ)
    os.environ.update(ours)  # the nodes inherit it, and their workers from them
    try:
        nodes = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        nodes.add_node(num_cpus=1)
        yield {**ours, "RAY_ADDRESS": nodes.address}
        nodes.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_a_killed_worker_and_still_the_weights_of_torchrun(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    settings = [
        *SMALL,
        "trainer.max_duration=12steps",
        "trainer.checkpoint_every=2steps",
        "logging.plots=false",
    ]
    under_torchrun = command("torchrun", 2, "retina_dist.train", [*settings, "output_dir=torchrun"])
    run_process(under_torchrun, cwd=tmp_path)

    under_ray = [sys.executable, str(SCRIPT), "--workers", "2", "--", *settings, "output_dir=ray"]
    with open(tmp_path / "words", "w") as words:
        job = subprocess.Popen(
            under_ray, cwd=tmp_path, env=cluster, stdout=words, stderr=subprocess.STDOUT
        )
    try:
        victim = wait_for_checkpoint(tmp_path / "ray", job)
        os.kill(victim, signal.SIGKILL)
        assert job.wait(timeout=400) == 0, (tmp_path / "words").read_text()
    finally:
        job.kill()

    assert "resumed from ray/checkpoints/step_" in (tmp_path / "words").read_text(), (
        "Ray started the workers again"
    )
    ours, theirs = (
        load_checkpoint(tmp_path / name / "checkpoints" / "last.pt") for name in ("ray", "torchrun")
    )
    assert ours["step"] == theirs["step"] == 12
    assert equal(ours["model"], theirs["model"])


def wait_for_checkpoint(folder: Path, job: subprocess.Popen[bytes]) -> int:
    """A worker's process, once there is a checkpoint to resume from."""
    wait_for(lambda: (folder / "checkpoints" / "last.pt").exists() or job.poll() is not None, 300)
    assert job.poll() is None, (folder.parent / "words").read_text()
    lines = {
        path.parent.name: path.read_bytes()
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists()
    }
    return next(
        int(process) for process, line in lines.items() if re.match(rb"ray::_?RayTrainWorker", line)
    )
