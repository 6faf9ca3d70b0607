"""Data sets that need no download: drawn shapes on textured backgrounds, as COCO data, and random
images with random boxes.

The same settings give the same annotations everywhere, and the same files under the same Pillow.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from PIL import Image

from retina_dist.base.seeding import derived_seed
from retina_dist.data.synthetic import (
    contrasting_colour,
    coverage,
    draw_once,
    folder_to_draw,
    grainy,
    noise,
    smooth,
)
from retina_dist.detection.batch import Batch, Sample, collate
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.categories import Categories, Entry
from retina_dist.detection.readers.ground_truth import make_ground_truth
from retina_dist.detection.readers.records import ImageRecord
from retina_dist.detection.settings import DetectionData, ShapesConfig, SyntheticConfig

CATEGORIES = {1: "circle", 2: "square", 4: "triangle", 7: "star", 8: "cross", 11: "ring"}
ASPECTS = ((1, 1), (4, 3), (3, 4), (3, 2), (2, 3))  # width : height
MAX_TILT = math.radians(25)
MIN_CONTRAST = 90  # grey levels, Euclidean, between a shape and what it covers
RING_HOLE = 0.55  # of the radius
MIN_VISIBLE = 0.6  # of each object; a shape that would hide more of another is drawn elsewhere
EMPTY_SHARE = 0.04  # of the images
CROWD_SHARE = 0.05
MANIFEST = "shapes.json"
VERSION = 1


def draw_data(data: DetectionData) -> None:
    """Draw the shapes data set where the settings ask for it and it is not there yet."""
    if data.shapes is not None:
        make_shapes(folder_to_draw(data.root, "data.shapes"), **asdict(data.shapes))


def make_shapes(root: Path, **changes: int) -> None:
    """Write root/annotations/instances_{train,val}.json and root/{train,val}/*.jpg, `image_size`
    pixels on the long side.

    A folder already made with the same settings is left as it is; one with other settings, or of
    something else, raises DataError. The folder is whole or absent, never half-written.

    Args:
        root: the folder.
        changes: the arguments of `ShapesConfig`.
    """
    shapes = ShapesConfig(**changes)

    def write(folder: Path) -> None:
        (folder / "annotations").mkdir()
        for split, count in (("train", shapes.num_train), ("val", shapes.num_val)):
            (folder / "annotations" / f"instances_{split}.json").write_text(
                json.dumps(_write_split(folder / split, count, shapes))
            )

    draw_once(root, {"version": VERSION, **asdict(shapes)}, write, MANIFEST)


def _write_split(folder: Path, count: int, shapes: ShapesConfig) -> Entry:
    folder.mkdir()
    images = []
    annotations: list[Entry] = []
    for index in range(count):
        rng = np.random.default_rng(derived_seed("shapes", shapes.seed, folder.name, index))
        pixels, objects = draw_scene(rng, shapes.image_size)
        name = f"{index:06d}.jpg"
        pixels.save(folder / name, quality=90)
        images.append(
            {"id": index + 1, "file_name": name, "width": pixels.width, "height": pixels.height}
        )
        for entry in objects:
            annotations.append({"id": len(annotations) + 1, "image_id": index + 1, **entry})
    return {
        "info": {"description": f"drawn shapes, {folder.name} split, seed {shapes.seed}"},
        "images": images,
        "annotations": annotations,
        "categories": [
            {"id": i, "name": n, "supercategory": "shape"} for i, n in CATEGORIES.items()
        ],
    }


def draw_scene(rng: Generator, image_size: int) -> tuple[Image.Image, list[Entry]]:
    """One image and its COCO annotations (category_id, bbox, area, iscrowd), tight around the
    pixels that are seen.
    """
    aspect = ASPECTS[rng.integers(len(ASPECTS))]
    width, height = (round(image_size * side / max(aspect)) for side in aspect)
    canvas = _background(rng, width, height)
    owner = np.full((height, width), -1)  # which object each pixel belongs to
    areas: list[int] = []
    categories: list[int] = []
    if rng.random() >= EMPTY_SHARE:
        for _ in range(rng.integers(1, 6)):
            category = int(rng.choice(list(CATEGORIES)))
            _place(rng, canvas, owner, areas, CATEGORIES[category], image_size)
            categories += [category] * (len(areas) - len(categories))
    objects = [_annotation(owner == i, category, 0) for i, category in enumerate(categories)]
    if rng.random() < CROWD_SHARE:
        objects += _crowd(rng, canvas, owner, image_size)
    return grainy(rng, canvas), objects


def _background(rng: Generator, width: int, height: int) -> np.ndarray:
    """Float RGB [h, w, 3]: a colour gradient, smooth noise at three scales, and often stripes."""
    canvas = smooth(rng.integers(40, 216, (2, 2, 3), dtype=np.uint8), width, height)
    for cells, strength in ((4, 24), (12, 16), (40, 10)):
        coarse = rng.integers(0, 256, (cells, cells), dtype=np.uint8)
        waves = smooth(coarse, width, height)[..., None] / 127.5 - 1
        canvas = canvas + waves * strength * rng.uniform(0.5, 1.5, 3)
    if rng.random() < 0.5:
        angle = rng.uniform(0, math.pi)
        period = rng.uniform(0.06, 0.25) * max(width, height)
        y, x = np.mgrid[:height, :width]
        wave = np.sin((x * math.cos(angle) + y * math.sin(angle)) * 2 * math.pi / period)
        canvas = canvas + wave[..., None] * rng.uniform(-20, 20, 3)
    return canvas.clip(0, 255)


def _place(
    rng: Generator,
    canvas: np.ndarray,
    owner: np.ndarray,
    areas: list[int],
    kind: str,
    image_size: int,
) -> None:
    """Draw one shape where it hides no other too much; give up after some tries."""
    size = owner.shape[1], owner.shape[0]
    for _ in range(12):
        radius = image_size * rng.uniform(0.09, 0.24)
        alpha = coverage(
            kind,
            rng.uniform(0.6 * radius, np.array(size) - 0.6 * radius),
            radius,
            rng.uniform(-MAX_TILT, MAX_TILT),
            size,
            RING_HOLE,
        )
        solid = alpha >= 0.5
        if not solid.any():
            continue
        left = [np.count_nonzero((owner == i) & ~solid) / area for i, area in enumerate(areas)]
        if min(left, default=1.0) < MIN_VISIBLE:
            continue
        owner[solid] = len(areas)
        areas.append(int(solid.sum()))
        canvas += alpha[..., None] * (contrasting_colour(rng, canvas[solid], MIN_CONTRAST) - canvas)
        return


def _crowd(rng: Generator, canvas: np.ndarray, owner: np.ndarray, image_size: int) -> list[Entry]:
    """A group of tiny circles, annotated as one crowd region, where there is room for it."""
    height, width = owner.shape
    side = int(image_size * 0.3)
    x = rng.integers(0, width - side)
    y = rng.integers(0, height - side)
    square = (slice(y, y + side), slice(x, x + side))
    if (owner[square] >= 0).any():
        return []
    color = contrasting_colour(rng, canvas[square].reshape(-1, 3), MIN_CONTRAST)
    region = np.zeros(owner.shape, dtype=bool)
    for _ in range(14):
        radius = side * rng.uniform(0.05, 0.09)
        alpha = coverage(
            "circle",
            (x + rng.uniform(radius, side - radius), y + rng.uniform(radius, side - radius)),
            radius,
            0.0,
            (width, height),
            RING_HOLE,
        )
        canvas += alpha[..., None] * (color - canvas)
        region |= alpha >= 0.5
    return [_annotation(region, 1, 1)]


def _annotation(mask: np.ndarray, category_id: int, iscrowd: int) -> Entry:
    rows, columns = np.nonzero(mask)
    return {
        "category_id": category_id,
        "bbox": [
            int(columns.min()),
            int(rows.min()),
            int(np.ptp(columns)) + 1,
            int(np.ptp(rows)) + 1,
        ],
        "area": int(mask.sum()),
        "iscrowd": iscrowd,
    }


def synthetic_annotations(
    settings: SyntheticConfig, seed: int, num_classes: int | None = None
) -> Annotations:
    """`num_images` images of the canvas' size with `num_boxes` boxes each, a function of (seed,
    image); there are no files. With labels up to `num_classes`.
    """
    height, width = settings.canvas
    boxes = []
    labels = []
    for i in range(settings.num_images):
        draw = np.random.default_rng(derived_seed(seed, "synthetic boxes", i))
        sides = draw.uniform(0.05, 0.5, (settings.num_boxes, 2))
        corners = draw.uniform(0.0, 1.0 - sides)
        shares = np.hstack((corners, corners + sides))
        boxes.append((shares * (width, height, width, height)).astype(np.float32))
        labels.append(draw.integers(settings.num_classes, size=settings.num_boxes))
    names = [f"synthetic-{i}" for i in range(settings.num_images)]
    records = tuple(ImageRecord(i, Path(name), name, width, height) for i, name in enumerate(names))
    named = [{"id": i, "name": f"class {i}"} for i in range(settings.num_classes)]
    nothing = {"images": [], "annotations": [], "categories": named}
    truth = make_ground_truth(nothing, "synthetic data")[0]
    categories = Categories.from_coco(named).padded(num_classes or 0)
    return Annotations(truth, records, boxes, labels, categories, np.empty((0, 2)))


def synthetic_batch(
    data: Annotations, images: Sequence[int], weight: float, seed: int, device: torch.device
) -> Batch:
    """The batch of these images on `device`; their pixels are noise, a function of
    (seed, image).
    """
    samples = []
    for i in images:
        record = data.records[i]
        pixels = noise(record.height, record.width, seed, i)
        boxes = torch.from_numpy(data.boxes[i])
        labels = torch.from_numpy(data.labels[i])
        samples.append(
            Sample(pixels, boxes, labels, record.image_id, (record.height, record.width))
        )
    return collate(samples, samples[0].original_size, weight).to(device)
