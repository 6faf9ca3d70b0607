"""Data sets that need no download.

They are files of one drawn shape each, and random classes for random images.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

from retina_dist.base.seeding import derived_seed
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import SyntheticClassesConfig
from retina_dist.data.synthetic import contrasting_colour, coverage, draw_once

CLASSES = ("circle", "cross", "ring", "square", "star", "triangle")
MAX_TILT = math.radians(12)
MIN_CONTRAST = 120  # grey levels, Euclidean, between a shape and its background


def draw_classes(root: Path, *, num_train: int, num_val: int, image_size: int, seed: int) -> None:
    """Write root/{train,val}/CLASS/*.png, `image_size` pixels a side, the classes equally often.

    See `draw_once`.
    """
    settings = {
        "version": 1,
        "num_train": num_train,
        "num_val": num_val,
        "image_size": image_size,
        "seed": seed,
    }

    def write(folder: Path) -> None:
        for split, count in (("train", num_train), ("val", num_val)):
            for index in range(count):
                name = CLASSES[index % len(CLASSES)]
                rng = np.random.default_rng(derived_seed("drawn classes", seed, split, index))
                (folder / split / name).mkdir(parents=True, exist_ok=True)
                draw_shape(rng, name, image_size).save(folder / split / name / f"{index:06d}.png")

    draw_once(root, settings, write, "drawn.json")


def draw_shape(rng: np.random.Generator, name: str, size: int) -> Image.Image:
    """One image of the class `name`: a shape of a random colour, size, place and tilt."""
    coarse = Image.fromarray(rng.integers(30, 226, (4, 4, 3), dtype=np.uint8))
    canvas = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float64)
    radius = size * rng.uniform(0.3, 0.42)
    centre = rng.uniform(radius, size - radius, 2)
    alpha = coverage(name, centre, radius, rng.uniform(-MAX_TILT, MAX_TILT), (size, size), hole=0.5)
    colour = contrasting_colour(rng, canvas[alpha >= 0.5], MIN_CONTRAST)
    canvas = canvas + alpha[..., None] * (colour - canvas) + rng.normal(0, 4, canvas.shape)
    return Image.fromarray(canvas.clip(0, 255).astype(np.uint8))


def synthetic_samples(settings: SyntheticClassesConfig, seed: int) -> Samples:
    """`num_images` images with a class each, a function of (seed, image); there are no files."""
    draw = np.random.default_rng(derived_seed(seed, "synthetic labels"))
    names = tuple(f"synthetic-{i}" for i in range(settings.num_images))
    labels = draw.integers(settings.num_classes, size=settings.num_images)
    return Samples(names, names, labels, tuple(f"class {i}" for i in range(settings.num_classes)))
