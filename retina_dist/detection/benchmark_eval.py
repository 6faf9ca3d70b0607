"""How long does a validation take beside the network?

    python -m retina_dist.benchmark eval                                        the metric and the post-processing
    python -m retina_dist.benchmark eval batches=[]                             the metric alone
    python -m retina_dist.benchmark eval backends=[] batches=[8] device=cuda    the post-processing alone

The metric: every installed evaluator against pycocotools, each in a separate process, from rows [n, 7] in memory to
the numbers, on made-up boxes with the sizes, classes and crowds of COCO's. The post-processing: that of the whole batch against
torchvision's, image by image, on made-up heads' outputs with some 1,200 candidates an image. What is compared takes turns, in
`rounds`, and must agree; ratios are medians over the rounds.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

from retina_dist.benchmark.report import finish
from retina_dist.config.entry_point import entry_point
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.coco_metrics import EVALUATORS, evaluate_rows, installed_backends
from retina_dist.detection.model.retinanet import RetinaNet, build_retinanet
from retina_dist.detection.model.targets import encode
from retina_dist.detection.settings import EvalBenchmarkConfig
from retina_dist.errors import ConfigError
from retina_dist.strategies.devices import resolve_device

REFERENCE = "pycocotools"
IMAGE_SIZE = (480, 640)  # most of COCO's are


def make_boxes(num_boxes: int, num_classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [n, 4] x, y, width, height and classes [n] as unevenly spread as COCO's.

    41 % are small, 34 % medium and 24 % large, as https://cocodataset.org/#detection-eval says of COCO; the logarithm of their
    size is taken for normal, which these shares determine. The commonest class has over a quarter, as people in COCO.
    """
    side = np.exp(rng.normal(3.74, 1.17, num_boxes))
    ratio = np.exp(rng.normal(0, 0.4, num_boxes))
    size = np.stack((side * ratio, side / ratio), axis=1).clip(2, IMAGE_SIZE[::-1])
    corner = rng.random((num_boxes, 2)) * (np.array(IMAGE_SIZE[::-1]) - size)
    weights = 1 / np.arange(1, num_classes + 1) ** 1.1
    return np.hstack((corner, size)).round(2), rng.choice(num_classes, num_boxes, p=weights / weights.sum())


def make_truth(config: EvalBenchmarkConfig, rng: np.random.Generator) -> dict[str, Any]:
    """A COCO dict; some images have many boxes and some none, and 1.2 % are crowds."""
    boxes, classes = make_boxes(config.num_boxes, config.num_classes, rng)
    busy = rng.gamma(1.0, size=config.num_images)
    images = rng.choice(config.num_images, config.num_boxes, p=busy / busy.sum())
    crowds = rng.random(config.num_boxes) < 0.012
    columns = zip(images.tolist(), classes.tolist(), boxes.tolist(), crowds.tolist())
    return {
        "images": [{"id": i + 1, "height": IMAGE_SIZE[0], "width": IMAGE_SIZE[1]} for i in range(config.num_images)],
        "categories": [{"id": k + 1, "name": f"class {k + 1}"} for k in range(config.num_classes)],
        "annotations": [
            {"id": n, "image_id": i + 1, "category_id": k + 1, "bbox": b, "area": b[2] * b[3], "iscrowd": int(crowd)}
            for n, (i, k, b, crowd) in enumerate(columns, start=1)
        ],
    }


