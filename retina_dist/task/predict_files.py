"""Image files through a predictor: a picture of each, written beside the results."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image
from torch import Tensor

from retina_dist.base.errors import ConfigError, DataError, ImageError
from retina_dist.base.files import write_atomically
from retina_dist.base.text import escape
from retina_dist.data.images import ENDINGS, find_images, read_image
from retina_dist.task.predictor import Predictor

# Files that predict writes beside the images.
RESULTS = (
    "results.json",
    "images.json",
    "predictions.csv",
    "labels.json",
    "label_studio.json",
    "annotations.xml",
)

# The picture of an image [3, h, w] and its output, and a few words on it; "" prints no line.
Draw = Callable[[Tensor, Any], tuple[PIL.Image.Image, str]]


@dataclass(frozen=True)
class PredictionPlan:
    """The images to look at, and where the picture of each goes."""

    pattern: str
    folder: Path
    pictures: dict[Path, Path]  # to the image of each


def plan_predictions(pattern: str, output_dir: str | None) -> PredictionPlan:
    """Find the images of `pattern` and give each a NAME.jpg in `output_dir`.

    By default that is the first free one of predictions, predictions-2, ... Raises DataError
    without an image, and ConfigError where a file would be overwritten.
    """
    files = find_images(pattern)
    folder = Path(output_dir or "predictions")
    number = 1
    while not output_dir and folder.exists():
        number += 1
        folder = Path(f"predictions-{number}")

    pictures = {}
    for number, file in enumerate(files):
        name = file.stem
        if folder / f"{name}.jpg" in pictures:
            name = f"{file.parent.name}_{name}"
        while folder / f"{name}.jpg" in pictures:
            name += f"_{number}"
        pictures[folder / f"{name}.jpg"] = file

    for path in (*pictures, *map(folder.joinpath, RESULTS)):
        if path.exists():
            raise ConfigError(
                f"{escape(path)} exists and would be overwritten; "
                "give another output_dir, or leave it out."
            )
    return PredictionPlan(pattern, folder, pictures)


def predict_files(
    predictor: Predictor, plan: PredictionPlan, draw: Draw, max_pixels: int
) -> dict[int, tuple[Path, Any]]:
    """Write the picture of each image; return file and output by number of the image.

    An unreadable file is named and left out. Raises DataError if all are, and UserError for a
    picture that the disk refuses.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    outputs = {}
    for number, (path, file) in enumerate(plan.pictures.items()):
        try:
            pixels = read_image(file, max_pixels=max_pixels)
        except ImageError as error:
            reason = escape(str(error).rpartition(";")[0])  # without the advice for data sets
            print(f"warning: {reason}; left out", file=sys.stderr)
            continue

        (output,) = predictor.run_each(pixels)
        picture, words = draw(pixels, output)
        write_atomically(path, partial(picture.save, format="JPEG", quality=92))
        if words:
            print(escape(f"{file}: {words} -> {path}"))
        outputs[number] = file, output

    if not outputs:
        raise DataError(
            f"none of the {len(plan.pictures)} files of input={plan.pattern} is a readable image; "
            f"give {ENDINGS}."
        )
    return outputs
