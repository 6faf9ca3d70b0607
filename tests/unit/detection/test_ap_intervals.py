"""Error bars of AP: one matching, from which every resample follows as from pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from retina_dist.base.errors import DataError
from retina_dist.detection.ap_intervals import rankings, resample
from retina_dist.detection.coco_metrics import evaluate_rows, read_results
from retina_dist.reporting.intervals import Ranking, average_precision, curves

NUM_CLASSES, NUM_IMAGES = 3, 12


def drawn(seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Crowds, boxes on the limits of areas, an image without any; detections with equal scores, over 100 on an image."""
    rng = np.random.default_rng(seed)
    boxes: list[dict[str, Any]] = []
    for _ in range(80):
        side = rng.choice([16.0, 32.0, 33.0, 96.0, 120.0], 2)
        entry = {
            "image_id": int(rng.integers(1, NUM_IMAGES)) * 7,
            "category_id": int(rng.integers(NUM_CLASSES)) + 1,
        }
        entry["bbox"] = [*rng.integers(0, 60, 2).astype(float).tolist(), *side.tolist()]
        boxes.append(
            entry
            | {"id": len(boxes) + 1, "area": float(side.prod()), "iscrowd": int(rng.random() < 0.1)}
        )
    rows = []
    for _ in range(900):
        like = boxes[rng.integers(len(boxes))]
        box = np.array(like["bbox"]) + rng.choice([0.0, 2.0, 9.0], 4)
        image = 7 if rng.random() < 0.4 else like["image_id"]
        rows.append(
            [image, *box, rng.integers(1, 30) / 30, rng.choice([1, 1, like["category_id"]])]
        )
    images = [
        {"id": 7 * (i + 1), "file_name": f"{i}.jpg", "width": 200, "height": 200}
        for i in range(NUM_IMAGES)
    ]
    categories = [{"id": k + 1, "name": f"class {k}"} for k in range(NUM_CLASSES)]
    return {"images": images, "annotations": boxes, "categories": categories}, np.array(rows)


def precision_by_pycocotools(coco: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    """[10, 101, K, 4 areas]."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = json.loads(json.dumps(coco))
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(rows), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"])[:, :, :, :, -1]


def precision_of(ranked: list[list[Ranking]], weights: np.ndarray) -> np.ndarray:
    """The same for weights [N, 1], from the curves."""
    result = -np.ones((10, 101, len(ranked), 4))
    for k, by_area in enumerate(ranked):
        for a, ranking in enumerate(by_area):
            for t, (precision, reached) in enumerate(
                curves(ranking, weights) if len(ranking.objects) else ()
            ):
                values = np.repeat(precision[:, 0], np.diff(reached[:, 0], prepend=0))
                result[t, :, k, a] = np.pad(values, (0, 101 - len(values)))
    return result


def ids_of(coco: dict[str, Any]) -> list[int]:
    return sorted(image["id"] for image in coco["images"])


@pytest.mark.parametrize("seed", range(4))
def test_unweighted_precision_is_pycocotools_to_the_last_bit(seed: int) -> None:
    coco, rows = drawn(seed)
    ours = precision_of(rankings(coco, rows, ids_of(coco)), np.ones((NUM_IMAGES, 1)))
    np.testing.assert_array_equal(ours, precision_by_pycocotools(coco, rows))


def test_unweighted_precision_of_a_real_detector(real_data: Path) -> None:
    coco = json.loads((real_data / "coco-mini/annotations/instances_val2017.json").read_text())
    rows = read_results(real_data / "real-detections/yolox_nano_tiny_coco100_val2017.json", coco)
    ours = precision_of(rankings(coco, rows, ids_of(coco)), np.ones((len(coco["images"]), 1)))
    np.testing.assert_array_equal(ours, precision_by_pycocotools(coco, rows))


@pytest.mark.parametrize("seed", range(3))
def test_a_resample_is_what_pycocotools_says_of_its_images(seed: int) -> None:
    """An image drawn twice is two images with neighbouring ids; scores differ, since the order of equal ones is not the same."""
    coco, rows = drawn(seed)
    rows[:, 5] += 1e-6 * np.arange(len(rows))
    drawn_times = np.random.default_rng(seed).integers(0, 4, NUM_IMAGES)
    images: list[dict[str, Any]] = []
    boxes: list[dict[str, Any]] = []
    parts = []
    for image, times in zip(ids_of(coco), drawn_times.tolist(), strict=True):
        for i in range(times):
            images.append({"id": 100 * image + i})
            own = [entry for entry in coco["annotations"] if entry["image_id"] == image]
            boxes += [
                entry | {"image_id": 100 * image + i, "id": len(boxes) + n + 1}
                for n, entry in enumerate(own)
            ]
            parts.append(rows[rows[:, 0] == image])
            parts[-1][:, 0] = 100 * image + i
    expected = precision_by_pycocotools(
        coco | {"images": images, "annotations": boxes}, np.concatenate(parts)
    )
    expected = np.where((expected > -1).all(axis=1), expected.mean(axis=1), np.nan)  # [T, K, A]
    ranked = rankings(coco, rows, ids_of(coco))
    weights = np.repeat(drawn_times[:, None].astype(np.float32), 3, axis=1)
    for k, by_area in enumerate(ranked):
        for a, ranking in enumerate(by_area):
            found = average_precision(ranking, weights)
            np.testing.assert_allclose(
                found, np.repeat(expected[:, k, a, None], 3, axis=1), atol=1e-6
            )


def test_intervals_hold_the_metrics_and_are_keyed() -> None:
    coco, rows = drawn(0)
    result = evaluate_rows(coco, rows)
    first, again = resample(result), resample(evaluate_rows(coco, rows[::-1].copy()[::-1]))
    assert first.values["coco/AP"] == result.stats["AP"]
    assert {name: first.values[f"coco/AP/{name}"] for name in result.per_class} == result.per_class
    for name in first.values:
        np.testing.assert_array_equal(first.samples[name], again.samples[name])
        bars = first.interval(name)
        assert bars.low < bars.value < bars.high
    worse = rows.copy()
    worse[:, 1] += 12.0
    gain = first.difference(resample(evaluate_rows(coco, worse)), "coco/AP50")
    assert not gain.holds_zero
    assert gain.low > 0
    assert first.difference(first, "coco/AP").holds_zero
    others = coco | {
        "images": [image | {"file_name": f"other/{image['file_name']}"} for image in coco["images"]]
    }
    with pytest.raises(DataError, match="of different images"):
        first.difference(resample(evaluate_rows(others, rows)), "coco/AP")
