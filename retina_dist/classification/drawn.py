"""Data sets that need no download.

They are files of one drawn shape each, and random classes for random images.
"""

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from retina_dist.base.seeding import derived_seed
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import ClassificationData, SyntheticClassesConfig
from retina_dist.data.synthetic import (
    contrasting_colour,
    coverage,
    draw_once,
    folder_to_draw,
    grainy,
    smooth,
)

CLASSES = ("circle", "cross", "ring", "square", "star", "triangle")
MAX_TILT = math.radians(12)
MIN_CONTRAST = 120  # grey levels, Euclidean, between a shape and its background


def draw_data(data: ClassificationData) -> None:
    """Draw the data set of shapes where the settings ask for it and it is not there yet."""
    if data.drawn is not None:
        draw_classes(folder_to_draw(data.root, "data.drawn"), **asdict(data.drawn))


def draw_classes(root: Path, **settings: int) -> None:
    """Write root/{train,val}/CLASS/*.png, the classes equally often.

    `settings` are those of `DrawnClassesConfig`. See `draw_once`.
    """
    image_size = settings["image_size"]

    def write(folder: Path) -> None:
        for split in ("train", "val"):
            for index in range(settings[f"num_{split}"]):
                name = CLASSES[index % len(CLASSES)]
                key = ("drawn classes", settings["seed"], split, index)
                image = draw_shape(np.random.default_rng(derived_seed(*key)), name, image_size)
                (folder / split / name).mkdir(parents=True, exist_ok=True)
                image.save(folder / split / name / f"{index:06d}.png")

    draw_once(root, {"version": 1, **settings}, write, "drawn.json")


def draw_shape(rng: np.random.Generator, name: str, size: int) -> Image.Image:
    """One image of the class `name`: a shape of a random colour, size, place and tilt."""
    canvas = smooth(rng.integers(30, 226, (4, 4, 3), dtype=np.uint8), size, size)
    radius = size * rng.uniform(0.3, 0.42)
    centre = rng.uniform(radius, size - radius, 2)
    alpha = coverage(name, centre, radius, rng.uniform(-MAX_TILT, MAX_TILT), (size, size), hole=0.5)
    colour = contrasting_colour(rng, canvas[alpha >= 0.5], MIN_CONTRAST)
    return grainy(rng, canvas + alpha[..., None] * (colour - canvas))


def synthetic_samples(settings: SyntheticClassesConfig, seed: int) -> Samples:
    """`num_images` images with a class each, a function of (seed, image); there are no files."""
    draw = np.random.default_rng(derived_seed(seed, "synthetic labels"))
    names = tuple(f"synthetic-{i}" for i in range(settings.num_images))
    labels = draw.integers(settings.num_classes, size=settings.num_images)
    return Samples(names, names, labels, tuple(f"class {i}" for i in range(settings.num_classes)))
