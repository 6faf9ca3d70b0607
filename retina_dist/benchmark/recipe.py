"""How much a training has to do: how many images for how many epochs, and where each number comes from."""

from __future__ import annotations

from typing import NamedTuple

from retina_dist.benchmark.settings import ForecastBenchmarkConfig
from retina_dist.detection.splits import read_split
from retina_dist.engine.duration import to_steps
from retina_dist.errors import ConfigError

# Of train2017 (https://cocodataset.org/#download: 118K), and without the 1021 that have no object
# (https://github.com/cocodataset/cocoapi/issues/76)
COCO_IMAGES, COCO_IMAGES_WITH_OBJECTS = 118_287, 117_266


class Recipe(NamedTuple):
    """Images of an epoch, epochs, and the settings that say so, in words."""

    num_images: int
    epochs: float
    images_from: str
    length_from: str

    def __str__(self) -> str:
        epochs = f"{self.epochs:.4g} epoch{'s' * (self.epochs != 1)}"
        return f"{epochs} ({self.length_from}) of {self.num_images:,} images ({self.images_from})"


def recipe_of(config: ForecastBenchmarkConfig) -> Recipe:
    """The length that a training of these settings has. Reads the annotations when the settings name some.

    Raises ConfigError where nothing tells how many images there are.
    """
    num_images, images_from = _num_images(config)
    if config.epochs is not None:
        return Recipe(num_images, config.epochs, images_from, f"epochs={config.epochs:g}")
    length, batch = config.trainer.max_duration, config.data.batch_size
    steps = to_steps(length, key="trainer.max_duration", num_images=num_images, batch_size=batch)
    if steps < 1:
        raise ConfigError(f"trainer.max_duration={length} is no step at all; use at least 1step.")
    an_epoch = to_steps("1epoch", key="an epoch", num_images=num_images, batch_size=batch)
    said = f"trainer.max_duration={length}" + f" of data.batch_size={batch}" * ("step" in length)
    return Recipe(num_images, steps / an_epoch, images_from, said)


def _num_images(config: ForecastBenchmarkConfig) -> tuple[int, str]:
    data = config.data
    if config.num_images is not None:
        return config.num_images, f"num_images={config.num_images}"
    if data.shapes is not None:
        return data.shapes.num_train, "data.shapes.num_train"
    if data.root is not None or data.train_annotations is not None:
        found = read_split(data, "train")
        assert found is not None, "a missing train split is an error"
        return len(found.records), f"counted in {data.train_annotations or data.root}"
    if data.name != "coco":
        raise ConfigError(
            f"data={data.name} does not say how many images there are; give num_images=N or data.root=FOLDER."
        )
    if data.keep_empty_images:
        return COCO_IMAGES, "those of COCO's train2017, since neither num_images nor data.root is given"
    return (
        COCO_IMAGES_WITH_OBJECTS,
        "those of COCO's train2017 that have objects, since no num_images or data.root is given",
    )
