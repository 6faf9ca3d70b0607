"""Batches are a pure function of the step: whatever the number of ranks and workers, an image looks
the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from retina_dist.base.errors import ImageError
from retina_dist.classification.dataset import (
    ClassificationDataModule,
    ClassificationDataset,
    ImageBatch,
)
from retina_dist.classification.samples import Samples, read_samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.classification.transforms import TrainTransform, eval_transform, mix

EVERYTHING: dict[str, Any] = {
    "augment": "randaugment",
    "erasing": 0.5,
    "mixup": 0.2,
    "cutmix": 1.0,
    "vflip": 0.5,
}


def module(
    root: Path, rank: int = 0, world_size: int = 1, **settings: Any
) -> ClassificationDataModule:
    data = ClassificationData(
        **{"name": "drawn", "batch_size": 6, "image_size": 16, "num_workers": 0, **settings}
    )
    train, val = (read_samples(root, split) for split in ("train", "val"))
    return ClassificationDataModule(data, train=train, val=val, rank=rank, world_size=world_size)


def images_of(batches: list[ImageBatch]) -> dict[int, list[Any]]:
    """What was made of each image, by its number."""
    found: dict[int, list[Any]] = {}
    for batch in batches:
        for i in batch.real_rows():
            parts = (batch.images[i], batch.labels[i], batch.other_labels[i], batch.share[i])
            found.setdefault(int(batch.image_ids[i]), []).extend(part.tolist() for part in parts)
    return found


def step_images(root: Path, step: int, world_size: int, **settings: Any) -> dict[int, list[Any]]:
    shares = [
        next(iter(module(root, r, world_size, **settings).train_steps(step, step + 1)))
        for r in range(world_size)
    ]
    return images_of([batch for share in shares for batch in share])


@pytest.mark.parametrize("world_size", [2, 4])
def test_any_number_of_ranks_draws_the_same(drawn: Path, world_size: int) -> None:
    for step in (0, 2, 3):  # whole, short, of the second epoch
        alone = step_images(drawn, step, 1, **EVERYTHING)
        assert len(alone) == (2 if step == 2 else 6)
        assert step_images(drawn, step, world_size, **EVERYTHING) == alone
    assert step_images(drawn, 0, 1, **EVERYTHING) != step_images(
        drawn, 0, 1, **EVERYTHING, shuffle=False
    )


def test_partners_come_from_the_whole_set_and_change_with_the_epoch(drawn: Path) -> None:
    data = ClassificationData(name="drawn", mixup=0.2)
    samples = read_samples(drawn, "train")
    assert samples is not None
    dataset = ClassificationDataset(samples, data)
    first, second = ([dataset.drawn(place, epoch) for place in range(14)] for epoch in (0, 1))
    assert [d.image for d in first] == list(range(14))
    assert len({d.partner for d in first}) > 4
    assert [d.partner for d in first] != [d.partner for d in second]
    both = ClassificationDataset(samples, ClassificationData(name="drawn", mixup=0.2, cutmix=1.0))
    assert {both.drawn(place, 0).kind for place in range(14)} == {"mixup", "cutmix"}


def test_mixup_and_cutmix_by_hand() -> None:
    image, other = (
        torch.full((3, 8, 8), 200, dtype=torch.uint8),
        torch.full((3, 8, 8), 100, dtype=torch.uint8),
    )
    for seed in range(5):
        torch.manual_seed(seed)
        mixed, share = mix("mixup", 1.0, image, other)
        assert mixed.unique().tolist() == [round(200 * share + 100 * (1 - share))]
        mixed, share = mix("cutmix", 1.0, image, other)
        assert share == pytest.approx(float((mixed[0] == 200).float().mean()))
        assert image.unique().tolist() == [200]


def test_a_balanced_epoch_has_each_class_as_often(tmp_path: Path) -> None:
    labels = np.array([0] * 20 + [1] * 3 + [2] * 1)
    samples = Samples(
        tuple(map(str, range(24))), tuple(map(str, range(24))), labels, ("a", "b", "c")
    )
    dataset = ClassificationDataset(samples, ClassificationData(name="x", balanced=True))
    epochs = [[dataset.drawn(place, epoch).image for place in range(24)] for epoch in (0, 1, 0)]
    assert np.bincount(labels[epochs[0]]).tolist() == [8, 8, 8]
    assert epochs[0] == epochs[2] != epochs[1]
    assert len(set(epochs[0][0::3])) == 8, "no image twice before all were there once"
    short = Samples(("0", "1"), ("0", "1"), np.array([0, 1]), ("a", "b", "c", "d"))
    drawn = ClassificationDataset(short, ClassificationData(name="x", balanced=True)).drawn
    assert [drawn(place, 0).image for place in (0, 1)] == [0, 1]


def test_bad_images_are_an_error_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("RGB", (20, 20), (200, 0, 0)).save(tmp_path / "train" / name / "good.png")
    (tmp_path / "train" / "a" / "bad.jpg").write_bytes(b"no image")
    Image.new("RGB", (300, 300)).save(tmp_path / "train" / "b" / "huge.png")
    with pytest.raises(ImageError, match="bad.jpg is not a readable image"):
        list(module(tmp_path, max_pixels=10_000).train_steps(0, 1))
    (batch,) = next(iter(module(tmp_path, max_pixels=10_000, bad_images="skip").train_steps(0, 1)))
    assert len(caplog.messages) == 2
    assert (batch.weight, batch.real_rows(), len(batch)) == (0.5, [0, 1], 4)


def test_transforms_depend_on_their_key_alone() -> None:
    image = torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8)
    transform = TrainTransform(ClassificationData(name="x", augment="trivialaugment", erasing=1.0))
    found = [transform(image, 24, key) for key in ((0, 1, 2), (0, 1, 3), (0, 1, 2))]
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    whole = TrainTransform(ClassificationData(name="x", crop_scale=[1.0, 1.0], hflip=0.0))
    plain = whole(image[:, :40, :40], 40, (0,))
    assert torch.equal(plain, image[:, :40, :40])
    assert torch.equal(eval_transform(image, 20, 40), image[:, 10:30, 20:40])
