"""The commands on a detector: what they say of a wrong place, and a disk that is full."""

from __future__ import annotations

import errno
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from retina_dist.base.errors import CheckpointError, ConfigError, DataError, UserError
from retina_dist.base.files import check_folder
from retina_dist.config.compose import load_config
from retina_dist.data.images import find_images
from retina_dist.detection import commands, evaluation
from retina_dist.detection.convert import ConvertConfig, convert
from retina_dist.engine.checkpoint.store import load_checkpoint, sealed
from tests.coco_files import write_coco
from tests.unit.serving.server import content, make_image


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.pt").write_bytes(sealed({"step": 1, **content()}))
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "one\ntwo.png").write_bytes(make_image())
    return folder


def predict(run: Path, images: Path, *settings: str) -> Path:
    folder = images.parent / "out"
    command = [f"checkpoint={run}", f"input={images}", f"output_dir={folder}", "device=cpu"]
    return commands.predict(load_config("predict", [*command, *settings]))


def test_a_line_is_printed_for_each_image(
    run: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file name with a newline makes no second one."""
    predict(run, images)
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{images}/one\\ntwo.png: ")
    assert last == f"1 image and results.json in {images.parent / 'out'}"
    with pytest.raises(ConfigError, match=r"one\\ntwo.jpg exists and would be overwritten"):
        predict(run, images)


def test_images_without_an_object_share_one_line(
    run: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "b.png").write_bytes(make_image(2))
    predict(run, images, "score_threshold=0.999")
    assert capsys.readouterr().out == (
        "nothing in 2 of 2 images at score_threshold=0.999: b.png, one two.png\n"
        f"2 images and results.json in {images.parent / 'out'}\n"
    )


def test_the_highest_score_is_said_where_a_picture_shows_less_than_the_results(
    run: Path, images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SHOWN_FROM", 1.5)
    predict(run, images)
    first, _ = capsys.readouterr().out.splitlines()
    best = max(row["score"] for row in json.loads((images.parent / "out/results.json").read_text()))
    words = f"nothing in 1 of 1 image at score_threshold=1.5 (the highest score is {best:.2f}): "
    assert first == f"{words}one two.png"


def full_disk(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("target", "name", "settings", "file"),
    [
        (Image.Image, "save", [], "out/one\ntwo.jpg"),
        (Path, "write_bytes", ["format=cvat"], "out/results.json"),
    ],
)
def test_a_full_disk_is_said_with_the_file(
    run: Path,
    images: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: type,
    name: str,
    settings: list[str],
    file: str,
) -> None:
    monkeypatch.setattr(target, name, full_disk)
    with pytest.raises(UserError, match="make room in") as caught:
        predict(run, images, *settings)
    named = str(images.parent / file).replace("\n", "\\n")
    assert str(caught.value).startswith(f"{named} could not be written")


def packed(folder: Path) -> Path:
    path = folder / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.png", make_image())
    return path


def with_json(folder: Path) -> Path:
    (folder / "instances.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (packed, r"annotations=.*data.zip is an archive; unpack it, and give its COCO json"),
        (with_json, r"is a folder; give a COCO json, such as annotations=.*/instances.json, or "),
        (lambda folder: folder, r"is a folder; give a COCO json, or the folder of .*: root=/"),
    ],
)
def test_annotations_are_a_file(
    run: Path, tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    config = load_config("evaluate", [f"checkpoint={run}", f"annotations={make(tmp_path)}"])
    with pytest.raises(ConfigError, match=words):
        commands.evaluate(config)


def test_more_detections_count_no_image_that_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(make_image())
    (tmp_path / "2.png").write_bytes(b"no image")
    images = []
    boxes = []
    for i in (1, 2):
        images.append({"id": i, "file_name": f"{i}.png", "width": 90, "height": 60})
        boxes.append({"id": i, "image_id": i, "category_id": 3, "bbox": [5, 5, 30, 30]})
        boxes[-1] |= {"area": 900, "iscrowd": 0}
    categories = [{"id": 3, "name": "cat"}, {"id": 8, "name": "dog"}]
    truth = {"images": images, "annotations": boxes, "categories": categories}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    settings = {"data": {"name": "mine", "bad_images": "skip"}}
    (tmp_path / "a.pt").write_bytes(sealed({"step": 1, **content(), "config": settings}))
    given = [f"checkpoint={tmp_path}/a.pt", f"annotations={tmp_path}/truth.json", "num_workers=0"]
    official, _ = evaluation.evaluate(load_config("evaluate", given))
    more, _ = evaluation.evaluate(load_config("evaluate", [*given, "max_detections=101"]))
    assert more.image_ids == official.image_ids == [1]
    assert more.stats == official.stats
    assert "AP@101" in more.beyond


def test_evaluate_judges_on_no_other_split_than_test(tmp_path: Path) -> None:
    """Images held out of train never stand in for a test split."""
    boxes = [(i, 3, [5, 5, 30, 30], 0) for i in range(1, 9)]
    images = []
    (tmp_path / "train").mkdir()
    for i in range(1, 9):
        (tmp_path / "train" / f"{i}.png").write_bytes(make_image(i))
        images.append({"id": i, "file_name": f"{i}.png", "width": 90, "height": 60})
    file = tmp_path / "annotations" / "instances_train.json"
    write_coco(file, images, boxes, {3: "cat", 8: "dog"})
    settings = {"data": {"name": "mine", "root": str(tmp_path), "val_fraction": 0.5}}
    (tmp_path / "a.pt").write_bytes(sealed({"step": 1, **content(), "config": settings}))
    given = [f"checkpoint={tmp_path}/a.pt", "num_workers=0", "device=cpu"]
    result, _ = evaluation.evaluate(load_config("evaluate", [*given, "split=val"]))
    assert 0 < len(result.image_ids) < 8
    with pytest.raises(
        DataError,
        match="such split, data.val_split=test; leave it out, or give data.val_annotations=",
    ):
        evaluation.evaluate(load_config("evaluate", [*given, "split=test"]))


def test_a_folder_with_a_test_set_alone_is_evaluated_on_it(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "1.png").write_bytes(make_image())
    images = [{"id": 1, "file_name": "1.png", "width": 90, "height": 60}]
    file = tmp_path / "annotations" / "instances_test.json"
    write_coco(file, images, [(1, 3, [5, 5, 30, 30], 0)], {3: "cat", 8: "dog"})
    settings = {"data": {"name": "mine", "root": str(tmp_path)}}
    (tmp_path / "a.pt").write_bytes(sealed({"step": 1, **content(), "config": settings}))
    given = [f"checkpoint={tmp_path}/a.pt", "num_workers=0", "device=cpu"]
    with pytest.raises(ConfigError, match="no validation set; take its test set with split=test."):
        evaluation.evaluate(load_config("evaluate", given))
    result, _ = evaluation.evaluate(load_config("evaluate", [*given, "split=test"]))
    assert result.image_ids == [1]


def test_a_folder_of_results_names_them(tmp_path: Path) -> None:
    for name in ("analysis", "results"):
        (tmp_path / f"{name}.json").touch()
    config = load_config("evaluate", [f"results={tmp_path}", "annotations=truth.json"])
    with pytest.raises(ConfigError, match=r"such as results=.*/results\.json"):
        commands.evaluate(config)


def test_images_in_an_archive_are_to_be_unpacked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.zip is not an image; unpack it"):
        find_images(str(packed(tmp_path)))
    with pytest.raises(ConfigError, match=r"data.zip is not a folder; unpack it"):
        check_folder(str(packed(tmp_path)))


def test_a_checkpoint_of_a_run_is_in_its_folder_of_checkpoints(run: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"write {run}/checkpoints/last.pt\.$"):
        load_checkpoint(run / "last.pt")


def test_convert_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"output=.*mine.json exists; remove it, or give another"):
        convert(ConvertConfig(root=str(tmp_path), output=str(tmp_path / "mine.json")))
    assert (tmp_path / "mine.json").read_text() == "{}"


def test_convert_names_its_own_keys(tmp_path: Path) -> None:
    """Not those of a training, which reads the same files."""
    (tmp_path / "rows.csv").write_text("a.jpg,1,2,3,4,cow\n")
    output = str(tmp_path / "mine.json")
    with pytest.raises(DataError, match="or name it with classes=FILE"):
        convert(ConvertConfig(annotations=str(tmp_path / "rows.csv"), output=output))
    (tmp_path / "rows.csv").rename(tmp_path / "rows.log")
    with pytest.raises(DataError, match="; name a file with annotations=FILE, .* images=FOLDER"):
        convert(ConvertConfig(root=str(tmp_path), output=output))


def test_an_export_is_compared_on_so_many_images() -> None:
    settings = ["checkpoint=a.pt", "output=a.onnx", "num_images=1000000"]
    with pytest.raises(
        ConfigError, match="num_images=1000000 is too large; it must be at most 1000"
    ):
        load_config("export", settings)


def test_how_the_training_read_its_files_is_not_of_other_annotations(tmp_path: Path) -> None:
    """Names of columns and the count of VOC's pixels would be refused beside a COCO json."""
    saved = {"step": 1, **content()}
    saved["config"] = {"data": {"name": "mine", "columns": ["file:photo"], "voc_offset": 1}}
    (tmp_path / "last.pt").write_bytes(sealed(saved))
    truth = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "circle"}]}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    given = [f"checkpoint={tmp_path}/last.pt", f"annotations={tmp_path}/truth.json", "device=cpu"]
    with pytest.raises(DataError, match="truth.json: 1 category name without a label"):
        commands.evaluate(load_config("evaluate", given))