def make_rows(config: EvalBenchmarkConfig, truth: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Detections [n, 7] in the order of images: a fifth near a box of the truth, with the better scores, the rest anywhere."""
    count, near = config.num_detections, config.num_detections // 5
    boxes, classes = make_boxes(count, config.num_classes, rng)
    images = rng.integers(config.num_images, size=count)
    if truth["annotations"]:
        of = rng.integers(len(truth["annotations"]), size=near)
        right = [
            np.array([entry[key] for entry in truth["annotations"]]) for key in ("image_id", "bbox", "category_id")
        ]
        images[:near], classes[:near] = right[0][of] - 1, right[2][of] - 1
        boxes[:near] = right[1][of] + rng.normal(0, 0.1, (near, 4)) * np.tile(right[1][of][:, 2:], 2)
    boxes[:, 2:] = boxes[:, 2:].clip(1)
    scores = np.concatenate((rng.beta(2, 2, near), rng.beta(1, 8, count - near))).round(4)  # some are equal
    rows = np.column_stack((images + 1, boxes, scores, classes + 1)).astype(np.float64)
    return rows[np.argsort(rows[:, 0], kind="stable")]


def benchmark_metric(config: EvalBenchmarkConfig) -> list[dict[str, Any]]:
    """A row for each evaluator: seconds, memory, how far its numbers are from pycocotools' and how many times faster it is."""
    names = _usable(config)
    if not names:
        return []
    rng = np.random.default_rng(config.seed)
    truth = make_truth(config, rng)
    rows = make_rows(config, truth, rng)
    print(
        f"metric: {config.num_images} images, {config.num_classes} classes, {config.num_boxes} boxes, {len(rows)} detections"
    )
    seconds: dict[str, list[float]] = {name: [] for name in (REFERENCE, *names)}
    memory, numbers = dict.fromkeys(seconds, 0.0), {}
    for turn in range(config.rounds):
        for name in seconds:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                took, mib, *numbers[name] = process.submit(_evaluate, truth, rows, name, config.num_threads).result()
            seconds[name].append(took)
            memory[name] = max(memory[name], mib)
            print(f"round {turn + 1}: {name}: {took:.2f} s", flush=True)
    table = []
    for name, taken in seconds.items():
        difference = [float(np.abs(a - b).max()) for a, b in zip(numbers[name], numbers[REFERENCE])]
        row = {"backend": name, "seconds": statistics.median(taken), "memory_mib": round(memory[name])}
        row |= {"stats_differ_by": difference[0], "precision_differs_by": difference[1]}
        table.append(row | _ratios([base / own for base, own in zip(seconds[REFERENCE], taken)]))
    print(f"\n{'metric':<24}{'s':>8}{'MiB':>8}{'numbers':>10}{'arrays':>10}   times faster: median (least to most)")
    for row in table:
        print(
            f"{row['backend']:<24}{row['seconds']:>8.2f}{row['memory_mib']:>8}{row['stats_differ_by']:>10.1g}"
            f"{row['precision_differs_by']:>10.1g}   {_in_words(row)}"
        )
    return table


def _usable(config: EvalBenchmarkConfig) -> list[str]:
    for name in config.backends:
        if name not in EVALUATORS:
            raise ConfigError(f"backends={config.backends}: there is no {name}; there are {', '.join(EVALUATORS)}.")
        if name not in installed_backends():
            print(f"{name} left out: not installed; pip install {name}")
    return [name for name in config.backends if name in installed_backends() and name != REFERENCE]


def _evaluate(truth: dict[str, Any], rows: np.ndarray, backend: str, num_threads: int) -> tuple[Any, ...]:
    """In a separate process: seconds, MiB added to the peak memory, the twelve numbers, the precision array."""
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)
    evaluate_rows({**truth, "annotations": []}, rows[:0], backend=backend)  # type: ignore[arg-type]  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    result = evaluate_rows(truth, rows, backend=backend)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return seconds, mib, np.array(list(result.stats.values())), result.precision


