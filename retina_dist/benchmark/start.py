"""What a start costs at a data set's size: CPU time and memory before the first step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from retina_dist.base.errors import UserError
from retina_dist.data.buckets import make_buckets
from retina_dist.data.samplers import TrainSampler, repeat_factors
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split

FEW = 64  # images of the set that stands for the imports
OBJECTS = 7.6  # of an image, as in COCO
CLASSES = 80
POINTS = 22  # of an object's outline
PLANNED = 2_000_000  # images of an epoch's plan
RANKS = 1024


class Cost(NamedTuple):
    """CPU seconds and the most memory of a process, in MiB."""

    cpu_s: float
    peak_mib: float


def start_costs(num_images: int) -> dict[str, float]:
    """Print and return what a dry run on a made COCO json costs beyond one on a few images, and
    what a rank of 1,024 pays to plan an epoch of two million images.
    """
    with TemporaryDirectory() as name:
        few, many = Path(name, "few"), Path(name, "many")
        make_set(few, FEW)
        print(f"making a set of {num_images:,} images", flush=True)
        size = make_set(many, num_images)
        least, most = _dry_run(few), _dry_run(many)
        before = _resident_mib()
        data = DetectionData(name="start", format="auto", root=str(many))
        kept = read_split(data, "train")
        costs = {
            "json_mb": round(size / 1e6),
            "cpu_s_beyond_imports": round(most.cpu_s - least.cpu_s, 2),
            "peak_mib": round(most.peak_mib),
            "peak_mib_of_imports": round(least.peak_mib),
            "kept_mib": round(_resident_mib() - before),
            "plan_s": round(_planning_s(), 2),
        }
        del kept
    for key, value in costs.items():
        print(f"  {key:<24}{value:>10}")
    return costs


def make_set(folder: Path, num_images: int) -> int:
    """A COCO json with outlines of objects, and an empty file for each image; the json's bytes."""
    images = folder / "train2017"
    images.mkdir(parents=True)
    for number in range(num_images):
        (images / f"{number:012d}.jpg").touch()
    path = folder / "annotations" / "instances_train2017.json"
    path.parent.mkdir()
    with path.open("w") as file:
        for text in _content(num_images):
            file.write(text)
    return path.stat().st_size


def _content(num_images: int) -> Iterator[str]:
    rng = np.random.default_rng(0)
    yield '{"info": {}, "images": ['
    for number in range(num_images):
        name = f"{number:012d}.jpg"
        entry = {"id": number, "file_name": name, "width": 640, "height": 480}
        yield f"{',' if number else ''}{json.dumps(entry)}"
    yield '], "annotations": ['
    for number in range(int(num_images * OBJECTS)):
        outline = rng.uniform(0, 480, (POINTS, 2)).round(2)
        x, y = outline.min(axis=0)
        width, height = (outline.max(axis=0) - (x, y)).round(2)
        entry = {
            "id": number + 1,
            "segmentation": [outline.ravel().tolist()],
            "image_id": int(rng.integers(num_images)),
            "category_id": int(rng.integers(CLASSES)) + 1,
            "bbox": [x, y, width, height],
            "area": float(width * height),
            "iscrowd": 0,
        }
        yield f"{',' if number else ''}{json.dumps(entry)}"
    categories = [{"id": i + 1, "name": f"class {i}"} for i in range(CLASSES)]
    yield f'], "categories": {json.dumps(categories)}}}'


def _dry_run(root: Path) -> Cost:
    """Of a dry run. Its image files are empty, but their sizes are in the json."""
    command = [sys.executable, "-m", "retina_dist.train", "dry_run=true", f"data.root={root}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError(f"a dry run on {root} failed: {said.decode()[-500:]}.")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _planning_s() -> float:
    """Seconds for buckets, repeat factors and the first step of an epoch."""
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 15, PLANNED)
    labels = np.split(rng.integers(0, CLASSES, counts.sum()), np.cumsum(counts)[:-1])
    sizes = rng.integers(300, 700, (3000, 2))[rng.integers(0, 3000, PLANNED)]
    started = time.perf_counter()
    buckets = make_buckets(sizes, min_sizes=(640, 672, 704, 736, 768, 800), max_size=1333)
    repeats = repeat_factors(labels, 0.05)
    sampler = TrainSampler(
        buckets=buckets, batch_size=16 * RANKS, rank=5, world_size=RANKS, repeats=repeats
    )
    sampler.step(0)
    return time.perf_counter() - started
