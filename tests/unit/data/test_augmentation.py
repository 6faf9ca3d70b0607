"""Augmentations of one's own: boxes follow by hand, random numbers depend on the image and epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

import retina_dist as rd
from retina_dist.base import registry
from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import register
from retina_dist.classification.dataset import ClassificationDataModule
from retina_dist.classification.drawn import draw_classes
from retina_dist.classification.samples import read_samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.config.compose import load_config
from retina_dist.data.augmentation import KeyedAugmentation, augmentation_of
from retina_dist.detection.data.dataset import CocoDataModule
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.load import load_annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.run.assemble import train
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.coco_files import noise_images, write_coco
from tests.plugins.noise import Noise, NoiseSettings
from tests.plugins.test_plugins import FOUND
from tests.unit.detection.test_module import SETTINGS, same_steps

KEY = (0, 1, 2)
BOXES = torch.tensor([[2.0, 3.0, 18.0, 19.0], [30.0, 0.0, 40.0, 10.0]])
LABELS = torch.tensor([7, 4])


def augmented(function: Callable[..., object], **changes: Any) -> tuple[Tensor, ...]:
    image = torch.arange(3 * 20 * 40, dtype=torch.uint8).reshape(3, 20, 40)
    sample = (image, BOXES.clone(), LABELS.clone())
    return KeyedAugmentation(function, "mine")(*sample, key=changes.get("key", KEY))


def test_boxes_follow_their_image() -> None:
    image, boxes, labels = augmented(v2.RandomHorizontalFlip(1.0))
    assert boxes.tolist() == [[22, 3, 38, 19], [0, 0, 10, 10]]
    assert labels.tolist() == [7, 4]
    assert (type(image), image.shape, int(image[0, 0, 0])) == (Tensor, (3, 20, 40), 39)

    # a quarter turn to the left: x, y becomes y, width - x
    image, boxes, _ = augmented(v2.RandomRotation((90, 90), expand=True))
    assert image.shape == (3, 40, 20)
    assert boxes.tolist() == [[3, 22, 19, 38], [0, 0, 10, 10]]


def test_boxes_that_leave_the_image_go_with_their_labels() -> None:
    def crop(image: Tensor, target: dict[str, Any]) -> object:
        return v2.functional.crop(image, 0, 10, 20, 20), {
            "boxes": v2.functional.crop(target["boxes"], 0, 10, 20, 20),
            "labels": target["labels"],
        }

    image, boxes, labels = augmented(crop)
    assert (image.shape, boxes.tolist(), labels.tolist()) == ((3, 20, 20), [[0, 3, 8, 19]], [7])

    # plain tensors are xyxy in pixels of the image that is returned; under a pixel nothing is left
    def by_hand(image: Tensor, target: dict[str, Any]) -> object:
        return image[:, :10], {"boxes": BOXES - torch.tensor([0, 9.5, 0, 9.5]), "labels": [1, 2]}

    assert augmented(by_hand)[1].tolist() == [[2, 0, 18, 9.5]]
    assert augmented(by_hand)[2].tolist() == [1]


def three_generators(image: Tensor, target: Any = None) -> object:
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    changed = image.clone()
    changed[:, 0, 0] = torch.tensor([int(256 * number) for number in drawn])
    return changed if target is None else (changed, target)


def test_random_numbers_depend_on_the_key_and_leave_the_generators_alone() -> None:
    first = augmented(three_generators)[0][:, 0, 0].tolist()
    random.seed(9)
    np.random.seed(9)
    torch.manual_seed(9)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert augmented(three_generators)[0][:, 0, 0].tolist() == first
    assert random.getstate() == states[0]
    assert all(map(np.array_equal, np.random.get_state(), states[1]))
    assert torch.equal(torch.get_rng_state(), states[2])
    other = augmented(three_generators, key=(0, 2, 2))[0][:, 0, 0].tolist()
    assert all(a != b for a, b in zip(first, other, strict=True))


def own_generator() -> Callable[..., object]:
    generator = np.random.default_rng(0)

    def flip(image: Tensor, target: Any) -> object:
        return (image.flip(2) if generator.random() < 0.5 else image), target

    return flip


def counting() -> Callable[..., object]:
    seen: list[int] = []

    def drop(image: Tensor, target: Any) -> object:
        seen.append(1)
        kept = slice(len(seen) > 8, None)
        return image, {name: value[kept] for name, value in target.items()}

    return drop


@pytest.mark.parametrize("make", [own_generator, counting])
def test_what_the_seeds_do_not_decide_is_refused(make: Callable[[], Any]) -> None:
    sample = (torch.zeros(3, 20, 40, dtype=torch.uint8), BOXES, LABELS)
    sample[0][:, 0, 0] = 9
    with pytest.raises(ConfigError, match=r"augmentation=mine gives another result .* generators"):
        KeyedAugmentation(make(), "mine").check(*sample)
    KeyedAugmentation(three_generators, "mine").check(*sample)
    KeyedAugmentation(Noise(NoiseSettings()), "mine").check(*sample)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda image, target: None, "mine returns a NoneType; return image, target."),
        (lambda image, target: image, "mine returns a Image; return image, target."),
        (lambda image, target: (), "mine returns a tuple; return image, target, where target"),
        (lambda image, target: (image, image, target), "mine returns a tuple; return image, t"),
        (
            lambda image, target: (image, {"boxes": target["boxes"]}),
            r"mine returns a tuple; return image, target, where target is a dictionary with boxes and l",
        ),
        (
            lambda image, target: (image.float() - 100, target),
            "mine: an image has floats from -100 to .* uint8 or floats from 0 to 1, without Norm",
        ),
        (lambda image, target: (image[:1], target), r"mine: an image has the shape \[1, 20, 40\]"),
        (
            lambda image, target: (image, {**target, "labels": target["labels"][:1]}),
            r"mine returns labels \[1\] for 2 boxes; return one for each.",
        ),
    ],
)
def test_what_is_no_sample_is_named(function: Callable[..., object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        augmented(function)


# in the batches of a training


@pytest.fixture
def annotations(tmp_path: Path) -> Annotations:
    """Six images of noise; image i has i % 3 boxes."""
    images = noise_images(tmp_path, [f"{i}.png" for i in range(6)], first_id=100)
    boxes = [(100 + i, i, [2, 3, 18, 19], 0) for i in range(6) for _ in range(i % 3)]
    write_coco(tmp_path / "a.json", images, boxes, {i: str(i) for i in range(6)})
    return load_annotations(tmp_path / "a.json", tmp_path)


def steps(annotations: Annotations, function: Any, **settings: Any) -> list[Any]:
    job = {name: settings.pop(name) for name in ("rank", "world_size") if name in settings}
    augment = KeyedAugmentation(function, "mine") if function else None
    data = DetectionData(name="x", **SETTINGS | settings)
    module = CocoDataModule(data, train=annotations, val=None, seed=3, augment=augment, **job)
    return list(module.train_steps(0, 4))


def images_of(step: list[Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for batch in step:
        for row in batch.real_rows():
            found[int(batch.image_ids[row])] = batch.image(row)
    return found


def test_workers_and_ranks_draw_the_same(annotations: Annotations) -> None:
    pipeline = Noise(NoiseSettings())
    alone = steps(annotations, pipeline)
    # a function of the script, which workers do not import
    local = steps(annotations, lambda *sample: pipeline(*sample), num_workers=1)
    assert same_steps(alone, local)
    assert not same_steps(alone, steps(annotations, None))
    # each image is in one step of the epoch, on one rank, with the same pixels and boxes
    for step in range(2):
        whole = images_of(alone[step])
        shared: dict[int, Any] = {}
        for rank in range(2):
            shared |= images_of(steps(annotations, pipeline, rank=rank, world_size=2)[step])
        assert whole.keys() == shared.keys() != set()
        for image_id, batch in whole.items():
            assert torch.equal(batch.images, shared[image_id].images)
            count = int(batch.num_boxes)
            assert torch.equal(batch.boxes[:, :count], shared[image_id].boxes[:, :count])
            assert count == int(shared[image_id].num_boxes)


def test_one_that_changes_nothing_gives_the_bits_of_none(annotations: Annotations) -> None:
    """It comes before the flips and the resize, whose random numbers stay as they are."""
    assert same_steps(steps(annotations, lambda *sample: sample), steps(annotations, None))


def test_a_classifiers_images(tmp_path: Path) -> None:
    draw_classes(tmp_path / "drawn", num_train=12, num_val=6, image_size=16, seed=0)
    train_samples = read_samples(tmp_path / "drawn", "train")

    def images(function: Any, **settings: Any) -> Tensor:
        data = ClassificationData(
            **{"name": "x", "batch_size": 4, "image_size": 16, "num_workers": 0, **settings}
        )
        augment = KeyedAugmentation(function, "mine") if function else None
        module = ClassificationDataModule(data, train=train_samples, val=None, augment=augment)
        return torch.cat([batch.images for step in module.train_steps(0, 3) for batch in step])

    pipeline = Noise(NoiseSettings())
    assert torch.equal(images(pipeline), images(lambda x: pipeline(x), num_workers=1))
    assert torch.equal(images(lambda x: x, mixup=0.2), images(None, mixup=0.2))
    white = images(lambda x: torch.full_like(x, 255), mixup=0.2)
    assert bool((white == 255).all())
    generator = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="gives another result with the same seeds"):
        images(lambda x: x // int(generator.integers(1, 9)))


# chosen by name, and in Python


SMALL = ["data=parity", "logging=quiet", "trainer.num_threads=1", "trainer.max_duration=2steps"]


def test_an_entry_trains_resumes_and_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits after a resume, which names it again, are those of a run that was not stopped."""
    monkeypatch.chdir(tmp_path)
    chosen = [FOUND, *SMALL, "augmentation=noise", "augmentation.std=4"]
    train(load_config("train", [*chosen, "output_dir=whole"]))
    train(load_config("train", [*chosen, "output_dir=half", "trainer.stop_after=1steps"]))
    with pytest.raises(ConfigError, match=r"has augmentation from outside .* give augmentation=NA"):
        load_config("train", ["resume=half"])
    train(load_config("train", [FOUND, "resume=half", "augmentation=noise", "augmentation.std=4"]))
    whole, half = (
        load_checkpoint(Path(run, "checkpoints", "last.pt")) for run in ("whole", "half")
    )
    section = {
        "_target_": "tests.plugins.noise.Noise",
        "name": "noise",
        "degrees": 10.0,
        "std": 4.0,
    }
    assert whole["config"]["augmentation"] == section
    for name, weights in whole["model"].items():
        assert torch.equal(weights, half["model"][name]), name
    plan = DetectionTask(load_config("train", chosen), SingleDeviceStrategy("cpu")).describe()
    assert "  augment  noise, before the flips and others of data" in plan


