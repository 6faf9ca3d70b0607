"""Where annotation files and a checkpoint meet: names decide which label a category has, and the
user which data is read.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from retina_dist.base.errors import CheckpointError, ConfigError, DataError
from retina_dist.base.files import Url
from retina_dist.config.compose import load_config
from retina_dist.detection import anchor_coverage
from retina_dist.detection.doctor import examine
from retina_dist.detection.evaluation import evaluate
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.settings import DetectionData, ShapesConfig
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.checkpoint.store import load_checkpoint, sealed
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task.settings import EvaluateConfig
from tests.coco_files import write_coco
from tests.unit.serving import server


def write_split(root: Path, split: str, ids: dict[str, int]) -> None:
    """Two images, with one box of each category in turn."""
    (root / split).mkdir(parents=True, exist_ok=True)
    images = []
    for number in (1, 2):
        Image.new("RGB", (40, 40), (number, len(split), 0)).save(root / split / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 40, "height": 40})
    boxes = [
        (i % 2 + 1, category_id, [i, i, 20, 20], 0) for i, category_id in enumerate(ids.values())
    ]
    names = {i: name for name, i in ids.items()}
    write_coco(root / "annotations" / f"instances_{split}.json", images, boxes, names)


def task(root: Path, train: dict[str, int], val: dict[str, int], *overrides: str) -> DetectionTask:
    write_split(root, "train", train)
    write_split(root, "val", val)
    config = load_config("train", ["data=coco", f"data.root={root}", *overrides])
    return DetectionTask(config, SingleDeviceStrategy("cpu"))


FIRST = {"person": 1, "dog": 2, "cat": 3}
ALPHABETICAL = {"person": 3, "dog": 2, "cat": 1}


@pytest.mark.parametrize("other", [{**FIRST, "tree": 4}, {"person": 1, "dog": 2}, ALPHABETICAL])
def test_other_names_than_the_checkpoints_are_refused(
    tmp_path: Path, other: dict[str, int]
) -> None:
    state = Categories.from_coco([{"id": i, "name": name} for name, i in FIRST.items()]).state()
    now = task(tmp_path, other, other)
    with pytest.raises(
        CheckpointError,
        match="last.pt was trained on other classes than data=coco has .*resume with",
    ):
        now.load_checkpoint_state(state, "last.pt")
    with pytest.raises(CheckpointError, match=r"last.pt does not say which categories"):
        now.load_checkpoint_state({}, "last.pt")


def test_a_resume_may_have_other_ids_of_the_same_names(tmp_path: Path) -> None:
    before, now = (
        task(tmp_path / "a", FIRST, FIRST),
        task(tmp_path / "b", {"person": 7, "dog": 8, "cat": 9}, FIRST),
    )
    now.load_checkpoint_state(before.train.categories.state(), "last.pt")
    assert now.train.categories.ids == (7, 8, 9)


def test_train_and_doctor_refuse_the_same_names_in_the_same_words(tmp_path: Path) -> None:
    message = (
        r"instances_val.json: 1 category name without a label .* 'Dog' \(a label is 'dog'\); rename"
    )
    with pytest.raises(DataError, match=message):
        task(tmp_path, FIRST, {"person": 1, "Dog": 2})
    arguments = ["data=coco", f"data.root={tmp_path}"]
    with pytest.raises(DataError, match=message):
        examine(load_config("doctor", arguments))


def checkpoint_of(folder: Path, **data: Any) -> Path:
    """A checkpoint of an untrained detector of FIRST's categories whose settings name this data."""
    content = server.content(score_threshold=0.0) | {
        "step": 1,
        "categories": Categories.from_coco(
            [{"id": i, "name": name} for name, i in FIRST.items()]
        ).state(),
        "config": {"data": asdict(replace(DetectionData(name="coco"), **data))},
    }
    (folder / "theirs.pt").write_bytes(sealed(content))
    return folder / "theirs.pt"


SMALL = {"num_workers": 0, "device": "cpu"}


@pytest.mark.parametrize("key", ["root", "val_annotations", "train_images"])
def test_a_url_that_a_checkpoint_names_is_not_followed(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Url, "_call", lambda *_: pytest.fail("a server was asked"))
    there = {"root": str(tmp_path), key: "http://stranger.example/coco"}
    path = checkpoint_of(tmp_path, **there)
    with pytest.raises(
        ConfigError, match=f"theirs.pt has data.{key}=http.* only where you give it; give root=URL"
    ):
        evaluate(EvaluateConfig(checkpoint=str(path), **SMALL))
    with pytest.raises(ConfigError, match="^root=absent is not a folder; give the one of the data"):
        evaluate(EvaluateConfig(checkpoint=str(path), root="absent", **SMALL))


def test_a_setting_that_was_removed_since_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("train", "val"):
        write_split(tmp_path / "data", split, FIRST)
    path = checkpoint_of(tmp_path, root=str(tmp_path / "data"))
    expected, _ = evaluate(EvaluateConfig(checkpoint=str(path), **SMALL))
    content = load_checkpoint(path)
    content["config"]["data"]["label_mapping"] = "contiguous"
    path.write_bytes(sealed({k: v for k, v in content.items() if k != "format"}))
    assert (
        evaluate(EvaluateConfig(checkpoint=str(path), **SMALL))[0].to_dict() == expected.to_dict()
    )
    assert "the checkpoint's label_mapping is left out" in caplog.text


