"""Augmentations of one's own: any function of an image and its boxes, with keyed random numbers.

Those that a task has, such as flips, crops and mixup, are in its transforms.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Image

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.registry import class_of
from retina_dist.base.seeding import every_seed
from retina_dist.base.settings import entry_name
from retina_dist.config.run_config import AugmentationSettings
from retina_dist.data.images import pixels_of
from retina_dist.data.sources import ByValue

Function: TypeAlias = Callable[..., object]
Sample: TypeAlias = tuple[Tensor, ...]  # an image, in detection with its boxes and labels
XYXY = BoundingBoxFormat.XYXY
NUM_CHECKED = 8  # draws of the first image, so that one with a probability of a half is seen


@dataclass
class FunctionSettings(AugmentationSettings):
    """A function of a script, which no file holds: rd.Trainer(augmentation=FUNCTION)."""

    name: str = entry_name("function")
    function: ClassVar[object] = None

    def check(self) -> None:
        """Raise ConfigError without a function."""
        if not callable(self.function) or isinstance(self.function, type):
            raise ConfigError(
                f"augmentation={self.function} is no function; give rd.Trainer one, such as "
                "torchvision.transforms.v2.Compose([…]), in Python."
            )


class FunctionAugmentation:
    """The function of a script."""

    settings = FunctionSettings

    def __init__(self, settings: FunctionSettings) -> None:
        self.function = settings.function

    def __call__(self, *sample: object) -> object:
        assert callable(self.function), "checked with the settings"
        return self.function(*sample)


class KeyedAugmentation:
    """An augmentation whose random numbers depend on a key only.

    In detection it is called with `image, target`, as torchvision's v2 transforms are, in
    classification with `image`, and returns the same. The image is a tv_tensors.Image, uint8
    [3, h, w] RGB; `target` has `boxes`, BoundingBoxes [n, 4] xyxy, and `labels` [n]. The size may
    change. Boxes are clipped to the image; those with a side or an area below a pixel are left out
    with their labels.

    Raises ConfigError for what is no such image or target.
    """

    def __init__(self, function: Function, name: str) -> None:
        self.function = function
        self.name = name

    def __reduce__(self) -> tuple[object, ...]:
        return KeyedAugmentation, (ByValue(self.function, f"augmentation={self.name}"), self.name)

    def __call__(self, *sample: Tensor, key: tuple[int | str, ...]) -> Sample:
        """The augmented sample: an image, in detection with boxes [n, 4] xyxy and labels [n]."""
        image = Image(sample[0])
        if len(sample) == 1:
            with every_seed(*key, "augmentation"):
                return (self._pixels(self.function(image)),)

        size = (image.shape[1], image.shape[2])
        boxes = BoundingBoxes(sample[1].clone(), format=XYXY, canvas_size=size)
        with every_seed(*key, "augmentation"):
            result = self.function(image, {"boxes": boxes, "labels": sample[2].clone()})
        match result:
            case tuple((changed, {"boxes": moved, "labels": labels})):
                pixels = self._pixels(changed)
                size = (pixels.shape[1], pixels.shape[2])
                return pixels, *self._inside(moved, labels, size)
        raise ConfigError(
            f"augmentation={self.name} returns a {type(result).__name__}; return image, target, "
            "where target is a dictionary with boxes and labels."
        )

    def check(self, *sample: Tensor) -> None:
        """Raise ConfigError unless the same key gives the same sample again."""
        draws: list[Tensor] = []
        takes = "image, target" if len(sample) > 1 else "image"
        try:
            for number in [*range(NUM_CHECKED)] * 2:
                draws += self(sample[0].clone(), *sample[1:], key=("check", number))
        except Exception as error:
            hint = (
                f"augmentation={self.name} is called as FUNCTION({takes}), as those of "
                f"torchvision.transforms.v2 are, and must return {takes}."
            )
            if "positional argument" in str(error):  # takes other arguments
                raise ConfigError(f"{error}; {hint}") from error
            vars(error).setdefault("__notes__", []).append(hint)  # add_note of Python 3.11
            raise
        half = len(draws) // 2
        if not all(map(torch.equal, draws[:half], draws[half:])):
            raise ConfigError(
                f"augmentation={self.name} gives another result with the same seeds; draw from the "
                "global generators of torch, NumPy or Python, which are seeded for each image, "
                "not from another generator, and keep no state between calls."
            )

    def _pixels(self, image: object) -> Tensor:
        try:
            return pixels_of(image)  # type: ignore[arg-type]
        except DataError as error:
            raise ConfigError(
                f"augmentation={self.name}: {str(error).rstrip('.')}, without Normalize."
            ) from error

    def _inside(
        self, given: object, labels: object, size: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Boxes xyxy and labels of what remains in an image of `size` (height, width)."""
        boxes = torch.as_tensor(given).reshape(-1, 4)
        labels = torch.as_tensor(labels)
        if labels.shape != boxes.shape[:1]:
            raise ConfigError(
                f"augmentation={self.name} returns labels {list(labels.shape)} for "
                f"{len(boxes)} boxes; return one for each."
            )
        form = getattr(given, "format", XYXY)
        inside = BoundingBoxes(boxes.float(), format=form, canvas_size=size)
        inside = F.convert_bounding_box_format(inside, new_format=XYXY)
        inside, valid = F.sanitize_bounding_boxes(F.clamp_bounding_boxes(inside))
        return inside.as_subclass(Tensor), labels[valid]


def augmentation_of(settings: AugmentationSettings) -> KeyedAugmentation:
    """What settings make, of the package or from outside."""
    return KeyedAugmentation(class_of(settings)(settings), settings.name)
