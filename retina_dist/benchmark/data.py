"""How long does an image take on its way to the network, part by part?

    python -m retina_dist.benchmark data                               made images of 640 x 480
    python -m retina_dist.benchmark data data.root=/data/coco          your own, with your own augmentation

What a part takes is the processor's time, so that other processes disturb it little.
Files have been read before: the system's cache and not the disk is measured. All parts take turns, `rounds` times. What is
compared with: Pillow's decoder and a resize in float32, as torchvision's detectors do it, into the same batch. Neither normalises.
"""

from __future__ import annotations

import copy
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from retina_dist.benchmark.report import BenchmarkConfig, finish
from retina_dist.config.entry_point import entry_point
from retina_dist.data.cache import DecodedCache
from retina_dist.data.images import read_image
from retina_dist.data.samplers import BatchSpec
from retina_dist.data.sources import Source, read, sizes_of
from retina_dist.detection.data.dataset import CocoDataModule
from retina_dist.detection.task import DetectionTask
from retina_dist.errors import ConfigError
from retina_dist.run.build import build_strategy
from retina_dist.settings import setting

HEIGHT, WIDTH, QUALITY = 480, 640, 90
CONTRAST = 37.0  # grey levels, one standard deviation: files then have the mean size of COCO's, 163 kB
MEASURED = 4  # times the images of the parts, for the data loader


@dataclass
class DataBenchmarkConfig(BenchmarkConfig):
    """`python -m retina_dist.benchmark data`: takes the settings of a training."""

    num_images: int = setting(
        32, "read in each round; without data.root or data.train_annotations so many are made, 640 x 480", at_least=1
    )
    rounds: int = setting(5, at_least=1)
    workers: list[int] = setting([0, 1, 2])


def make_images(folder: Path, count: int) -> None:
    """`count` JPEGs in folder/images, with seven boxes each in folder/images.json.

    Coloured noise on grey noise whose amplitude falls as 1/f, as that of photos does (https://doi.org/10.1364/JOSAA.4.002379).
    """
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH))
    frequency[0, 0] = 1.0
    boxes = [[left * WIDTH / 8, HEIGHT / 8, WIDTH / 4, HEIGHT / 2 ** (1 + left % 3)] for left in range(7)]
    images = [{"id": i, "file_name": f"{i:06d}.jpg", "width": WIDTH, "height": HEIGHT} for i in range(1, count + 1)]
    for image in images:
        noise = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(3, HEIGHT, WIDTH))) / frequency, s=(HEIGHT, WIDTH))
        mixed = 0.9 * noise[:1] + 0.45 * noise[[1, 2, 0]]
        mixed = (mixed - mixed.mean(axis=(1, 2), keepdims=True)) / mixed.std(axis=(1, 2), keepdims=True)
        pixels = (128 + CONTRAST * mixed).clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(pixels).save(folder / "images" / str(image["file_name"]), quality=QUALITY)
    pairs = [{"image_id": image["id"], "category_id": 1, "bbox": box} for image in images for box in boxes]
    annotations = [{"id": i, **pair} for i, pair in enumerate(pairs, start=1)]
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "images.json").write_text(json.dumps(coco))


DECODE, CACHED = "read and decode", "read from data.cache"
WHOLE = "whole, up to the batch"
PLAIN = "Pillow, resize in float32, collate"
COMPARED = ((WHOLE, PLAIN), (CACHED, DECODE))  # which is faster, and than what


