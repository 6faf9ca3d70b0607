"""Labelled images from folders, CSV files and shards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from retina_dist.base.errors import DataError
from retina_dist.classification import commands
from retina_dist.classification.drawn import CLASSES
from retina_dist.classification.samples import Samples, read_samples
from retina_dist.config.compose import load_config
from retina_dist.data.sources import ArchiveMember


def read(root: Path, split: str = "train", **options: object) -> Samples:
    found = read_samples(root, split, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_folders_name_the_classes(drawn: Path) -> None:
    train, val = read(drawn), read(drawn, "val", classes=CLASSES)
    assert train.classes == CLASSES
    assert train.counts().tolist() == [3, 3, 2, 2, 2, 2]
    assert val.counts().tolist() == [2, 1, 1, 1, 1, 1]
    assert train.names[0] == "circle/000000.png"
    assert list(train.names) == sorted(train.names)
    assert train.digest() == read(drawn).digest() != val.digest()
    assert set(train.subsample(7).labels.tolist()) == set(range(6))


def test_hidden_files_and_folders_are_passed_over(drawn: Path, tmp_path: Path) -> None:
    shutil.copytree(drawn / "train", tmp_path / "train")
    image = next((drawn / "train" / "ring").iterdir()).read_bytes()
    for name in (".top.png", ".trash/a.png", "ring/._000002.png", "ring/.ipynb_checkpoints/a.png"):
        (tmp_path / "train" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "train" / name).write_bytes(image)
    (tmp_path / "train" / ".later").mkdir()
    assert (read(tmp_path).names, read(tmp_path).classes) == (read(drawn).names, CLASSES)


def test_linked_classes_other_names_and_folders_without_a_split(
    drawn: Path, tmp_path: Path
) -> None:
    for split, name in (("train", "train"), ("val", "valid")):
        (tmp_path / name).mkdir()
        for label in CLASSES:
            (tmp_path / name / label).symlink_to(drawn / split / label)
    assert read(tmp_path).digest() == read(drawn).digest()
    assert read(tmp_path, "val", classes=CLASSES).digest() == read(drawn, "val").digest()
    shutil.copytree(drawn / "train", tmp_path / "flat")
    assert read(tmp_path / "flat").digest() == read(drawn).digest()
    assert read_samples(tmp_path / "flat", "val") is None


def test_a_folder_that_two_links_lead_to_is_read_once(tmp_path: Path) -> None:
    draw(tmp_path / "set/cat/a.png", tmp_path / "set/dog/b.png", tmp_path / "more/c.png")
    for name in ("linked", "again"):
        (tmp_path / "set/cat" / name).symlink_to(tmp_path / "more")
    assert [Path(name).name for name in read(tmp_path / "set").names] == ["a.png", "c.png", "b.png"]


def test_a_csv_file_gives_the_same_as_folders(drawn: Path, tmp_path: Path) -> None:
    train = read(drawn)
    for split in ("train", "val"):
        (tmp_path / split).symlink_to(drawn / split)
    rows = [
        f"train/{name},{train.classes[label]}"
        for name, label in zip(train.names, train.labels, strict=True)
    ]
    (tmp_path / "train.csv").write_text("\n".join(["file,label", *reversed(rows)]))
    found = read(tmp_path)
    assert found.labels.tolist() == train.labels.tolist()
    assert [Path(str(s)).name for s in found.sources] == [Path(str(s)).name for s in train.sources]
    assert read_samples(tmp_path, "val") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.png", "line 2 is a.png, not file,label such as images/1.jpg,cat"),
        ("../a.png,x", r"1 of 2 images are not in .*: ../a.png; restore"),
        ("here.png,y", "names here.png again; keep one row"),
        pytest.param(
            "x" * 200_000, r"cannot be read as CSV \(field larger than field limit", id="long"
        ),
        ("gone.png,x", r"1 of 2 images are not in .*: gone.png; restore them"),
    ],
)
def test_rows_that_cannot_be(tmp_path: Path, line: str, message: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "here.png")
    (tmp_path / "train.csv").write_text(f"here.png,x\n{line}\n")
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_a_class_of_validation_alone_is_refused(drawn: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="val has classes that train has not: triangle"):
        read(drawn, "val", classes=CLASSES[:-1])
    for file in (
        "train2017/1.jpg",
        "annotations/instances_train2017.json",
    ):  # COCO's folders are not classes
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text('{"images": [], "annotations": [], "categories": []}')
    with pytest.raises(
        DataError,
        match="holds boxes for a detector, such as annotations/.*give experiment=finetune data.root=",
    ):
        read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError,
        match="has no train images; give data.root=FOLDER .* leave task=classification out",
    ):
        read(tmp_path / "empty")
    with pytest.raises(DataError, match="absent does not exist; give data.root=FOLDER with"):
        read(tmp_path / "absent")


def test_yolo_data_is_sent_to_the_detector(tmp_path: Path) -> None:
    for kind in ("images", "labels"):
        (tmp_path / "train" / kind).mkdir(parents=True)
        (tmp_path / "train" / kind / "a.txt").touch()
    with pytest.raises(
        DataError, match=f"holds YOLO's images .* experiment=finetune data.root={tmp_path} alone"
    ):
        read(tmp_path)


def test_shards_give_the_same_as_folders(drawn: Path, tmp_path: Path) -> None:
    train = read(drawn)
    command = [
        "task=classification",
        "data=folders",
        f"data.root={drawn}",
        f"output={tmp_path}",
        "shard_mb=1",
    ]
    commands.write_shards(load_config("shards", command))
    found = read(tmp_path)
    assert (found.names, found.digest()) == (train.names, train.digest())
    assert all(isinstance(source, ArchiveMember) for source in found.sources)
    assert read(tmp_path, "val", classes=CLASSES).counts().tolist() == [2, 1, 1, 1, 1, 1]
    (tmp_path / "train-00000.tar").write_bytes(b"cut")
    assert read(tmp_path, bad_images="skip").names == train.names
    (tmp_path / "annotations" / "instances_train.json").write_text(
        json.dumps({"images": [{"id": 0}]})
    )
    with pytest.raises(DataError, match="has no label for each image"):
        read(tmp_path, bad_images="skip")


@pytest.mark.parametrize("name", ["train.csv", "labels.jsonl"])
def test_an_empty_table_is_named(tmp_path: Path, name: str) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"{name} is empty; restore or remove it"):
        read(tmp_path)


def test_two_tables_of_a_split_are_refused(tmp_path: Path) -> None:
    for name, split in (("a", "train"), ("b", "val"), ("c", "valid")):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{split}.csv").write_text(f"{name}.png,x\n")
    with pytest.raises(DataError, match="val.csv and valid.csv are both of val; remove one"):
        read(tmp_path, "val")


def test_a_test_split_without_labels_lets_the_others_be_read(tmp_path: Path) -> None:
    """As competitions give it: images of no class, or rows without one."""
    draw(tmp_path / "train/cat/1.jpg", tmp_path / "train/dog/2.jpg", tmp_path / "val/cat/3.jpg")
    draw(tmp_path / "test/4.jpg")
    said = "the test split cannot be read: "
    train = read(tmp_path)
    assert train.warnings[0].startswith(f"{said}{tmp_path}/test holds images but no folder")
    assert not read(tmp_path, "val").warnings
    with pytest.raises(DataError, match="no folder for each class") as caught:
        read_samples(tmp_path, "test")
    assert "for boxes" not in str(caught.value)
    (tmp_path / "test/4.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    with pytest.raises(DataError, match="test/CLASS, give experiment=finetune for boxes, or"):
        read_samples(tmp_path, "test")

    (tmp_path / "train.csv").write_text("file,label\ntrain/cat/1.jpg,cat\n")
    (tmp_path / "test.csv").write_text("file,label\ntest/4.jpg,\n")
    train = read(tmp_path)
    assert train.warnings[0].startswith(f"{said}{tmp_path}/test.csv: line 2 has no file or no")


def folders_of(root: Path, split: str) -> dict[str, str]:
    """Classes by the names of the files."""
    found = read(root, split)
    names = (Path(name).stem for name in found.names)
    return dict(zip(names, (found.classes[i] for i in found.labels), strict=True))


def draw(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)


def capitals(root: Path) -> None:
    draw(root / "Train/cat/a.png", root / "Train/dog/b.png", root / "TEST/cat/c.png")


def one_folder_deeper(root: Path) -> None:
    draw(root / "pets/train/cat/a.png", root / "pets/train/dog/b.png", root / "pets/test/cat/c.png")


def roboflow(root: Path) -> None:
    draw(root / "train/a.png", root / "train/b.png", root / "test/c.png")
    (root / "train/_classes.csv").write_text("filename, cat, dog\na.png, 1, 0\nb.png, 0, 1\n")
    (root / "test/_classes.csv").write_text("filename, cat, dog\nc.png, 1, 0\n")


def labels_beside_images(root: Path) -> None:
    draw(root / "images/a.png", root / "images/b.png", root / "images/c.png")
    (root / "labels.csv").write_text("label,image_id\ncat,a\ndog,b\n")
    (root / "test_labels.tsv").write_text("file\tclass\tsource\nc.png\tcat\tx\n")


def imagenet(root: Path) -> None:
    draw(root / "train/cat/a.png", root / "train/dog/b.png", root / "test/c.png")
    rows = "a,cat 1 2 3 4\nb,dog 1 2 3 4 dog 5 6 7 8\n"
    (root / "LOC_train_solution.csv").write_text(f"ImageId,PredictionString\n{rows}")
    (root / "LOC_test_solution.csv").write_text("ImageId,PredictionString\nc,cat 1 2 3 4\n")


def automl(root: Path) -> None:
    draw(root / "images/a.png", root / "images/b.png", root / "images/c.png")
    url = "azureml://subscriptions/s/datastores/d/paths/pets/images"
    lines = {"train": [("a", "cat"), ("b", "dog")], "test": [("c", "cat")]}
    for split, rows in lines.items():
        entries = [{"image_url": f"{url}/{name}.png", "label": label} for name, label in rows]
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        (root / f"{split}_annotations.jsonl").write_text(text)


def imagefolder(root: Path) -> None:
    draw(root / "train/a.png", root / "train/b.png", root / "test/c.png")
    (root / "train/metadata.csv").write_text("file_name,label\na.png,cat\nb.png,dog\n")
    (root / "test/metadata.jsonl").write_text('{"file_name": "c.png", "label": "cat"}\n')


def split_column(root: Path) -> None:
    draw(*(root / f"images/{name}.png" for name in "abc"))
    rows = "a.png,cat,train\nb.png,dog,train\nc.png,cat,Test\n"
    (root / "labels.csv").write_text(f"filename,label,Split\n{rows}")


def kaggle(root: Path) -> None:
    draw(root / "train_images/a.png", root / "train_images/b.png", root / "test_images/c.png")
    (root / "train.csv").write_text("id,breed\na,cat\nb,dog\n")
    (root / "test.csv").write_text("id,breed\nc,cat\n")
    (root / "sample_submission.csv").write_text("id,breed\nc,dog\n")


LAYOUTS = (
    capitals,
    one_folder_deeper,
    roboflow,
    labels_beside_images,
    imagenet,
    automl,
    imagefolder,
    split_column,
    kaggle,
)


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
def test_the_layouts_of_tools_and_services(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path)
    assert folders_of(tmp_path, "train") == {"a": "cat", "b": "dog"}
    (said,) = read(tmp_path).warnings
    assert said.startswith("1 image of test, not trained on; evaluate split=test judges on them")
    assert folders_of(tmp_path, "test") == {"c": "cat"}
    assert read_samples(tmp_path, "val") is None


@pytest.mark.parametrize(("no", "yes"), [("False", "True"), ("0", "1"), ("FALSE", "TRUE")])
def test_a_column_says_which_rows_are_of_validation(no: str, yes: str, tmp_path: Path) -> None:
    draw(*(tmp_path / f"{name}.png" for name in "abc"))
    rows = f"a.png,cat,{no}\nb.png,dog,{no}\nc.png,cat,{yes}\n"
    (tmp_path / "labels.csv").write_text(f"name,label,is_valid\n{rows}")
    assert folders_of(tmp_path, "train") == {"a": "cat", "b": "dog"}
    assert folders_of(tmp_path, "val") == {"c": "cat"}
    assert read(tmp_path).warnings == ()  # the images of the other split have labels


@pytest.mark.parametrize("rows", ["id,class\na,cat\nd,dog\n", "id,label\n0,cat\n", "id,label"])
def test_a_table_of_the_classes_of_folders_is_no_table_of_images(rows: str, tmp_path: Path) -> None:
    draw(tmp_path / "train/cat/a.png", tmp_path / "train/dog/b.png")
    (tmp_path / "classes.csv").write_text(rows)
    assert folders_of(tmp_path, "train") == {"a": "cat", "b": "dog"}


def test_a_table_of_val_without_a_row_is_an_error(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    (tmp_path / "train.csv").write_text("file,label\na.png,x\n")
    (tmp_path / "val.csv").write_text("file,label\n")
    with pytest.raises(DataError, match="has no image of the split val"):
        read_samples(tmp_path, "val")


def test_what_is_no_folder_of_images_is_told_by_its_kind(tmp_path: Path) -> None:
    table = tmp_path / "mine/train.csv"
    draw(tmp_path / "mine/a.png")
    table.write_text("file,label\na.png,x\n")
    (tmp_path / "mine.zip").touch()
    (tmp_path / "scans/train/x").mkdir(parents=True)
    (tmp_path / "scans/train/x/1.dcm").touch()
    with pytest.raises(DataError, match=f"no train images; give data.root={tmp_path}/mine\\."):
        read(table)
    with pytest.raises(DataError, match="no train images; unpack it, and give the folder"):
        read(tmp_path / "mine.zip")
    with pytest.raises(DataError, match=f"does not exist; use {tmp_path}/mine\\."):
        read(tmp_path / "mines")
    with pytest.raises(DataError, match=r"such as train/x/1\.dcm; convert them: .*\.jpg"):
        read(tmp_path / "scans")


def test_images_that_no_table_has_are_counted(tmp_path: Path) -> None:
    draw(tmp_path / "images/a.png", tmp_path / "images/b.png", tmp_path / "images/c.png")
    (tmp_path / "labels.csv").write_text("file,label\na.png,cat\nb.png,dog\n")
    assert read(tmp_path).warnings == ("1 image without a label: images/c.png; left out",)


def test_folders_that_look_like_splits_are_named(tmp_path: Path) -> None:
    for split in ("seg_a", "seg_b"):
        for label in ("cat", "dog"):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / f"{split}.png")
    said = (
        "folders in seg_a, seg_b repeat the names of other folders; "
        "if these are splits, rename them to train and val"
    )
    train = read_samples(tmp_path, "train")
    assert train is not None
    assert said in train.warnings
    Image.new("RGB", (8, 8)).save(tmp_path / "seg_a" / "c.png")
    (tmp_path / "seg_a" / "bird").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "seg_a" / "bird" / "b.png")
    train = read_samples(tmp_path, "train")
    assert train is not None
    assert said not in train.warnings
