"""`doctor cluster=true` under real launchers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.coco_files import write_coco
from tests.commands import run_process
from tests.distributed.ranks import launched

SETTINGS = (
    "data=coco",
    "model=retinanet_tiny",
    "trainer.max_duration=1epoch",
    "cluster=true",
    "output=report.json",
)


@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("horovodrun", marks=pytest.mark.long)]
)
def test_two_sound_ranks_pass(launcher: str, tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.jpg", "width": 60, "height": 40}]
    write_coco(tmp_path / "train.json", images, [(1, 1, [5, 5, 20, 20], 0)])
    (tmp_path / "a.jpg").touch()
    settings = [
        *SETTINGS,
        "data.train_annotations=train.json",
        "data.train_images=.",
        "data.num_workers=0",
    ]
    printed = run_process(launched(launcher, 2, "retina_dist.doctor", *settings), cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["errors"] == 0
    assert [facts["rank"] for facts in report["ranks"]] == [0, 1]
    assert all(facts["step_ms"] > 0 for facts in report["ranks"])
    assert [link["size_mb"] for link in report["all_reduce"]] == [1, 64]
    assert all(link["gb_s"] > 0 for link in report["all_reduce"])
    assert "1 image" in report["ranks"][0]["data"]
    assert "2 x CPU" in printed
