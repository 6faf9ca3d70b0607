"""How long does an image take on its way to the network, part by part?

    python -m retina_dist.benchmark data                           made images of 640 x 480
    python -m retina_dist.benchmark data data.root=/data/coco      your own, as they are augmented
    python -m retina_dist.benchmark data annotations=118000        a start at COCO's size

Times are CPU time, which other processes disturb little; files come from the system's cache. All
parts take turns, `rounds` times. The base is Pillow's decoder and a resize in float32, as in
torchvision's detectors, into the same batch. Neither normalises.
"""

import io
import json
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import setting
from retina_dist.benchmark.report import BenchmarkConfig, finish
from retina_dist.benchmark.start import start_costs
from retina_dist.config.entry_point import entry_point
from retina_dist.data.images import read_image
from retina_dist.data.module import ImageDataset
from retina_dist.data.samplers import BatchSpec
from retina_dist.data.sources import read
from retina_dist.detection.batch import Batch
from retina_dist.detection.readers.records import ImageRecord
from retina_dist.detection.task import DetectionTask
from retina_dist.run.build import build_strategy

HEIGHT = 480
WIDTH = 640
JPEG_QUALITY = 90
# Of an octave, in grey levels: files then have the mean size of COCO's, 163 kB.
CONTRAST = 23.2


@dataclass
class DataBenchmarkConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark data`: takes the settings of a training."""

    num_images: int = setting(
        32, "read in each round; without data.root so many are made, 640 x 480", at_least=1
    )
    rounds: int = setting(5, at_least=1)
    annotations: int | None = setting(
        None, "measure a start on a made COCO json of so many images instead", at_least=1
    )


def make_images(folder: Path, count: int) -> None:
    """`count` JPEGs in folder/images, with seven boxes each in folder/images.json.

    The amplitude of their noise falls as 1/f, as in photos
    (https://doi.org/10.1364/JOSAA.4.002379).
    """
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    images = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        name = f"{number:06d}.jpg"
        _photo_like(rng).save(folder / "images" / name, quality=JPEG_QUALITY)
        images.append({"id": number, "file_name": name, "width": WIDTH, "height": HEIGHT})
        for left in range(7):
            box = [left * WIDTH / 8, HEIGHT / 8, WIDTH / 4, HEIGHT / 2 ** (1 + left % 3)]
            entry = {"image_id": number, "category_id": 1, "bbox": box}
            annotations.append(entry | {"id": len(annotations) + 1})
    categories = [{"id": 1, "name": "thing"}]
    coco = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "images.json").write_text(json.dumps(coco))


def _photo_like(rng: np.random.Generator) -> Image.Image:
    """Noise in which each octave of frequencies is as strong as the others."""
    levels = np.full((HEIGHT, WIDTH, 3), 128.0)
    for octave in range(9):
        shape = (math.ceil(HEIGHT / 2**octave), math.ceil(WIDTH / 2**octave), 3)
        noise = Image.fromarray(rng.integers(256, size=shape, dtype=np.uint8))
        levels += CONTRAST * (np.asarray(noise.resize((WIDTH, HEIGHT))) / 127.5 - 1)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


DECODE = "read and decode"
WHOLE = "whole, up to the batch"
PLAIN = "Pillow, resize in float32, collate"
Part = Callable[[], object]


def benchmark(config: DataBenchmarkConfig) -> dict[str, Any]:
    """Time every part in turns, or a start; print and return the figures."""
    if config.annotations:
        return finish(config, "start", {}, start=start_costs(config.annotations))
    torch.set_num_threads(config.trainer.num_threads or 1)
    with tempfile.TemporaryDirectory() as name, build_strategy(config) as strategy:
        if strategy.world_size > 1:
            raise ConfigError("benchmark data measures one process; start it without a launcher.")
        whose = f"images of {config.data.name}"
        if config.data.root is None and config.data.train_annotations is None:
            whose = f"made images of {WIDTH} x {HEIGHT}"
            make_images(Path(name), config.num_images)
            made = {"train_annotations": f"{name}/images.json", "train_images": f"{name}/images"}
            config = replace(config, data=config.data.with_values(**made))
        task = DetectionTask(config, strategy)
        module: Any = task.build_data()
        # As many of the training's first batches as hold so many images.
        specs: list[BatchSpec] = []
        records: list[ImageRecord] = []
        while len(records) < config.num_images:
            spec = module.train_sampler.step(len(specs))[0]
            specs.append(spec)
            for index in spec.indices:
                records.append(task.train.records[index % len(task.train.records)])

        size_kb = statistics.mean(len(read(record.path)) for record in records) / 1000
        what = (
            f"{len(records)} {whose}, {size_kb:.0f} kB a file, {len(specs)} batches, "
            f"short side {config.data.min_sizes} px; {strategy.device.type}, "
            f"{torch.get_num_threads()} threads, {config.rounds} rounds"
        )
        print(f"{what}\n", flush=True)
        times = _time_in_turns(_parts(module.train_dataset, specs, records), config.rounds)

    print(f"{'ms an image':<44}{'median':>10}{'min':>10}{'max':>10}")
    rows = {}
    for name, seconds in times.items():
        values = np.quantile(seconds, (0.5, 0, 1)) * 1000 / len(records)
        row = dict(zip(("median", "min", "max"), values.round(4).tolist(), strict=True))
        print(f"  {name:<42}{row['median']:>10.2f}{row['min']:>10.2f}{row['max']:>10.2f}")
        rows[name] = row
    ratio = float(np.median(np.divide(times[PLAIN], times[WHOLE])))
    print(f"{WHOLE}: {ratio:.2f} times as fast as {PLAIN}")
    return finish(
        config,
        "data",
        {f"{WHOLE} / {PLAIN}": ratio},
        what=what,
        mean_file_kb=round(size_kb, 1),
        ms_an_image=rows,
    )


def _time_in_turns(parts: dict[str, Part], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each part in each round, after one round that warms up."""
    times: dict[str, list[float]] = defaultdict(list)
    for turn in range(rounds + 1):
        for name, part in parts.items():
            started = time.process_time()
            part()
            if turn > 0:
                times[name].append(time.process_time() - started)
    return times


def _parts(
    dataset: ImageDataset[Batch], specs: list[BatchSpec], records: list[ImageRecord]
) -> dict[str, Part]:
    """The timed functions by name; each does its part for the `records` of all `specs`."""
    sizes = {spec: dataset[spec].image_sizes[: len(spec.indices)].tolist() for spec in specs}

    def decode() -> None:
        for each in records:
            read_image(each.path, (each.width, each.height))

    def whole() -> None:
        for spec in specs:
            _ = dataset[spec]

    def plain() -> None:
        sources = (record.path for record in records)
        for spec in specs:
            batch = torch.zeros(len(spec.indices), 3, *spec.padded_shape)
            for canvas, size in zip(batch, sizes[spec], strict=True):
                with Image.open(io.BytesIO(read(next(sources)))) as image:
                    pixels = torch.from_numpy(np.array(image.convert("RGB")))
                scaled = pixels.permute(2, 0, 1).float().div_(255)
                resized = interpolate(scaled[None], size=size, mode="bilinear")[0]
                height, width = size
                canvas[:, :height, :width] = resized

    return {DECODE: decode, WHOLE: whole, PLAIN: plain}


main = entry_point("benchmark_data", DataBenchmarkConfig)(benchmark)
