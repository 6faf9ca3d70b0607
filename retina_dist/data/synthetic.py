"""Data sets that need no download: files of drawn shapes, and random batches that lie on the
device.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.files import parse_path, read_bytes
from retina_dist.base.seeding import derived_seed
from retina_dist.data.samplers import divide_up, own_slots

AnyBatch = TypeVar("AnyBatch")


def noise(height: int, width: int, seed: int, image: int) -> Tensor:
    """[3, height, width] uint8 on the CPU, uniform; a function of (seed, image)."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "synthetic pixels", image))
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


class SyntheticData(Generic[AnyBatch]):
    """The same micro-batches at every step, made once; a `TaskData`.

    `make_batch(images, weight)` makes the batch of these images, numbers below `num_images`, on the
    device; `weight` is its share in the step, see `TrainSampler`. An image must not depend on the
    others of its batch, so that any number of ranks trains on the same `batch_size` images. Raises
    ConfigError where a micro-batch would have none.
    """

    def __init__(
        self,
        make_batch: Callable[[Sequence[int], float], AnyBatch],
        *,
        num_images: int,
        batch_size: int,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
        virtual_ranks: int | None = None,
    ) -> None:
        num_slots = virtual_ranks or world_size
        self.batch_size = batch_size
        self.steps_per_epoch = divide_up(num_images, batch_size)
        if batch_size < world_size * accumulate:
            raise ConfigError(
                f"data.batch_size={batch_size} is below the {world_size} x {accumulate} "
                "micro-batches of a step; raise it."
            )
        images = np.arange(batch_size) % num_images
        self.batches: list[AnyBatch] = []
        for group in np.array_split(images, accumulate):
            for slot in own_slots(group, num_slots, rank, world_size):
                weight = len(slot) * num_slots / batch_size
                self.batches.append(make_batch(slot.tolist(), weight))

    def train_steps(self, start: int, stop: int) -> Iterator[Sequence[AnyBatch]]:
        """The micro-batches, once for each step from `start` up to `stop`."""
        for _ in range(start, stop):
            yield self.batches

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, images of that epoch already consumed) before optimizer step `step`."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return epoch, index * self.batch_size


def folder_to_draw(root: str | None, key: str) -> Path:
    """The folder that `data.root` names, into which the setting `key` draws.

    Raises ConfigError for none and for a URL.
    """
    folder = parse_path(root) if root is not None else None
    if not isinstance(folder, Path):
        raise ConfigError(f"{key} draws into a local folder, not into data.root={root}; give one.")
    return folder


def draw_once(
    root: Path, settings: Mapping[str, int], write: Callable[[Path], None], manifest: str
) -> None:
    """Let `write` fill a temporary folder that becomes `root`.

    The file `manifest` in it holds the `settings`.

    A folder with the same settings is left as it is. Raises DataError for one with other settings,
    and for a folder that was not drawn. Several processes may call it at once.
    """
    if root.exists():
        _check_settings(root, settings, manifest)
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{root.name}.tmp", dir=root.parent))
    try:
        temporary.chmod(0o755)
        write(temporary)
        (temporary / manifest).write_text(json.dumps(settings, indent=1) + "\n")
        try:
            os.rename(temporary, root)
        except OSError:  # another process was faster
            _check_settings(root, settings, manifest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_settings(root: Path, settings: Mapping[str, int], manifest: str) -> None:
    try:
        drawn = dict(json.loads(read_bytes(root / manifest)))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(
            f"data.root={root} exists and has no {manifest}; give data=auto, or data=folders for "
            "classes, to read it, or a folder to draw into."
        ) from error
    if drawn == settings:
        return
    others = []
    for key, value in settings.items():
        if drawn.get(key) != value:
            others.append(f"{key} {drawn.get(key)}, not {value}")
    raise DataError(
        f"data.root={root} was drawn with other settings ({', '.join(others)}); "
        "give another, or delete this one."
    )


SUPERSAMPLE = 3  # drawn larger and reduced, for smooth edges
# Corners at equal angles, at these radii in turn; the first one up, or a flat side up where there
# are four.
REGULAR = {"square": (4, (1.0,)), "triangle": (3, (1.0,)), "star": (10, (1.0, 0.42))}
ARM = [(0.3, 0.3), (0.3, 0.95), (-0.3, 0.95)]  # of a cross, from the corner before it


def coverage(
    kind: str,
    centre: Sequence[float] | np.ndarray,
    radius: float,
    angle: float,
    size: tuple[int, int],
    hole: float,
) -> np.ndarray:
    """Coverage 0..1 of each pixel, [h, w], of an image of `size` (width, height).

    `hole` is the share of a ring's radius.
    """
    width, height = size
    image = Image.new("L", (width * SUPERSAMPLE, height * SUPERSAMPLE))
    draw = ImageDraw.Draw(image)
    cx = centre[0] * SUPERSAMPLE
    cy = centre[1] * SUPERSAMPLE
    r = radius * SUPERSAMPLE
    if kind in ("circle", "ring"):
        draw.circle((cx, cy), r, fill=255)
        if kind == "ring":
            draw.circle((cx, cy), hole * r, fill=0)
    else:
        cos = math.cos(angle)
        sin = math.sin(angle)
        corners = []
        for x, y in outline(kind):
            corners.append((cx + r * (x * cos - y * sin), cy + r * (x * sin + y * cos)))
        draw.polygon(corners, fill=255)
    return np.asarray(image.resize((width, height), Image.Resampling.BOX), dtype=np.float64) / 255


def outline(kind: str) -> list[tuple[float, float]]:
    """The corners of a shape of radius 1 around the origin."""
    corners = []
    if kind == "cross":
        arm = ARM
        for _ in range(4):
            corners += arm
            arm = [(-y, x) for x, y in arm]  # a quarter turn
        return corners
    count, radii = REGULAR[kind]
    first = 0.5 if count == 4 else 0.0  # of the turns; a flat side up
    for i in range(count):
        turn = 2 * math.pi * (i + first) / count
        radius = radii[i % len(radii)]
        corners.append((radius * math.sin(turn), -radius * math.cos(turn)))
    return corners


def contrasting_colour(rng: np.random.Generator, under: np.ndarray, least: float) -> np.ndarray:
    """A colour at least `least` grey levels (Euclidean) from the mean of the pixels [n, 3] that it
    covers.
    """
    mean = under.mean(axis=0)
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.linalg.norm(colour - mean) >= least:
            return colour


def smooth(coarse: np.ndarray, width: int, height: int) -> np.ndarray:
    """A few uint8 values, enlarged to float64 [height, width] or [height, width, 3]."""
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image, dtype=np.float64)


def grainy(rng: np.random.Generator, canvas: np.ndarray) -> Image.Image:
    """The image of float RGB [h, w, 3], with a little noise."""
    grains = canvas + rng.normal(0, 4, canvas.shape)
    return Image.fromarray(grains.clip(0, 255).astype(np.uint8))
