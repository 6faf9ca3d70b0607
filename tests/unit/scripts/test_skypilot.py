"""The SkyPilot task, read by SkyPilot itself where it is installed; its command is checked with the other job files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

TASK = Path(__file__).resolve().parents[3] / "scripts" / "skypilot" / "task.yaml"
READ = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
resources = list(task.resources)[0]
print(task.num_nodes, resources.accelerators, resources.use_spot, sorted(task.storage_mounts))
"""


def test_the_run_takes_skypilots_variables_and_writes_to_a_mount() -> None:
    task = yaml.safe_load(TASK.read_text())
    for name in ("NUM_NODES", "NUM_GPUS_PER_NODE", "NODE_RANK", "NODE_IPS"):
        assert f"$SKYPILOT_{name}" in task["run"]
    assert task["file_mounts"]["/mnt/runs"]["mode"] in ("MOUNT", "MOUNT_CACHED")
    for setting in ("data.root=/mnt/coco", "output_dir=/mnt/runs/sky", "resume=auto", "trainer.checkpoint_minutes="):
        assert setting in task["run"]


def test_skypilot_reads_the_task(tmp_path: Path) -> None:
    """In SkyPilot's own Python, since skypilot[azure] brings an antlr4 that Hydra cannot use; importing it writes to HOME."""
    sky = shutil.which("sky")
    if sky is None:
        pytest.skip("there is no sky on PATH (make engines installs SkyPilot)")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    line = [Path(sky).resolve().with_name("python"), "-c", READ, TASK]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
    assert "2 {'A100-80GB': 4} True ['/mnt/coco', '/mnt/runs']" in done.stdout, done.stderr
