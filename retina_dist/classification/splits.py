"""The training and validation splits that data settings name, and what follows from them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from retina_dist.classification.data.drawn import draw_classes
from retina_dist.classification.data.samples import Samples, read_samples, root_of
from retina_dist.classification.model import smallest_size
from retina_dist.classification.settings import ClassificationData, ClassifierConfig
from retina_dist.errors import ConfigError
from retina_dist.files import Url
from retina_dist.text import pluralize


def draw_data(data: ClassificationData) -> None:
    """Draw the data set of shapes where the settings ask for it and it is not there yet."""
    if data.drawn is not None:
        root = root_of(data.root, data.name)
        if isinstance(root, Url):
            raise ConfigError(
                f"data.root={root} is a URL, and data.drawn draws into local folders only; draw it in one and copy it."
            )
        draw_classes(root, **asdict(data.drawn))


def read_splits(data: ClassificationData) -> tuple[Samples, Samples | None]:
    """The training and validation images that data settings name; None for a validation set that is not there."""
    draw_data(data)
    root = root_of(data.root, data.name)
    train = read_samples(root, "train", data.format, missing_images=data.missing_images)
    assert train is not None, "a missing train split is an error"
    return train, read_samples(root, "val", data.format, classes=train.classes, missing_images=data.missing_images)


def unaugmented(data: ClassificationData) -> ClassificationData:
    """The settings with the whole image as the crop and nothing else random in it."""
    off: dict[str, Any] = {"hflip": 0.0, "vflip": 0.0, "augment": None, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0}
    return replace(data, crop_scale=[1.0, 1.0], first_image_size=None, **off)


def class_weights(settings: ClassifierConfig, train: Samples, balanced: bool = False) -> list[float]:
    """One weight for each class, scaled so that the mean over the images that an epoch draws is 1; [] for equal ones.

    With `balanced` an epoch draws each class equally often, an absent one from all images, see `ClassificationDataset`.
    """
    counts = train.counts()
    weights = np.array(settings.class_weights, np.float64)
    if settings.balance_loss:
        weights = (counts > 0) / np.maximum(counts, 1)
    if not len(weights):
        return []
    if balanced:
        counts = (counts > 0) + (counts == 0).sum() * counts / counts.sum()
    if len(weights) != len(counts):
        raise ConfigError(
            f"model.class_weights has {len(weights)} weights, and the data {len(counts)} classes ({', '.join(train.classes[:5])}"
            f"{', …' if len(counts) > 5 else ''}); give one for each."
        )
    mean = float((weights * counts).sum() / counts.sum())
    if mean == 0:
        raise ConfigError("model.class_weights are 0 for every class that has images; give one of them a weight.")
    return (weights / mean).tolist()


def check_trainable(model: ClassifierConfig, data: ClassificationData, train: Samples) -> None:
    """Raise ConfigError where settings and data do not go together: one class, two corrections of imbalance, wrong sizes."""
    if len(train.classes) < 2:
        raise ConfigError(f"data={data.name} has one class only, {train.classes[0]}; a classifier needs two.")
    class_weights(model, train, data.balanced)
    if data.balanced and model.balance_loss:
        raise ConfigError(
            "data.balanced=true and model.balance_loss=true both correct for rare classes; give one of them."
        )
    if model.architecture.startswith("vit_") and (
        data.val_size != data.image_size or data.first_image_size is not None
    ):
        raise ConfigError(
            f"model.architecture={model.architecture} takes images of one size; give data.val_image_size={data.image_size} and no "
            "data.first_image_size."
        )
    patch = model.architecture.rpartition("_")[2]
    if model.architecture.startswith("vit_") and patch.isdigit() and data.image_size % int(patch):
        raise ConfigError(
            f"model.architecture={model.architecture} cuts images into patches of {patch} px; give a data.image_size that is a "
            f"multiple of {patch}, not {data.image_size}."
        )
    if model.architecture == "maxvit_t" and {data.val_size, data.image_size, data.first_image_size or 224} != {224}:
        raise ConfigError(
            f"model.architecture=maxvit_t takes images of 224 px, not {data.image_size}; give data.image_size=224."
        )
    sides = {"image_size": data.image_size, "val_image_size": data.val_size, "first_image_size": data.first_image_size}
    name, side = min(((k, v) for k, v in sides.items() if v), key=lambda item: item[1])
    if (smallest := smallest_size(model.architecture, side)) > side:
        raise ConfigError(
            f"model.architecture={model.architecture} takes images of at least {smallest} px, not data.{name}={side}; give "
            f"data.{name}={smallest}."
        )


def describe_split(part: Samples) -> str:
    """Images of a split, and how they are spread over the classes."""
    counts = part.counts()
    return f"{pluralize(len(part), 'image')}, {counts.min()} to {counts.max()} of a class"