def benchmark(config: DataBenchmarkConfig) -> dict[str, Any]:
    """Time every part and every number of data workers in turns; print and return the figures."""
    torch.set_num_threads(config.trainer.num_threads or 1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        strategy = stack.enter_context(build_strategy(config))
        if strategy.world_size > 1:
            raise ConfigError("benchmark data measures one process; start it without a launcher.")
        made = config.data.root is None and config.data.train_annotations is None
        if made:
            make_images(folder, config.num_images)
            data = replace(config.data, train_annotations=f"{folder}/images.json", train_images=f"{folder}/images")
            config = replace(config, data=data)
        task = DetectionTask(config, strategy)
        module = _module(task, cache=None)
        specs: list[BatchSpec] = []  # as many of the training's first batches as hold so many images
        while sum(len(spec.indices) for spec in specs) < config.num_images:
            specs += module.train_sampler.step(len(specs))[:1]
        records = [task.train.records[i] for spec in specs for i in spec.indices]
        size_kb = statistics.mean(sizes_of([record.path for record in records])) / 1000
        whose = "made images of 640 x 480" if made else f"images of {config.data.name}"
        what = f"{len(records)} {whose}, {size_kb:.0f} kB a file, {len(specs)} batches, short side {config.data.min_sizes} px"
        how = f"{strategy.device.type}, {torch.get_num_threads()} threads, {config.rounds} rounds"
        print(f"{what}; {how}\n", flush=True)

        files = [(record.path, (record.width, record.height)) for record in records]
        parts = _parts(module, specs, files, DecodedCache(folder / "cache"))
        times = _in_turns(parts, len(records), config.rounds)
        rows = _print_table("ms an image", times)
        ratios = {
            f"{name} / {other}": statistics.median(b / a for a, b in zip(times[name], times[other], strict=True))
            for name, other in COMPARED
        }
        print("\ntimes as fast as")
        for name, ratio in ratios.items():
            print(f"  {name:<76}{ratio:>6.2f}")
        print()
        speeds = _print_table("images a second", _throughput(task, config.workers, config.rounds, len(records)))
    facts = {"mean_file_kb": round(size_kb, 1), "ms_an_image": rows, "images_per_s": speeds}
    return finish(config, "data", ratios, what=f"{what}; {how}", **facts)


def _module(task: DetectionTask, **data: Any) -> CocoDataModule:
    """The data module of the task's settings with others of `data`."""
    other = copy.copy(task)
    other.config = replace(task.config, data=replace(task.config.data, **data))
    return other.build_image_data()


def _parts(
    module: CocoDataModule, specs: list[BatchSpec], files: Sequence[tuple[Source, tuple[int, int]]], cache: DecodedCache
) -> dict[str, Callable[[], object]]:
    """The timed functions by name; each does its part for the images of all `specs`, with `files` in the same order."""
    dataset = module.train_dataset
    for file in files:
        cache.read(*file)
    sizes = {spec: dataset[spec].image_sizes[: len(spec.indices)].tolist() for spec in specs}

    def plain() -> None:
        sources = iter(files)
        for spec in specs:
            batch = torch.zeros(len(spec.indices), 3, *spec.canvas)
            for canvas, (height, width) in zip(batch, sizes[spec], strict=True):
                with Image.open(io.BytesIO(read(next(sources)[0]))) as image:
                    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float().div_(255)
                canvas[:, :height, :width] = interpolate(pixels[None], size=(height, width), mode="bilinear")[0]

    return {
        DECODE: lambda: _each(read_image, files),
        CACHED: lambda: _each(cache.read, files),
        WHOLE: lambda: _each(dataset.__getitem__, ((spec,) for spec in specs)),
        PLAIN: plain,
    }


def _each(function: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Call it for each, and let go of what it returns as a reader would."""
    for one in arguments:
        function(*one)


def _in_turns(parts: dict[str, Callable[[], object]], count: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds an image of each part in each round, after one that warms up."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(rounds + 1):
        for name, part in parts.items():
            started = time.process_time()
            part()
            if turn:
                times[name].append((time.process_time() - started) / count * 1e3)
    return times


def _throughput(task: DetectionTask, workers: list[int], rounds: int, count: int) -> dict[str, list[float]]:
    """Images a second of the training's data loader with nobody to keep it waiting, by number of data workers."""
    speeds: dict[str, list[float]] = {f"data loader, num_workers={n}": [] for n in workers}
    for _ in range(rounds):
        for name, n in zip(speeds, workers, strict=True):
            module = _module(task, num_workers=n)
            warmup = 2 * n + 1  # steps; by then all workers have started, and what they read ahead meanwhile is gone
            num_steps = -(-MEASURED * count // task.config.data.batch_size)
            steps = module.train_steps(0, warmup + num_steps)
            for _ in range(warmup):
                next(steps)
            started = time.perf_counter()
            images = sum(len(batch.real_rows()) for batches in steps for batch in batches)
            speeds[name].append(images / (time.perf_counter() - started))
    return speeds


def _print_table(title: str, figures: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Print and return median, minimum and maximum of each row."""
    print(f"{title:<44}{'median':>10}{'min':>10}{'max':>10}")
    rows = {}
    for name, values in figures.items():
        row = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        print(f"  {name:<42}{row['median']:>10.2f}{row['min']:>10.2f}{row['max']:>10.2f}", flush=True)
        rows[name] = {key: round(value, 4) for key, value in row.items()}
    return rows


@entry_point("benchmark_data", DataBenchmarkConfig)
def main(config: DataBenchmarkConfig) -> Any:
    """The tables."""
    benchmark(config)


if __name__ == "__main__":
    main()
