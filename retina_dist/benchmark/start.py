"""CPU time and memory that a training needs before its first step, by the size of the data set."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from retina_dist.base.console import heartbeat
from retina_dist.base.errors import UserError, set_status
from retina_dist.data.buckets import make_buckets
from retina_dist.data.samplers import TrainSampler, repeat_factors
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split

FEW = 64  # images of a set whose start costs little more than the imports
OBJECTS = 7.6  # of an image, as in COCO
CLASSES = 80
POINTS = 22  # of an object's outline
PLANNED = 2_000_000  # images of an epoch's plan
RANKS = 1024
STATM = Path("/proc/self/statm")


class Cost(NamedTuple):
    """CPU seconds and the most memory of a process, in MiB."""

    cpu_s: float
    peak_mib: float


def start_costs(num_images: int) -> dict[str, float]:
    """Measure, print and return what a start costs.

    Args:
        num_images: of the generated COCO json.

    Returns CPU seconds of a dry run beyond one on a few images, the peak memory of both in MiB, the
    memory that the annotations keep in MiB, and the seconds in which one rank of 1,024 plans an
    epoch of two million images.

    Memory is measured by Linux's /proc.
    """
    with TemporaryDirectory() as name, heartbeat():
        few = Path(name, "few")
        many = Path(name, "many")
        set_status(f"generating {num_images:,} images")
        make_set(few, FEW)
        size = make_set(many, num_images)
        set_status("dry run")
        least = _dry_run(few)
        most = _dry_run(many)
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
    """Write a COCO json with outlines and empty image files; return the json's size in bytes."""
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
    """The cost of a dry run, the largest so far; the json has the sizes of images."""
    command = [sys.executable, "-m", "retina_dist.train", "dry_run=true", f"data.root={root}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise UserError(f"a dry run on {root} failed: {done.stdout[-500:]}.")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # its peak is that of the largest child
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_s, used.ru_maxrss / 1024)


def _resident_mib() -> float:
    pages = int(STATM.read_text().split()[1])
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
