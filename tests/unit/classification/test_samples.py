"""Labelled images from folders, CSV files and shards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from retina_dist.classification import commands
from retina_dist.classification.data.drawn import CLASSES, draw_classes
from retina_dist.classification.data.samples import Samples, absent, read_samples
from retina_dist.config.compose import load_config
from retina_dist.data.sources import ArchiveMember
from retina_dist.errors import DataError


def read(root: Path, split: str = "train", form: str = "folders", **options: object) -> Samples:
    found = read_samples(root, split, form, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_folders_name_the_classes(drawn: Path) -> None:
    train, val = read(drawn), read(drawn, "val", classes=CLASSES)
    assert train.classes == CLASSES
    assert train.counts().tolist() == [3, 3, 2, 2, 2, 2]
    assert val.counts().tolist() == [2, 1, 1, 1, 1, 1]
    assert train.names[0] == "circle/000000.png"
    assert list(train.names) == sorted(train.names)
    assert train.fingerprint() == read(drawn).fingerprint() != val.fingerprint()
    assert set(train.subsample(7).labels.tolist()) == set(range(6))


def test_hidden_files_and_folders_are_no_images(drawn: Path, tmp_path: Path) -> None:
    shutil.copytree(drawn / "train", tmp_path / "train")
    image = next((drawn / "train" / "ring").iterdir()).read_bytes()
    for name in (".top.png", ".trash/a.png", "ring/._000002.png", "ring/.ipynb_checkpoints/a.png"):
        (tmp_path / "train" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "train" / name).write_bytes(image)
    (tmp_path / "train" / ".later").mkdir()
    assert (read(tmp_path).names, read(tmp_path).classes) == (read(drawn).names, CLASSES)


def test_linked_folders_are_read_once(drawn: Path, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for name in CLASSES[1:]:
        (tmp_path / "train" / name).symlink_to(drawn / "train" / name)
    mine = tmp_path / "train" / CLASSES[0]
    shutil.copytree(drawn / "train" / CLASSES[0], mine / "sub")
    for place, target in (("back", ".."), ("self", "."), ("top", "/"), ("sub/up", "../.."), ("sub/side", "../sub")):
        (mine / place).symlink_to(target)
    assert read(tmp_path).labels.tolist() == read(drawn).labels.tolist()
    assert read(tmp_path).names[0] == "circle/sub/000000.png"
    (mine / "system").symlink_to("/proc")
    with pytest.raises(DataError, match=r"system is a link to /proc, which holds no images; remove the link"):
        read(tmp_path)


def test_a_csv_file_gives_the_same_as_folders(drawn: Path, tmp_path: Path) -> None:
    train = read(drawn)
    for split in ("train", "val"):
        (tmp_path / split).symlink_to(drawn / split)
    rows = [f"train/{name},{train.classes[label]}" for name, label in zip(train.names, train.labels, strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["file,label", *reversed(rows)]))
    found = read(tmp_path, form="csv")
    assert found.labels.tolist() == train.labels.tolist()
    assert [Path(str(s)).name for s in found.sources] == [Path(str(s)).name for s in train.sources]
    assert read_samples(tmp_path, "val", "csv") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.png", "line 2 is a.png, not file,label with a comma between"),
        ("x,a.png", "the columns are label,file; write file,label"),
        ("../a.png,x", "is outside"),
        ("/etc/a.png,x", "is outside"),
        ("here.png,y", "gives here.png a second label"),
        ("here.png,x", "names 1 file twice"),
        pytest.param("x" * 200_000, r"is not a readable CSV \(field larger than field limit", id="long"),
        ("gone.png,x", r"1 of 2 images are not in .*: gone.png; check the folder, or leave them out"),
    ],
)
def test_rows_that_cannot_be(tmp_path: Path, line: str, message: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "here.png")
    (tmp_path / "train.csv").write_text(f"here.png,x\n{line}\n")
    with pytest.raises(DataError, match=message):
        read(tmp_path, form="csv")
    if "gone" in line:
        present = read(tmp_path, form="csv", missing_images="skip")
        assert (present.names, len(present.warnings)) == (("here.png",), 1)


def test_a_class_of_validation_alone_is_refused(drawn: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="val has 1 class that train has not: triangle"):
        read(drawn, "val", classes=CLASSES[:-1])
    with pytest.raises(DataError, match="has no folder train with a folder for each class"):
        read(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="has no image of the split train"):
        read(tmp_path)
    Image.new("RGB", (4, 4)).save(tmp_path / "train" / "a.png")
    with pytest.raises(DataError, match=r"train holds images but no folder for each class; move each image into"):
        read(tmp_path)
    (tmp_path / "train.csv").write_text("filename,class\na.png,x\n")
    with pytest.raises(DataError, match=r"line 1 is filename,class, a header other than file,label; remove it"):
        read(tmp_path, form="csv")


@pytest.mark.parametrize(
    ("root", "split", "form", "remedy"),
    [
        ("cls/train", "train", "folders", "give the folder above, data.root={}/cls."),
        ("cls/val", "val", "folders", "give the folder above, data.root={}/cls."),
        ("gone", "val", "csv", "give data.root=FOLDER with val in it."),
        ("title", "train", "folders", "rename {}/title/Train to train."),
        ("cls/one", "train", "folders", "give data.root=FOLDER with train in it, or another data.format."),
        ("flat", "train", "folders", "move cat, dog into {}/flat/train."),
        ("cls", "train", "csv", "a folder train is there: give data=folders."),
        ("rows", "train", "folders", "train.csv is there: give data=labels_csv."),
    ],
)
def test_a_missing_split_names_the_remedy(tmp_path: Path, root: str, split: str, form: str, remedy: str) -> None:
    for name in ("cls/train/cat", "cls/val/cat", "title/Train/cat", "flat/cat", "flat/dog", "rows"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name / "a.png")
    (tmp_path / "rows" / "train.csv").write_text("a.png,x\n")
    assert absent("data.root", tmp_path / root, split, form).endswith(f"; {remedy.format(tmp_path)}")


def test_shards_give_the_same_as_folders(drawn: Path, tmp_path: Path) -> None:
    train = read(drawn)
    command = ["task=classification", "data=folders", f"data.root={drawn}", f"output={tmp_path}", "shard_mb=1"]
    commands.write_shards(load_config("shards", command))
    found = read(tmp_path, form="shards")
    assert (found.names, found.fingerprint()) == (train.names, train.fingerprint())
    assert all(isinstance(source, ArchiveMember) for source in found.sources)
    assert read(tmp_path, "val", "shards", classes=CLASSES).counts().tolist() == [2, 1, 1, 1, 1, 1]
    (tmp_path / "annotations" / "instances_train.json").write_text(json.dumps({"images": [{"id": 0}]}))
    with pytest.raises(DataError, match="has no label for each image"):
        read(tmp_path, form="shards")


def test_drawn_images_stay_and_others_are_refused(drawn: Path) -> None:
    settings = {"num_train": 14, "num_val": 7, "image_size": 16, "seed": 0}
    draw_classes(drawn, **settings)
    with pytest.raises(DataError, match="was drawn with other settings"):
        draw_classes(drawn, **settings | {"seed": 1})
    with pytest.raises(DataError, match="exists and was not drawn"):
        draw_classes(drawn / "train", **settings)
