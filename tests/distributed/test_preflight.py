"""`doctor cluster=true` under real launchers, and on two hosts of which one is broken in every way that can be arranged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.distributed import ranks
from tests.distributed.hosts import CannotRun, run
from tests.distributed.ranks import launched
from tests.distributed.test_hosts import TwoHosts, hosts, torchrun, variables

__all__ = ["hosts"]  # the fixture

SETTINGS = ("data=coco", "model=retinanet_tiny", "trainer.max_duration=1epoch", "cluster=true", "output=report.json")
TRAIN = {
    "images": [{"id": 1, "file_name": "a.jpg", "width": 60, "height": 40}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [5, 5, 20, 20], "iscrowd": 0}],
    "categories": [{"id": 1, "name": "thing"}],
}


@pytest.mark.parametrize("launcher", ["torchrun", "horovodrun"])
def test_two_sound_ranks_pass(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(TRAIN))
    (tmp_path / "a.jpg").touch()
    settings = [*SETTINGS, "data.train_annotations=train.json", "data.train_images=.", "data.num_workers=0"]
    done = subprocess.run(
        launched(launcher, 2, "retina_dist.doctor", *settings),
        cwd=tmp_path,
        env=ranks.variables(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["errors"] == 0
    assert [facts["rank"] for facts in report["ranks"]] == [0, 1]
    assert all(facts["step_ms"] > 0 for facts in report["ranks"])
    assert [link["size_mb"] for link in report["all_reduce"]] == [1, 64]
    assert all(link["gb_s"] > 0 for link in report["all_reduce"])
    assert "1 image" in report["ranks"][0]["data"]
    assert "2 x CPU" in done.stdout


def test_each_thing_that_is_broken_on_a_host_is_named(hosts: TwoHosts) -> None:  # noqa: F811
    folder, (good, bad) = hosts.folder, (hosts.first, hosts.second)
    shell = ["sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && umount "$0"', str(folder / "a")]
    try:
        run(good.line(shell))
    except CannotRun as error:
        pytest.skip(f"this machine does not allow mounts: {error}")
    (folder / "runs").mkdir()
    (folder / "train.json").write_text(json.dumps(TRAIN))
    for name in ("a.jpg", "b.jpg"):
        (folder / name).touch()
    (folder / "other.json").write_text(json.dumps(TRAIN).replace("a.jpg", "b.jpg"))
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{good.address} {good.name}\n127.0.1.1 {bad.name}\n")
    settings = [*SETTINGS, "data.train_annotations=train.json", "data.train_images=."]
    settings += ["data.num_workers=2", "expect_gb_s=100000"]
    job = torchrun(hosts, ["-m", "retina_dist.doctor", *settings])
    broken = [*job[bad]]
    broken[broken.index("retina_dist.doctor")] = "tests.distributed.broken_host"
    commands = {
        good: within("mount -t tmpfs -o size=1m none runs", job[good]),
        bad: within(
            "mount --bind other.json train.json && mount --bind hosts /etc/hosts && "
            "mount -t tmpfs -o size=1m none /dev/shm && ulimit -n 300",
            broken,
        ),
    }
    ended = hosts.run(commands, variables(), timeout=150)
    codes = {host.exit_code for host in ended}
    assert 1 in codes, ended[0].output  # the launcher that ends first; the other one may be killed then
    assert codes <= {1, None}, ended[0].output
    found = json.loads((folder / "report.json").read_text())["findings"]
    expected = {
        "versions": ("error", "torchvision: 0.0.1 on {bad} (rank 1), but "),
        "data": ("error", "the training data: "),
        "/dev/shm": ("warning", "{bad} has 1.0 MiB free in /dev/shm, and the data workers of its 1 rank may need "),
        "disk": ("error", "{good} has 1.0 MiB free for runs, where checkpoints go"),
        "network": ("error", "an all-reduce of 64 MB reaches "),
        "open files": ("warning", "{bad} lets a process open 300 files, and a rank may need about "),
        "step": ("warning", "rank 1 on {bad} takes "),
    }
    for check, (level, begin) in expected.items():
        text = begin.format(good=good.name, bad=bad.name)
        (finding,) = [f for f in found if f["where"] == check]
        assert finding["level"] == level
        assert finding["what"].startswith(text), finding
        assert finding["what"] in ended[0].output
        assert finding["remedy"] in ended[0].output
    assert "host names" not in {f["where"] for f in found}  # GLOO_SOCKET_IFNAME is given


def within(setup: str, line: Sequence[str]) -> list[str]:
    """The command line after a shell's preparations, which only its own mount namespace sees."""
    return ["sh", "-c", f'{setup} && exec "$@"', "sh", *line]
