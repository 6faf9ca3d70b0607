"""How long does an image take on its way to the network, part by part?

    python -m retina_dist.benchmark data                               made images of 640 x 480
    python -m retina_dist.benchmark data data.root=/data/coco          your own, with your own augmentation

Times are CPU time, which other processes disturb little; files come from the system's cache. All parts take turns, `rounds` times.
The base is Pillow's decoder and a resize in float32, as in torchvision's detectors, into the same batch. Neither normalises.
"""

from __future__ import annotations

import io
import json
import statistics
import tempfile
import time
from collections import deque
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
from retina_dist.config.entry_point import entry_point
from retina_dist.data.images import read_image
from retina_dist.data.module import ImageDataset
from retina_dist.data.samplers import BatchSpec
from retina_dist.data.sources import read
from retina_dist.detection.batch import Batch
from retina_dist.detection.readers.records import ImageRecord
from retina_dist.detection.task import DetectionTask
from retina_dist.run.build import build_strategy

HEIGHT, WIDTH, QUALITY = 480, 640, 90
CONTRAST = (
    37.0  # grey levels, one standard deviation: files then have the mean size of COCO's, 163 kB
)


@dataclass
class DataBenchmarkConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark data`: takes the settings of a training."""

    num_images: int = setting(
        32, "read in each round; without data.root so many are made, 640 x 480", at_least=1
    )
    rounds: int = setting(5, at_least=1)


def make_images(folder: Path, count: int) -> None:
    """`count` JPEGs in folder/images, with seven boxes each in folder/images.json.

    Coloured noise on grey noise whose amplitude falls as 1/f, as in photos (https://doi.org/10.1364/JOSAA.4.002379).
    """
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH))
    frequency[0, 0] = 1.0
    boxes = [
        [left * WIDTH / 8, HEIGHT / 8, WIDTH / 4, HEIGHT / 2 ** (1 + left % 3)] for left in range(7)
    ]
    images = [
        {"id": i, "file_name": f"{i:06d}.jpg", "width": WIDTH, "height": HEIGHT}
        for i in range(1, count + 1)
    ]
    for image in images:
        noise = np.fft.irfft2(
            np.fft.rfft2(rng.normal(size=(3, HEIGHT, WIDTH))) / frequency, s=(HEIGHT, WIDTH)
        )
        mixed = 0.9 * noise[:1] + 0.45 * noise[[1, 2, 0]]
        mixed = (mixed - mixed.mean(axis=(1, 2), keepdims=True)) / mixed.std(
            axis=(1, 2), keepdims=True
        )
        pixels = (128 + CONTRAST * mixed).clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(pixels).save(folder / "images" / str(image["file_name"]), quality=QUALITY)
    pairs = [
        {"image_id": image["id"], "category_id": 1, "bbox": box}
        for image in images
        for box in boxes
    ]
    annotations = [{"id": i, **pair} for i, pair in enumerate(pairs, start=1)]
    coco = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "thing"}],
    }
    (folder / "images.json").write_text(json.dumps(coco))


DECODE = "read and decode"
WHOLE = "whole, up to the batch"
PLAIN = "Pillow, resize in float32, collate"
Part = Callable[[], object]


def benchmark(config: DataBenchmarkConfig) -> dict[str, Any]:
    """Time every part in turns; print and return the figures."""
    torch.set_num_threads(config.trainer.num_threads or 1)
    with tempfile.TemporaryDirectory() as name, build_strategy(config) as strategy:
        folder = Path(name)
        if strategy.world_size > 1:
            raise ConfigError("benchmark data measures one process; start it without a launcher.")
        made = config.data.root is None and config.data.train_annotations is None
        if made:
            make_images(folder, config.num_images)
            data = replace(
                config.data,
                train_annotations=f"{folder}/images.json",
                train_images=f"{folder}/images",
            )
            config = replace(config, data=data)
        task = DetectionTask(config, strategy)
        module: Any = task.build_data()
        specs: list[
            BatchSpec
        ] = []  # as many of the training's first batches as hold so many images
        while sum(len(spec.indices) for spec in specs) < config.num_images:
            specs += module.train_sampler.step(len(specs))[:1]
        records = [
            task.train.records[i % len(task.train.records)] for spec in specs for i in spec.indices
        ]
        size_kb = statistics.mean(len(read(record.path)) for record in records) / 1000
        whose = "made images of 640 x 480" if made else f"images of {config.data.name}"
        what = f"{len(records)} {whose}, {size_kb:.0f} kB a file, {len(specs)} batches, short side {config.data.min_sizes} px"
        what += (
            f"; {strategy.device.type}, {torch.get_num_threads()} threads, {config.rounds} rounds"
        )
        print(f"{what}\n", flush=True)
        parts = _parts(module.train_dataset, specs, records)
        times: dict[str, list[float]] = {name: [] for name in parts}
        for turn in range(config.rounds + 1):  # the first one warms up
            for name, part in parts.items():
                started = time.process_time()
                part()
                times[name] += [(time.process_time() - started) / len(records) * 1e3] * bool(turn)
    print(f"{'ms an image':<44}{'median':>10}{'min':>10}{'max':>10}")
    rows = {}
    for name, values in times.items():
        row = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        print(f"  {name:<42}{row['median']:>10.2f}{row['min']:>10.2f}{row['max']:>10.2f}")
        rows[name] = {key: round(value, 4) for key, value in row.items()}
    ratio = statistics.median(b / a for a, b in zip(times[WHOLE], times[PLAIN], strict=True))
    print(f"{WHOLE}: {ratio:.2f} times as fast as {PLAIN}")
    ratios = {f"{WHOLE} / {PLAIN}": ratio}
    return finish(
        config, "data", ratios, what=what, mean_file_kb=round(size_kb, 1), ms_an_image=rows
    )


def _parts(
    dataset: ImageDataset[Batch], specs: list[BatchSpec], records: list[ImageRecord]
) -> dict[str, Part]:
    """The timed functions by name; each does its part for the images of all `specs`, the `records` in their order."""
    sizes = {spec: dataset[spec].image_sizes[: len(spec.indices)].tolist() for spec in specs}

    def plain() -> None:
        sources = (record.path for record in records)
        for spec in specs:
            batch = torch.zeros(len(spec.indices), 3, *spec.canvas)
            for canvas, (height, width) in zip(batch, sizes[spec], strict=True):
                with Image.open(io.BytesIO(read(next(sources)))) as image:
                    pixels = (
                        torch.from_numpy(np.array(image.convert("RGB")))
                        .permute(2, 0, 1)
                        .float()
                        .div_(255)
                    )
                canvas[:, :height, :width] = interpolate(
                    pixels[None], size=(height, width), mode="bilinear"
                )[0]

    return {
        DECODE: lambda: deque(
            (read_image(each.path, (each.width, each.height)) for each in records), maxlen=0
        ),
        WHOLE: lambda: deque((dataset[spec] for spec in specs), maxlen=0),
        PLAIN: plain,
    }


main = entry_point("benchmark_data", DataBenchmarkConfig)(benchmark)