def test_an_entry_needs_no_file() -> None:
    register("augmentation", Noise, "grain")
    try:
        config = load_config("train", ["augmentation=grain", "augmentation.degrees=3"])
        assert config.augmentation == NoiseSettings(name="grain", degrees=3)
        function = augmentation_of(config.augmentation).function
        assert isinstance(function, Noise)
    finally:
        del registry._named["augmentation"]["grain"], registry._from_outside[NoiseSettings]


def test_python_takes_any_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """first_batch.jpg shows what it does: a white frame around black."""
    monkeypatch.chdir(tmp_path)

    def white(image: Tensor, target: Any) -> object:
        return torch.full_like(image, 255), target

    data = rd.DetectionData(
        root="shapes",
        shapes=rd.ShapesConfig(num_train=8, num_val=4, image_size=32),
        batch_size=4,
        min_sizes=[32],
        max_size=32,
        num_workers=0,
    )
    trainer = rd.Trainer(
        data=data,
        model=rd.ModelConfig(backbone="mobilenet_v3_small", fpn_channels=64),
        optimizer=rd.OptimizerConfig(name="sgd", lr=1e-3),
        max_duration="1steps",
        augmentation=white,
        num_threads=1,
    )
    trainer.fit()
    assert trainer.run_folder is not None
    with Image.open(trainer.run_folder / "first_batch.jpg") as sheet:
        assert (np.asarray(sheet) > 200).mean() > 0.4
    assert load_checkpoint(trainer.checkpoint)["config"]["augmentation"] == {"name": "function"}
    with pytest.raises(ConfigError, match=r"augmentation=None is no function; give rd.T"):
        load_config("train", [f"resume={trainer.run_folder}"])
    with pytest.raises(ConfigError, match=r"augmentation=3 is no function"):
        rd.Trainer(data=data, optimizer=trainer.optimizer, max_duration="1steps", augmentation=3)


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="data.synthetic has no images to augment; leave augment"):
        load_config("train", [FOUND, "data=synthetic", "augmentation=noise"])
    with pytest.raises(ConfigError, match="augmentation=nois"):
        load_config("train", [FOUND, "augmentation=nois"])