@torch.no_grad()
def make_outputs(
    model: RetinaNet, num_images: int, canvas: tuple[int, int], seed: int
) -> tuple[dict[str, Tensor], list[Tensor], Batch]:
    """Heads' outputs as of a trained model: background, and around 20 objects an image anchors that see them by overlap."""
    generator = torch.Generator().manual_seed(seed)
    features = [torch.empty(1, 1, *(-(-side // stride) for side in canvas)) for stride in (8, 16, 32, 64, 128)]
    levels = model.anchors(canvas, features)
    anchors = torch.cat(levels)
    num_classes = model.head.classification_head.num_classes
    logits = torch.randn(num_images, len(anchors), num_classes, generator=generator) - 7
    offsets = torch.randn(num_images, len(anchors), 4, generator=generator) * 0.1
    height, width = canvas
    for image in range(num_images):
        size = torch.rand(20, 2, generator=generator) * 0.3 * torch.tensor([width, height]) + 16
        corner = torch.rand(20, 2, generator=generator) * (torch.tensor([width, height]) - size)
        objects = torch.cat((corner, corner + size), dim=1)
        labels = torch.randint(0, min(num_classes, 20), (20,), generator=generator)
        iou, seen = box_iou(anchors, objects).max(dim=1)
        near = (iou > 0.4).nonzero()[:, 0]
        noise = torch.randn(len(near), 5, generator=generator)
        logits[image, near, labels[seen[near]]] += iou[near] * 14 - 2 + 0.8 * noise[:, 0]
        offsets[image, near] = encode(objects[seen[near]], anchors[near]) + 0.05 * noise[:, 1:]
    sizes = torch.tensor(canvas) * (16 - torch.arange(num_images) % 4)[:, None] // 16
    nothing = torch.zeros(num_images, 1, dtype=torch.int64)
    batch = Batch(
        images=torch.zeros(num_images, 3, 1, 1, dtype=torch.uint8),
        image_sizes=sizes,
        original_sizes=sizes * 3 // 5,
        image_ids=nothing[:, 0],
        boxes=torch.zeros(num_images, 1, 4),
        labels=nothing,
        num_boxes=nothing[:, 0],
    )
    return {"cls_logits": logits, "bbox_regression": offsets}, levels, batch


def image_by_image(
    model: RetinaNet, outputs: dict[str, Tensor], levels: list[Tensor], batch: Batch
) -> list[dict[str, Tensor]]:
    """The same detections by torchvision's own post-processing."""
    counts = [len(level) for level in levels]
    split = {name: list(value.float().split(counts, dim=1)) for name, value in outputs.items()}
    found = model.postprocess_detections(split, [levels] * len(batch), [(h, w) for h, w in batch.image_sizes.tolist()])
    scale = (batch.original_sizes / batch.image_sizes).flip(1).repeat(1, 2)
    return [one | {"boxes": one["boxes"] * factor} for one, factor in zip(found, scale)]


@torch.inference_mode()
def benchmark_post_processing(config: EvalBenchmarkConfig) -> list[dict[str, Any]]:
    """A row for each batch size: milliseconds of both, whether they found the same and how many times faster ours is."""
    if not config.batches:
        return []
    if len(config.canvas) != 2 or min(config.canvas) < 32 or min(config.batches) < 1:
        raise ConfigError(
            f"canvas={config.canvas} and batches={config.batches}: give height and width of 32 px and more, and batches of 1 and "
            "more."
        )
    device = resolve_device(config.device)
    torch.set_num_threads(config.num_threads)
    model = build_retinanet(num_classes=config.num_classes, backbone="resnet18", fpn_channels=32)
    height, width = config.canvas
    print(f"\npost-processing on {device}: {height} x {width}, {config.num_classes} classes")
    table = []
    for size in config.batches:
        outputs, levels, batch = make_outputs(model, size, (height, width), config.seed)
        outputs = {name: value.to(device) for name, value in outputs.items()}
        levels, batch = [level.to(device) for level in levels], batch.to(device)
        ways: tuple[Callable[[], Any], ...] = (
            lambda: model.detections(outputs, levels, batch),  # noqa: B023 - called at once
            lambda: image_by_image(model, outputs, levels, batch),  # noqa: B023
        )
        same = _same(*(way() for way in ways))  # and warm
        taken = [[_milliseconds(way, device) for way in ways] for _ in range(config.rounds)]
        batched, looped = (statistics.median(values) for values in zip(*taken))
        row = {"batch": size, "batched_ms": round(batched, 2), "image_by_image_ms": round(looped, 2), "same": same}
        table.append(row | _ratios([theirs / ours for ours, theirs in taken]))
    print(f"{'batch':>5}{'batched ms':>12}{'torchvision ms':>16}{'same':>6}   times faster: median (least to most)")
    for row in table:
        print(
            f"{row['batch']:>5}{row['batched_ms']:>12.1f}{row['image_by_image_ms']:>16.1f}"
            f"{'yes' if row['same'] else 'NO':>6}   {_in_words(row)}"
        )
    return table


def _same(found: list[Detections], expected: list[dict[str, Tensor]]) -> bool:
    """Boxes and labels to the bit, scores to the last one or two; those of equal scores in any order."""
    for one, other in zip(found, expected):
        boxes = [
            torch.column_stack((x["boxes"], x["labels"])).unique(dim=0)  # type: ignore[index]
            for x in (one, other)
        ]
        if not torch.equal(*boxes) or not torch.allclose(one["scores"], other["scores"], rtol=2.5e-7, atol=0):
            return False
    return True


def _milliseconds(way: Callable[[], Any], device: torch.device) -> float:
    started = time.perf_counter()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) * 1000


def _ratios(each: list[float]) -> dict[str, float]:
    return {"ratio": statistics.median(each), "least": min(each), "most": max(each)}


def _in_words(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.1f} ({row['least']:.1f} to {row['most']:.1f})"


@entry_point("benchmark_eval")
def main(config: EvalBenchmarkConfig) -> None:
    """Both tables."""
    metric = benchmark_metric(config)
    post_processing = benchmark_post_processing(config)
    if not metric and not post_processing:
        raise ConfigError("there is nothing to measure; name backends=[…] that are installed, or batches=[…].")
    ratios = {f"metric {row['backend']}": row["ratio"] for row in metric if row["backend"] != REFERENCE}
    ratios |= {f"post-processing {row['batch']}": row["ratio"] for row in post_processing}
    finish(config, "eval", ratios, metric=metric, post_processing=post_processing)


if __name__ == "__main__":
    main()
