"""Data that changes between a start and a resume is warned of, once, without reading a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from retina_dist.config.compose import load_config
from retina_dist.data.sources import ArchiveMember, RemoteFile, files_digest
from retina_dist.detection.data.synthetic import make_shapes
from retina_dist.run.assemble import train


def test_a_file_s_size_and_time_count(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"12")
    before = files_digest([path])
    assert files_digest([path]) == before
    path.write_bytes(b"123")
    os.utime(path, ns=(0, 0))
    longer = files_digest([path])
    assert longer != before
    os.utime(path, ns=(0, 1))
    assert files_digest([path]) != longer
    path.unlink()
    assert files_digest([path]) != longer


def test_what_is_no_file_is_not_looked_at() -> None:
    remote = RemoteFile("az://container/images", "a.jpg")
    assert files_digest([remote]) == files_digest([remote])
    members = [ArchiveMember("/nowhere", "a.tar", 0, 9, crc, "a") for crc in (1, 2)]
    assert files_digest(members[:1]) != files_digest(members[1:])


SMALL = (
    "data=coco",
    "data.batch_size=3",
    "data.min_sizes=[64]",
    "data.max_size=64",
    "data.num_workers=0",
    "schedule=constant",
    "model.backbone=mobilenet_v3_small",
    "output_dir=run",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with drawn data and a run of two steps."""
    folder = tmp_path_factory.mktemp("digests")
    make_shapes(folder / "data", num_train=6, num_val=2, image_size=64, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(load_config("train", [*SMALL, "data.root=data", "trainer.max_duration=2steps"]))
    return folder


def resumed(steps: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The warnings of a change in a run that is resumed up to `steps`."""
    capsys.readouterr()
    longer = f"trainer.max_duration={steps}steps"
    train(load_config("train", [*SMALL, "data.root=data", "resume=auto", longer]))
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if "changed since" in line]


def test_a_resume_warns_once_of_data_that_changed(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    assert resumed(3, capsys) == []

    path = trained / "data/annotations/instances_train.json"
    content = json.loads(path.read_text())
    content["annotations"][0]["bbox"][2] += 1
    path.write_text(json.dumps(content))
    image = trained / "data/val/000000.jpg"
    Image.new("RGB", Image.open(image).size).save(image)

    (warning,) = resumed(4, capsys)
    changed = "the annotations of train and the image files of val changed since"
    assert warning.startswith(f"warning: {changed}")
    assert "the run continues with them as they are now" in warning
    assert resumed(5, capsys) == []
