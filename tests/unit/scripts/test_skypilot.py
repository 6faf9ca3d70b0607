"""The SkyPilot task: by rules of our own in every run, by SkyPilot itself where it is installed."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

TASK = Path(__file__).resolve().parents[3] / "scripts" / "skypilot" / "task.yaml"

MOUNT = {
    "type": "object",
    "properties": {
        "source": {"type": "string", "pattern": r"^https://[a-z0-9]{3,24}\.blob\.core\.windows\.net/[a-z0-9-]+$"},
        "mode": {"enum": ["MOUNT", "COPY", "MOUNT_CACHED"]},
    },
    "required": ["source", "mode"],
    "additionalProperties": False,
}
# What our task uses of https://docs.skypilot.co/en/latest/reference/yaml-spec.html
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "resources": {
            "type": "object",
            "properties": {
                "infra": {"type": "string", "pattern": "^azure(/[a-z0-9]+)?$"},
                "accelerators": {"type": "string", "pattern": "^[A-Za-z0-9-]+:[1-9][0-9]*$"},
                "use_spot": {"type": "boolean"},
                "disk_size": {"type": "integer", "minimum": 1},
                "job_recovery": {
                    "type": "object",
                    "properties": {"max_restarts_on_errors": {"type": "integer", "minimum": 0}},
                    "additionalProperties": False,
                },
            },
            "required": ["infra", "accelerators"],
            "additionalProperties": False,
        },
        "num_nodes": {"type": "integer", "minimum": 1},
        "workdir": {"type": "string"},
        "file_mounts": {"type": "object", "additionalProperties": MOUNT},
        "setup": {"type": "string"},
        "run": {"type": "string"},
    },
    "required": ["resources", "num_nodes", "file_mounts", "setup", "run"],
    "additionalProperties": False,
}


def check(task: dict[str, Any]) -> list[str]:
    """What is wrong with the task."""
    found = [
        f"{'.'.join(map(str, e.path))}: {e.message}" for e in jsonschema.Draft202012Validator(SCHEMA).iter_errors(task)
    ]
    if found:
        return found
    run, mounts = task["run"], task["file_mounts"]
    for name in ("NUM_NODES", "NUM_GPUS_PER_NODE", "NODE_RANK", "NODE_IPS"):
        if f"$SKYPILOT_{name}" not in run:
            found.append(f"the command must take SKYPILOT_{name}, not a number of its own")
    given = dict(word.split("=", 1) for word in run.split() if "=" in word)
    for key, modes in (("data.root", ("MOUNT", "COPY", "MOUNT_CACHED")), ("output_dir", ("MOUNT", "MOUNT_CACHED"))):
        mount = next((m for path, m in mounts.items() if Path(given[key]).is_relative_to(path)), {})
        if mount.get("mode") not in modes:
            found.append(f"{key}={given[key]} is on no mount that is {' or '.join(modes)}")
    for key in ("trainer.checkpoint_minutes", "trainer.keep_last"):
        found += [] if key in given else [f"a machine may vanish, and its last upload with it: {key}"]
    if given.get("resume") != "auto":
        found.append("a job that is started again must resume: resume=auto")
    return found


def test_the_task_is_right() -> None:
    assert check(yaml.safe_load(TASK.read_text())) == []


WRONG = [
    (("num_node",), 2, "num_node"),
    (("resources", "accelerators"), "A100-80GB:x", "accelerators"),
    (("resources", "infra"), "azur/eastus2", "infra"),
    (("resources", "use_spot"), "maybe", "use_spot"),
    (("num_nodes",), 0, "num_nodes"),
    (("file_mounts", "/mnt/runs", "mode"), "FUSE", "mode"),
    (
        ("file_mounts", "/mnt/runs", "mode"),
        "COPY",
        "output_dir=/mnt/runs/sky is on no mount that is MOUNT or MOUNT_CACHED",
    ),
    (("run",), "torchrun data.root=/mnt/coco output_dir=/mnt/runs/sky resume=auto", "SKYPILOT_NODE_RANK"),
]


REFUSED = 6  # the first six are wrong to SkyPilot too, the others to this training only


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    task = node = copy.deepcopy(yaml.safe_load(TASK.read_text()))
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    return task


@pytest.mark.parametrize(("path", "value", "reason"), WRONG)
def test_what_is_wrong_is_named(path: tuple[str, ...], value: Any, reason: str) -> None:
    found = check(changed(path, value))
    assert any(reason in wrong for wrong in found), found


READ = """
import json, sys, sky
for file in sys.argv[1:]:
    try:
        task = sky.Task.from_yaml(file)
        resources = list(task.resources)[0]
        print(json.dumps([task.num_nodes, resources.accelerators, resources.use_spot, sorted(task.storage_mounts)]))
    except Exception as error:
        print(json.dumps(str(error)))
"""


def test_skypilot_reads_the_task(tmp_path: Path) -> None:
    """In SkyPilot's own Python, since skypilot[azure] brings an antlr4 that Hydra cannot use; importing it writes to HOME."""
    sky = shutil.which("sky")
    if sky is None:
        pytest.skip("there is no sky on PATH (make engines installs SkyPilot)")
    files = [TASK]
    for number, (path, value, _) in enumerate(WRONG[:REFUSED]):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump(changed(path, value)))
    done = subprocess.run(
        [Path(sky).resolve().with_name("python"), "-c", READ, *files],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    right, *wrong = (json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", '"')))
    assert right == [2, {"A100-80GB": 4}, True, ["/mnt/coco", "/mnt/runs"]]
    assert [type(message) for message in wrong] == [str] * REFUSED, wrong
