"""COCO's numbers: against the official ones, against pycocotools, and where nothing is there to count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from retina_dist.detection.coco_metrics import (
    EVALUATORS,
    STATS,
    detections_to_rows,
    evaluate_rows,
    installed_backends,
    read_results,
    rows_of_results,
    write_results,
)
from retina_dist.detection.evaluation import evaluate
from retina_dist.detection.readers.categories import Categories
from retina_dist.errors import ConfigError, DataError
from retina_dist.evaluate import EvaluateConfig

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(name not in installed_backends(), reason=f"{name} is not installed"))
    for name in EVALUATORS
]
BIG_ID = 2**40 + 1  # does not fit float32


def ground_truth() -> dict[str, Any]:
    """Two images and an empty one; classes 3 (two boxes), 7 (one box and a crowd) and 9 (none)."""

    def box(number: int, image: int, category: int, bbox: list[float], crowd: int = 0) -> dict[str, Any]:
        area = bbox[2] * bbox[3]
        return {"id": number, "image_id": image, "category_id": category, "bbox": bbox, "area": area, "iscrowd": crowd}

    return {
        "images": [{"id": i, "width": 200, "height": 200} for i in (1, BIG_ID, 5)],
        "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}, {"id": 9, "name": "newt"}],
        "annotations": [
            box(1, 1, 3, [10, 10, 50, 50]),
            box(2, BIG_ID, 3, [20, 20, 40, 100]),
            box(3, 1, 7, [100, 100, 20, 20]),
            box(4, BIG_ID, 7, [0, 0, 100, 100], crowd=1),
        ],
    }


def row(image: int, bbox: list[float], score: float, category: int) -> list[float]:
    return [image, *bbox, score, category]


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    rows = np.array(
        [
            row(1, [10, 10, 50, 50], 0.9, 3),  # exact
            row(BIG_ID, [20, 20, 40, 60], 0.8, 3),  # IoU 0.6 of the second
            row(BIG_ID, [10, 10, 50, 50], 0.7, 7),  # inside the crowd: neither right nor wrong
        ],
        dtype=np.float64,
    )
    result = evaluate_rows(ground_truth(), rows, backend=backend)  # type: ignore[arg-type]
    # Of ten thresholds, three (.50, .55, .60) see both cats and seven only the first: 51 of 101 recall points.
    assert result.per_class["cat"] == pytest.approx((3 * 1 + 7 * 51 / 101) / 10)
    assert result.per_class["dog"] == 0.0
    assert result.per_class["newt"] is None
    assert result.stats["AP50"] == pytest.approx(0.5)
    assert result.precision.shape == (10, 101, 3)
    assert set(result.to_dict()) == {*STATS, "per_class_AP"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(5))
def test_random_cases_equal_pycocotools_on_a_results_json(backend: str, seed: int, tmp_path: Path) -> None:
    """Many boxes, crowds, ties and over 100 detections an image, through json and loadRes."""
    rng = np.random.default_rng(seed)
    truth = ground_truth()
    truth["images"] = [{"id": i, "width": 200, "height": 200} for i in range(6)]
    truth["annotations"] = []
    for number in range(1, 60):
        size = rng.uniform(2, 120, 2)
        truth["annotations"].append(
            {
                "id": number,
                "image_id": int(rng.integers(5)),
                "category_id": int(rng.choice([3, 7])),
                "bbox": [*rng.uniform(0, 80, 2), *size],
                "area": float(size.prod()),
                "iscrowd": int(rng.random() < 0.1),
            }
        )
    entries = []
    for entry in truth["annotations"] * 12:
        box = np.array(entry["bbox"]) + rng.normal(0, 6, 4)
        box[2:] = box[2:].clip(1)
        score = float(rng.integers(1, 20) / 20)
        entries.append({**{k: entry[k] for k in ("image_id", "category_id")}, "bbox": box.tolist(), "score": score})
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    (tmp_path / "results.json").write_text(json.dumps(entries))
    reference = COCO(str(tmp_path / "truth.json"))
    expected = COCOeval(reference, reference.loadRes(str(tmp_path / "results.json")), "bbox")
    expected.evaluate()
    expected.accumulate()
    expected.summarize()
    rows = rows_of_results(read_results(tmp_path / "results.json"), truth)
    result = evaluate_rows(truth, rows, backend=backend)  # type: ignore[arg-type]
    np.testing.assert_allclose(list(result.stats.values()), expected.stats, rtol=0, atol=0)
    np.testing.assert_allclose(result.precision, expected.eval["precision"][:, :, :, 0, -1], rtol=0, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_official_numbers(real_data: Path, backend: str) -> None:
    folder = real_data / "cocoapi-reference"
    truth = json.loads((folder / "instances_val2014_100.json").read_text())
    expected = json.loads((folder / "expected.json").read_text())["bbox"]
    rows = rows_of_results(read_results(folder / "instances_val2014_fakebbox100_results.json"), truth)
    result = evaluate_rows(truth, rows, backend=backend)  # type: ignore[arg-type]
    for name, value in expected.items():
        assert result.stats[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "annotations"),
    [
        ("yolox_nano_tiny_coco100_val2017", "instances_val2017.json"),
        ("yolox_nano_coco128_train2017", "instances_train2017.json"),
    ],
)
def test_a_real_detector(real_data: Path, backend: str, name: str, annotations: str) -> None:
    truth = json.loads((real_data / "coco-mini" / "annotations" / annotations).read_text())
    expected = json.loads((real_data / "real-detections" / "expected.json").read_text())[name]
    rows = rows_of_results(read_results(real_data / "real-detections" / f"{name}.json"), truth)
    result = evaluate_rows(truth, rows, backend=backend)  # type: ignore[arg-type]
    for key in STATS:
        assert result.stats[key] == pytest.approx(expected[key], abs=1e-9), key
    names = {str(c["id"]): c["name"] for c in truth["categories"]}
    compared = 0
    for category_id, value in expected["per_class_AP"].items():
        ours = result.per_class[names[category_id]]
        if value is None or value == -1:
            assert ours is None
        else:
            assert ours == pytest.approx(value, abs=1e-9)
            compared += 1
    assert compared > 20


def test_rows_of_detections_and_back_through_a_file(tmp_path: Path) -> None:
    categories = Categories((3, -1, 9), ("cat", "", "newt"))
    found = {
        "boxes": torch.tensor([[1.0, 2.0, 4.0, 8.0], [0.0, 0.0, 5.0, 5.0], [0.0, 0.0, 1.0, 1.0]]),
        "scores": torch.tensor([0.5, 0.25, 0.1]),
        "labels": torch.tensor([2, 0, 1]),  # label 1 stands for no category
    }
    rows = detections_to_rows([found], [BIG_ID], categories)  # type: ignore[list-item]
    assert rows.tolist() == [[BIG_ID, 1, 2, 3, 6, 0.5, 9], [BIG_ID, 0, 0, 5, 5, 0.25, 3]]
    write_results(rows, tmp_path / "results.json")
    assert np.array_equal(rows_of_results(read_results(tmp_path / "results.json"), ground_truth()), rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("{}", "no list"),
        ("[" + "1" * 5000 + "]", "cannot be read"),
        ('{"annotations": [], "categories": [{"id": 1}]}', "categories that cannot be read"),
        ('{"annotations": [], "images": [3]}', "images or categories that cannot be read"),
        ('{"annotations": [{"image_id": 1, "category_id": 3, "bbox": [1,2,3,4]}]}', "entry 0 .* and score"),
        ('[{"image_id": 1}]', "entry 0"),
        ('[{"image_id": 2, "category_id": 3, "bbox": [1,2,3,4], "score": 1}]', "image 2"),
        ('[{"image_id": 1, "category_id": 4, "bbox": [1,2,3,4], "score": 1}]', "category 4"),
        ('[{"image_id": 1, "category_id": 3, "bbox": [1,2,3], "score": 1}]', "entry 0"),
        ('[{"image_id": 1, "category_id": 3, "bbox": [1,2,3,4], "score": NaN}]', "entry 0"),
        ('[{"image_id": 1, "category_id": 3, "bbox": [1,2,3,Infinity], "score": 1}]', "entry 0"),
        ('[{"image_id": 1, "category_id": null, "bbox": [1,2,3,4], "score": null}]', "entry 0"),
        ('[{"image_id": [1], "category_id": 3, "bbox": [1,2,3,4], "score": 1}]', "entry 0"),
        ('[{"image_id": 1, "category_id": 3, "bbox": [1,2,3,"x"], "score": 1}]', "entry 0"),
    ],
)
def test_wrong_results_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(DataError, match=message):
        rows_of_results(read_results(tmp_path / "results.json"), ground_truth())


def test_a_dictionary_with_scores_is_read_by_its_names(tmp_path: Path) -> None:
    truth = ground_truth()
    found = [{**{k: e[k] for k in ("image_id", "category_id", "bbox")}, "score": 0.5} for e in truth["annotations"][:3]]
    swapped = [{**entry, "category_id": {3: 7, 7: 3}[entry["category_id"]]} for entry in found]
    names = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}, {"id": 8, "name": "newt"}, {"id": 1, "name": "owl"}]
    owl = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.9}  # not judged here
    images = [{**image, "file_name": f"{image['id']}.png"} for image in truth["images"]]
    coco = {**truth, "images": images, "annotations": [{**e, "id": i} for i, e in enumerate(truth["annotations"], 1)]}
    (tmp_path / "truth.json").write_text(json.dumps(coco))
    expected = evaluate_rows(truth, rows_of(found, tmp_path, truth))
    for content in (
        found,
        {"annotations": found},
        {"annotations": [*swapped, owl], "categories": names},
        {"annotations": found, "images": [{"id": 1, "file_name": "val/1.png"}], "categories": truth["categories"]},
    ):
        (tmp_path / "results.json").write_text(json.dumps(content))
        settings = EvaluateConfig(results=str(tmp_path / "results.json"), annotations=str(tmp_path / "truth.json"))
        result = evaluate(settings)
        assert result.to_dict() == expected.to_dict()
    for entry in coco["annotations"]:
        x, y, width, height = entry["bbox"]
        entry["bbox"] = [x, y, x + width, y + height]
    (tmp_path / "corners.json").write_text(json.dumps(coco))
    truth_file = {"annotations": str(tmp_path / "corners.json")}
    assert evaluate(replace(settings, **truth_file, box_format="xyxy")).stats == expected.stats
    (tmp_path / "results.json").write_text(json.dumps({"annotations": swapped, "categories": names[:2]}))
    with pytest.raises(DataError, match=r"truth.json: 1 category name .*'newt'; rename .* \(evaluate: category_map"):
        evaluate(settings)
    assert evaluate(replace(settings, category_map=[["newt", None]])).stats == expected.stats
    (tmp_path / "results.json").write_text(
        json.dumps({"annotations": found, "images": [{"id": 1, "file_name": "x.png"}]})
    )
    with pytest.raises(DataError, match=r"results.json: image 1 is 'x.png', and '1.png' in the ground truth"):
        evaluate(settings)


def test_images_without_annotations_are_refused() -> None:
    with pytest.raises(ConfigError, match="images=nowhere needs annotations=FILE.json; give both, or root=FOLDER"):
        evaluate(EvaluateConfig(checkpoint="a.pt", images="nowhere"))


def rows_of(entries: list[dict[str, Any]], folder: Path, truth: dict[str, Any]) -> np.ndarray:
    (folder / "list.json").write_text(json.dumps(entries))
    return rows_of_results(read_results(folder / "list.json"), truth)
