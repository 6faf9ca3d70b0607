"""The task: its contract, a training on the command line, what its settings and checkpoints must agree in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from retina_dist.classification.data.dataset import ClassificationDataset
from retina_dist.classification.data.drawn import CLASSES
from retina_dist.classification.data.samples import Samples
from retina_dist.classification.metrics import BINARY
from retina_dist.classification.model import build_classifier, smallest_size
from retina_dist.classification.settings import ClassificationData, ClassifierConfig
from retina_dist.classification.splits import class_weights
from retina_dist.classification.task import ClassificationTask
from retina_dist.config.compose import load_config
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.run.assemble import train
from retina_dist.run_config import task_of_checkpoint
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.testing.task_contract import task_contract

SMALL = [
    "task=classification",
    "data.drawn={num_train:14,num_val:7,image_size:16,seed:0}",
    "data.image_size=16",
    "data.val_resize=16",
    "data.num_workers=0",
    "data.batch_size=4",
    "schedule.warmup=0steps",
    "trainer.num_threads=1",
    "logging=quiet",
]


def task(root: Path, *overrides: str) -> ClassificationTask:
    return ClassificationTask(
        load_config("train", [*SMALL, f"data.root={root}", *overrides]), SingleDeviceStrategy("cpu")
    )


def test_it_keeps_the_contract(drawn: Path) -> None:
    mixed = ["data.mixup=0.2", "data.cutmix=1", "model.norm=frozen_bn", "data.image_size=32", "data.val_resize=32"]
    task_contract(ClassificationTask, load_config("train", [*SMALL, f"data.root={drawn}", *mixed]))


def test_it_trains_resumes_and_leaves_its_files(drawn: Path, tmp_path: Path) -> None:
    """A run that was stopped and resumed ends with the bits of one that was not."""

    def run(name: str, *overrides: str) -> dict[str, float]:
        overrides = (*overrides, f"output_dir={tmp_path / name}", f"data.root={drawn}")
        return train(
            load_config("train", [*SMALL, "trainer.max_duration=2epochs", "trainer.ema_decay=0.9", *overrides])
        )

    metrics = run("whole", "data.mixup=0.2", "logging.plots=true")
    run("half", "data.mixup=0.2", "trainer.stop_after=3steps")
    assert run("half", "data.mixup=0.2", "resume=auto") == metrics
    one, two = (
        torch.load(tmp_path / name / "checkpoints" / "last.pt", weights_only=True, map_location="cpu")
        for name in ("whole", "half")
    )
    for name, weights in one["model"].items():
        assert torch.equal(two["model"][name], weights), name
    assert one["classes"] == list(CLASSES)
    assert task_of_checkpoint(one) == "classification"
    assert {"first_batch.jpg", "confusion.png", "metrics.json", "mistakes.jpg"} <= {
        p.name for p in (tmp_path / "whole").iterdir()
    }
    result = json.loads((tmp_path / "whole" / "metrics.json").read_text())
    assert result["top1"] == metrics["val/top1"]
    assert np.array(result["confusion"]).sum() == 7


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.min_sizes=[32]", "data.min_sizes is not a setting"),
        ("data.mixxup=1", "did you mean data.mixup?"),
        ("data.crop_scale=[1,0.5]", "data.crop_scale=[1.0, 0.5] is not a pair of rising shares"),
        ("data.growth=[3,1]", "data.growth=[3, 1] is not a pair of rising epochs"),
        ("data.first_image_size=16", "data.first_image_size=16 needs the epochs of its growth"),
        ("data.val_resize=8", "data.val_resize=8 is below the central crop of 16 px"),
        ("model.class_weights=[0,0]", "model.class_weights=[0.0, 0.0] needs weights"),
        ("model.class_weights=[1,2] model.balance_loss=true", "both weight the classes"),
        ("task=classificatio", "task=classificatio does not exist; did you mean classification?"),
    ],
)
def test_wrong_settings_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("train", [*SMALL, *override.split()])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.monitor=val/roc_auc", "is of two classes, and the data has 6"),
        ("model.architecture=vit_b_16 data.val_image_size=8", "takes images of one size"),
        ("model.architecture=vit_b_16 data.image_size=24 data.val_resize=24", "a multiple of 16, not 24"),
        ("model.architecture=maxvit_t", "takes images of 224 px, not 16"),
        ("model.architecture=alexnet", "at least 63 px, not data.image_size=16; give data.image_size=63"),
        (
            "model.architecture=inception_v3 data.image_size=80 data.val_image_size=48 data.val_resize=48",
            "75 px, not data.val_image_size=48",
        ),
        (
            "model.architecture=squeezenet1_0 data.image_size=32 data.val_resize=32 data.first_image_size=16 data.growth=[0,2]",
            "at least 21",
        ),
        ("data.balanced=true model.balance_loss=true", "both correct for rare classes"),
    ],
)
def test_settings_that_the_data_forbids(drawn: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task(drawn, *override.split())


def test_the_smallest_size_is_where_a_pass_begins_to_work() -> None:
    sizes = {"alexnet": 63, "vgg11": 32, "convnext_tiny": 32, "squeezenet1_0": 21, "regnet_y_400mf": 8, "resnet18": 8}
    assert {name: smallest_size(name, 8) for name in sizes} == sizes
    model = build_classifier("squeezenet1_0", 2)
    assert model.logits(torch.zeros(2, 3, 21, 21, dtype=torch.uint8)).shape == (2, 2)
    with pytest.raises(RuntimeError):
        model.logits(torch.zeros(2, 3, 20, 20, dtype=torch.uint8))


def test_weights_of_balanced_draws_have_the_mean_of_one_over_what_is_drawn() -> None:
    samples = Samples(tuple("abcdef"), tuple("abcdef"), np.array([0, 0, 0, 0, 0, 1]), ("x", "y"))
    data = ClassificationData(name="d", balanced=True)
    dataset = ClassificationDataset(samples, data)
    weights = class_weights(ClassifierConfig(class_weights=[1, 3]), samples, balanced=True)
    drawn = [samples.labels[dataset.drawn(place, epoch=0).image] for place in range(6)]
    assert np.mean([weights[label] for label in drawn]) == pytest.approx(1)


def test_two_classes_have_metrics_of_their_own(drawn: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in CLASSES[:2]:
            (tmp_path / split).mkdir(exist_ok=True)
            (tmp_path / split / name).symlink_to(drawn / split / name)
    found = task(tmp_path, "data.drawn=null", "trainer.monitor=val/roc_auc")
    evaluator = found.build_evaluator(found.build_data())
    assert evaluator is not None
    assert set(BINARY) < set(evaluator(found.build_model()))


def test_class_weights_have_the_mean_of_one_over_the_images() -> None:
    samples = Samples(tuple("abcd"), tuple("abcd"), np.array([0, 0, 0, 1]), ("x", "y"))
    assert class_weights(ClassifierConfig(balance_loss=True), samples) == pytest.approx([2 / 3, 2.0])
    assert class_weights(ClassifierConfig(class_weights=[1, 3]), samples) == pytest.approx([2 / 3, 2.0])
    assert class_weights(ClassifierConfig(), samples) == []
    assert class_weights(ClassifierConfig(class_weights=[1, 3]), samples, balanced=True) == [0.5, 1.5]
    absent = Samples(tuple("abcd"), tuple("abcd"), np.array([0, 0, 0, 1]), ("x", "y", "z"))
    assert class_weights(ClassifierConfig(balance_loss=True), absent) == pytest.approx([2 / 3, 2.0, 0.0])
    with pytest.raises(ConfigError, match="are 0 for every class that has images"):
        class_weights(ClassifierConfig(class_weights=[0, 0, 1]), absent)
    with pytest.raises(ConfigError, match=r"has 3 weights, and the data 2 classes \(x, y\)"):
        class_weights(ClassifierConfig(class_weights=[1, 1, 1]), samples)


def test_a_checkpoint_of_other_classes_is_refused(drawn: Path) -> None:
    now = task(drawn)
    now.load_checkpoint_state({"classes": list(CLASSES)}, "last.pt")
    with pytest.raises(
        CheckpointError, match=r"last.pt was trained on other classes than data=drawn_classes has \(heart\)"
    ):
        now.load_checkpoint_state({"classes": [*CLASSES, "heart"]}, "last.pt")


def test_a_checkpoint_names_no_class_to_import() -> None:
    assert task_of_checkpoint({"config": {}}) == "detection"
    for section in ({"name": "os.system"}, {"name": "classification", "_target_": "os.system"}, ["classification"]):
        assert task_of_checkpoint({"config": {"task": section}}) == "detection"


RECIPES = ("imagenet_resnet50", "imagenet_resnet50_v2", "imagenet_fast", "chest_xray")


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_compose(recipe: str) -> None:
    config = load_config("train", [f"experiment={recipe}", "data.root=/nowhere"])
    assert config.task.name == "classification"
    assert isinstance(config.data, ClassificationData)