def test_data_given_again_takes_the_place_of_the_checkpoints(tmp_path: Path) -> None:
    write_split(tmp_path / "here", "train", FIRST)
    write_split(tmp_path / "here", "val", ALPHABETICAL)
    expected, _ = evaluate(
        EvaluateConfig(
            checkpoint=str(checkpoint_of(tmp_path, root=str(tmp_path / "here"))), **SMALL
        )
    )
    shapes = ShapesConfig(num_train=1, num_val=1)
    path = checkpoint_of(
        tmp_path, root="http://stranger.example", val_images="az://a/b", shapes=asdict(shapes)
    )
    annotations, images = tmp_path / "here/annotations/instances_val.json", tmp_path / "here/val"
    for given in (
        {"root": str(tmp_path / "here")},
        {"annotations": str(annotations), "images": str(images)},
        {"annotations": str(annotations), "root": str(images)},
    ):
        found, _ = evaluate(EvaluateConfig(checkpoint=str(path), **SMALL, **given))
        assert found.to_dict() == expected.to_dict()
    Path(tmp_path / "elsewhere").mkdir()
    with pytest.raises(DataError, match="has no annotations"):  # nothing is drawn there
        evaluate(EvaluateConfig(checkpoint=str(path), root=str(tmp_path / "elsewhere"), **SMALL))
    path = checkpoint_of(tmp_path, root=[3])
    with pytest.raises(
        ConfigError, match=r"settings are not those of this version \(.*\); use another checkpoint"
    ):
        evaluate(EvaluateConfig(checkpoint=str(path), **SMALL))


def test_an_evaluation_says_how_fast_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two images: of one process, the seconds are few."""
    write_split(tmp_path / "data", "val", FIRST)
    path = checkpoint_of(tmp_path, root=str(tmp_path / "data"))
    started = time.perf_counter()
    with caplog.at_level("INFO"):
        evaluate(EvaluateConfig(checkpoint=str(path), output_dir=str(tmp_path / "out"), **SMALL))
    speed = json.loads((tmp_path / "out/analysis.json").read_text())["speed"]
    assert speed["images_per_s"] > 2 / (time.perf_counter() - started)
    assert 0 < speed["images_per_cpu_s"] <= 2 / 0.01
    assert re.search(r"images/s, .* a CPU second", caplog.text)


def plan_of(root: Path, side: int, box: list[float], *overrides: str) -> str:
    """What a plan says of ten images of `side` px with one box each."""
    images = [
        {"id": i, "file_name": f"{i}.png", "width": side, "height": side} for i in range(1, 11)
    ]
    boxes = [(i, 1, box, 0) for i in range(1, 11)]
    write_coco(root / "annotations" / "instances_train.json", images, boxes, {1: "cell"})
    (root / "train").mkdir()
    for i in range(1, 11):
        Image.new("RGB", (side, side)).save(root / "train" / f"{i}.png")
    config = load_config("train", [f"data.root={root}", *overrides])
    return DetectionTask(config, SingleDeviceStrategy("cpu")).describe()


def test_the_plan_says_a_warning_of_both_splits_once(tmp_path: Path) -> None:
    """As of Hugging Face's imagefolder, which has no sizes."""
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        Image.new("RGB", (64, 64)).save(tmp_path / split / f"{split}.png")
        row = {"file_name": f"{split}.png", "objects": {"bbox": [[9, 9, 32, 32]], "category": [0]}}
        (tmp_path / split / "metadata.jsonl").write_text(json.dumps(row))
    config = load_config("train", [f"data.root={tmp_path}"])
    plan = DetectionTask(config, SingleDeviceStrategy("cpu")).describe()
    assert plan.count("  warning: some images have no size") == 1


def test_the_plan_says_how_many_boxes_an_anchor_fits(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 300, [100.0, 100.0, 80.0, 80.0])
    assert "  anchors  fit 100.0% of the boxes" in plan
    assert "no anchor fits" not in plan


def test_the_plan_warns_of_boxes_without_an_anchor(tmp_path: Path) -> None:
    """As the doctor does, whose proposal it repeats."""
    plan = plan_of(tmp_path, 400, [100.0, 100.0, 250.0, 30.0])
    assert "  anchors  fit 0.0% of the boxes" in plan
    remedy = "no anchor fits 100.0% of the boxes; 0.0% are left, tried on these boxes, with model."
    assert f"  warning: {remedy}" in plan


def test_a_large_set_is_judged_by_the_same_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchor_coverage, "MAX_BOXES", 4)
    plan = plan_of(tmp_path, 300, [100.0, 100.0, 80.0, 80.0])
    assert "  anchors  fit 100.0% of a sample of 4 boxes" in plan


@pytest.mark.parametrize(
    ("side", "overrides", "remedy"),
    [
        (250, "", "data.min_sizes=[256] data.max_size=426"),
        (32, "", "data.min_sizes=[32] data.max_size=53"),
        (400, "", None),  # as VOC's, enlarged on purpose
        (250, "data.min_sizes=[640]", None),  # chosen
        (250, "data.scale_jitter=[3.2,3.2]", None),  # windows of full resolution
    ],
)
def test_the_plan_warns_of_a_default_scale_far_above_the_images(
    side: int, overrides: str, remedy: str | None, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, side, [1.0, 1.0, 20.0, 20.0], *overrides.split())
    said = f"short side of {side} px and is enlarged to 800 px; {remedy} trains faster"
    assert (said in plan) is (remedy is not None)
    assert ("enlarged" in plan) is (remedy is not None)
