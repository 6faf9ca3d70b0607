"""The weights of classes: the formula by hand, their names, and what they do to each task's loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retina_dist.base.errors import ConfigError
from retina_dist.config.compose import load_config
from retina_dist.config.run_config import data_settings_of
from retina_dist.data.class_weights import balanced_weights, class_weights
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.run.assemble import train
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.coco_files import write_coco
from tests.plugins.test_plugins import FOUND

NAMES = ["cat", "", "dog"]
GIVEN = ["data.class_weights={circle: 3, ring: 0.5}", "data.class_weights.star=2"]


def test_auto_is_inverse_frequency_with_mean_one_over_the_examples() -> None:
    assert balanced_weights([6, 2, 0]).tolist() == pytest.approx([2 / 3, 2, 1])
    # 1000 / (2 * 998) and 250, of which 10 is kept; the mean over the examples is then 0.52
    rare = np.array([500 / 998, 10.0])
    mean = (998 * rare[0] + 2 * 10) / 1000
    assert balanced_weights([998, 2]).tolist() == pytest.approx((rare / mean).tolist())
    assert balanced_weights([0, 0]).tolist() == [1, 1]
    assert class_weights("auto", NAMES, [6, 0, 2]).tolist() == pytest.approx([2 / 3, 1, 2])


def test_weights_go_by_name_and_the_other_classes_have_one() -> None:
    assert class_weights({"dog": 2.5}, NAMES, [1, 0, 1]).tolist() == [1, 1, 2.5]
    with pytest.raises(ConfigError) as caught:
        class_weights({"dgo": 2.0}, NAMES, [1, 0, 1])
    assert str(caught.value) == (
        "data.class_weights.dgo=2 is for none of the classes cat, dog; did you mean dog?"
    )
    with pytest.raises(ConfigError, match=r"fox=0.5 is for none of .* cat, dog; name one of them"):
        class_weights({"fox": 0.5}, NAMES, [1, 0, 1])


def task_of(folder: Path, *overrides: str) -> DetectionTask:
    """Two images: a circle and a star, two circles; the first comes twice an epoch if repeated."""
    for split in ("train", "val"):
        images = [
            {"id": i, "file_name": f"{i}.png", "width": 64, "height": 64} for i in range(1, 3)
        ]
        boxes = [(1, 1, [1, 1, 20, 20], 0), (1, 2, [30, 30, 20, 20], 0)]
        boxes += [(2, 1, [1, 1, 20, 20], 0), (2, 1, [30, 1, 20, 20], 0)]
        for image in images:
            (folder / split).mkdir(parents=True, exist_ok=True)
            (folder / split / image["file_name"]).touch()
        names = {1: "circle", 2: "star", 3: "ring"}
        write_coco(folder / "annotations" / f"instances_{split}.json", images, boxes, names)
    given = ["data=coco", f"data.root={folder}", "model.norm=frozen_bn", *overrides]
    return DetectionTask(load_config("train", given), SingleDeviceStrategy("cpu"))


def test_the_plan_shows_them_and_repeated_images_count_again(tmp_path: Path) -> None:
    plan = task_of(tmp_path, *GIVEN).describe()
    assert "  loss     class weights circle 3, star 2, ring 0.5" in plan
    auto = task_of(tmp_path, "data.class_weights=auto")
    assert auto.class_weights is not None
    assert auto.class_weights.tolist() == pytest.approx([4 / 6, 4 / 2, 1])
    # the star's image comes sqrt(1 / 0.5) times
    again = task_of(tmp_path, "data.class_weights=auto", "data.repeat_threshold=1")
    circles, stars = 2 + 2**0.5, 2**0.5
    expected = [(circles + stars) / (2 * circles), (circles + stars) / (2 * stars), 1]
    assert again.class_weights is not None
    assert again.class_weights.tolist() == pytest.approx(expected)
    assert "class weights" not in task_of(tmp_path).describe()
    with pytest.raises(
        ConfigError, match="data.class_weights.cirle=2 is for none of the classes circle, s"
    ):
        task_of(tmp_path, "data.class_weights={cirle: 2}")


def test_a_model_without_them_is_refused(tmp_path: Path) -> None:
    task = task_of(tmp_path, FOUND, "~model.norm", "model=cells", "data.class_weights=auto")
    with pytest.raises(ConfigError, match=r"=auto has no effect on CellDetector, which has no buf"):
        task.build_model()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("{circle: 0}", "data.class_weights.circle=0 is too small; it must be above 0."),
        ("{circle: -2.5}", "data.class_weights.circle=-2.5 is too small; it must be above 0."),
        ("{circle: inf}", "data.class_weights.circle=inf is not a finite number."),
        (
            "{circle: much}",
            "data.class_weights={circle: much} is not a mapping of numbers or auto; write auto, ",
        ),
        ("2", "data.class_weights='2' is not auto; write auto, or {cat: 2, dog: 0.5}."),
        ("[2,1]", "data.class_weights=[2,1] is not a mapping of numbers or auto; write auto,"),
        ("balanced", "data.class_weights=balanced is not auto; write auto,"),
        ("{}", "data.class_weights={} is empty; give at least one value."),
    ],
)
def test_wrong_weights_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("train", [f"data.class_weights={override}"])
    assert message in str(caught.value)


def test_auto_beside_balanced_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"class_weights=auto has no effect beside data.balanced"):
        load_config(
            "train", ["task=classification", "data.class_weights=auto", "data.balanced=true"]
        )


@pytest.mark.parametrize("task", ["detection", "classification"])
def test_a_resume_and_a_checkpoint_keep_them(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's settings are its base; the bits are those of a run that was not stopped."""
    monkeypatch.chdir(tmp_path)
    small = ["data=parity", "logging=quiet", "trainer.num_threads=1", "trainer.max_duration=3steps"]
    if task == "classification":
        small += ["task=classification", "data=parity_classes", "model=classifier_tiny"]
    small += ["data.class_weights={circle: 3}", "data.batch_size=4"]
    weights: dict[str, Any] = {}
    for name, overrides in {
        "whole": [[*small]],
        "half": [[*small, "trainer.stop_after=1steps"], ["resume=half"]],
        "other": [[*small, "data.class_weights=null"]],
    }.items():
        for given in overrides:
            train(load_config("train", [*given, f"output_dir={name}"]))
        weights[name] = load_checkpoint(tmp_path / name / "checkpoints" / "last.pt")
    assert weights["whole"]["config"]["data"]["class_weights"] == {"circle": 3}
    assert "class_weights" not in weights["whole"]["model"]
    for name, tensor in weights["whole"]["model"].items():
        assert torch.equal(tensor, weights["half"]["model"][name]), name
    assert not all(
        torch.equal(tensor, weights["other"]["model"][name])
        for name, tensor in weights["whole"]["model"].items()
    )
    if task == "detection":
        data = data_settings_of(weights["half"], DetectionData, "half")
        assert data.class_weights == {"circle": 3}


def test_a_name_of_digits_is_a_name() -> None:
    config = load_config("train", ["data.class_weights={1: 2.5}"])
    assert config.data.class_weights == {"1": 2.5}
