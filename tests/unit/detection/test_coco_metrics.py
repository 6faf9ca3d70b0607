"""COCO's numbers on all evaluators: by hand, against the official ones and pycocotools; a
validation set shared out over ranks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.detection.batch import Batch, Sample, collate
from retina_dist.detection.coco_metrics import (
    EVALUATORS,
    STATS,
    CocoEvaluator,
    Part,
    detections_to_rows,
    evaluate_rows,
    installed_evaluators,
    read_results,
    write_results,
)
from retina_dist.detection.evaluation import evaluate
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.readers.ground_truth import make_ground_truth
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task.settings import EvaluateConfig
from tests.unit.strategies.test_strategy_base import ThreadRank, on_ranks

each_evaluator = pytest.mark.parametrize(
    "evaluator",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name not in installed_evaluators(), reason=f"{name} is not installed"
            ),
        )
        for name in EVALUATORS
    ],
)
BIG_ID = 2**40 + 1  # does not fit float32
CAT, DOG, NEWT = 3, 7, 9
NEIGHBOURS = (2**24, 2**24 + 1)  # the first two whole numbers that float32 cannot tell apart
RIGHT, WRONG = [10.0, 10.0, 50.0, 50.0], [120.0, 120.0, 40.0, 40.0]


def box(image: int, category: int, bbox: Sequence[float], crowd: int = 0) -> dict[str, Any]:
    return {
        "image_id": image,
        "category_id": category,
        "bbox": list(bbox),
        "area": bbox[2] * bbox[3],
        "iscrowd": crowd,
    }


def truth_of(image_ids: Sequence[int], *boxes: dict[str, Any]) -> dict[str, Any]:
    return {
        "images": [
            {"id": i, "file_name": f"{i}.png", "width": 200, "height": 200} for i in image_ids
        ],
        "categories": [
            {"id": CAT, "name": "cat"},
            {"id": DOG, "name": "dog"},
            {"id": NEWT, "name": "newt"},
        ],
        "annotations": [{"id": number} | entry for number, entry in enumerate(boxes, start=1)],
    }


def rows_of(*rows: tuple[int, Sequence[float], float, int]) -> np.ndarray:
    """(image, box, score, category) each."""
    return np.array(
        [[image, *bbox, score, category] for image, bbox, score, category in rows]
    ).reshape(-1, 7)


@each_evaluator
def test_by_hand(evaluator: str) -> None:
    crowd = box(BIG_ID, DOG, [0, 0, 100, 100], crowd=1)
    cats = box(1, CAT, RIGHT), box(BIG_ID, CAT, [20, 20, 40, 100])
    truth = truth_of([1, BIG_ID, 5], *cats, box(1, DOG, [100, 100, 20, 20]), crowd)
    rows = rows_of(
        (1, RIGHT, 0.9, CAT),
        (BIG_ID, [20, 20, 40, 60], 0.8, CAT),  # IoU 0.6 of the second
        (BIG_ID, RIGHT, 0.7, DOG),  # inside the crowd: neither right nor wrong
    )
    result = evaluate_rows(truth, rows, evaluator=evaluator)
    # Of ten thresholds, three (.50, .55, .60) see both cats and seven only the first: 51 of 101
    # recall points.
    assert result.per_class == {
        "cat": pytest.approx((3 * 1 + 7 * 51 / 101) / 10),
        "dog": 0.0,
        "newt": None,
    }
    assert result.stats["AP50"] == pytest.approx(0.5)
    assert result.precision.shape == (10, 101, 3)
    assert set(result.to_dict()) == {*STATS, "per_class_AP"}


@each_evaluator
@pytest.mark.parametrize("seed", range(10))
def test_random_corners_equal_pycocotools(seed: int, evaluator: str) -> None:
    """Ids of 0 and above 2^24, crowds, ties, areas on the limits, some images only, images and
    classes that are not known.
    """
    rng = np.random.default_rng(seed)
    images = [0, *NEIGHBOURS, 2**53, 5, 6][: rng.integers(1, 7)]
    boxes = []
    for number in range(rng.integers(0, 40)):
        bbox = [*rng.uniform(0, 80, 2), *rng.choice([5.0, 31.9, 32.0, 64.0, 96.0, 120.0], 2)]
        crowd = int(rng.random() < 0.15)
        boxes.append(
            box(int(rng.choice(images)), int(rng.choice([CAT, DOG])), bbox, crowd) | {"id": number}
        )
    rows = [
        (
            entry["image_id"],
            np.array(entry["bbox"]) + rng.choice([0.0, 3.0], 4),
            rng.integers(1, 9) / 8,
            entry["category_id"],
        )
        for entry in boxes * int(rng.integers(0, 8))
    ]
    rows += [(99, RIGHT, 0.9, CAT), (images[0], RIGHT, 0.9, 1)][: rng.integers(0, 3)]
    rng.shuffle(rows)  # type: ignore[arg-type]
    some = (
        None
        if rng.random() < 0.7
        else [int(i) for i in rng.choice(images, rng.integers(0, len(images) + 1), False)]
    )
    arrays = rows_of(*rows)  # type: ignore[arg-type]
    found, expected = (
        evaluate_rows(truth_of(images, *boxes), arrays, image_ids=some, evaluator=name)
        for name in (evaluator, "pycocotools")
    )
    assert found.stats == pytest.approx(expected.stats, rel=0, abs=0)
    np.testing.assert_allclose(found.precision, expected.precision, rtol=0, atol=0)


@each_evaluator
def test_official_numbers(real_data: Path, evaluator: str) -> None:
    folder = real_data / "cocoapi-reference"
    truth = json.loads((folder / "instances_val2014_100.json").read_text())
    expected = json.loads((folder / "expected.json").read_text())["bbox"]
    rows = read_results(folder / "instances_val2014_fakebbox100_results.json", truth)
    result = evaluate_rows(truth, rows, evaluator=evaluator)
    for name, value in expected.items():
        assert result.stats[name] == pytest.approx(value, abs=1e-9), name


@each_evaluator
def test_a_real_detector(real_data: Path, evaluator: str) -> None:
    name = "yolox_nano_tiny_coco100_val2017"
    truth = json.loads(
        (real_data / "coco-mini" / "annotations" / "instances_val2017.json").read_text()
    )
    expected = json.loads((real_data / "real-detections" / "expected.json").read_text())[name]
    rows = read_results(real_data / "real-detections" / f"{name}.json", truth)
    result = evaluate_rows(truth, rows, evaluator=evaluator)
    for key in STATS:
        assert result.stats[key] == pytest.approx(expected[key], abs=1e-9), key
    names = {str(c["id"]): c["name"] for c in truth["categories"]}
    per_class = {
        names[i]: value for i, value in expected["per_class_AP"].items() if value not in (None, -1)
    }
    assert len(per_class) > 20
    assert {name: result.per_class[name] for name in per_class} == pytest.approx(
        per_class, abs=1e-9
    )


TRUTH_OF_IDS = truth_of([1, BIG_ID])


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
    assert np.array_equal(read_results(tmp_path / "results.json", TRUTH_OF_IDS), rows)


@pytest.mark.parametrize("seed", range(10))
def test_results_judged_again_give_equal_numbers(tmp_path: Path, seed: int) -> None:
    """Detections as a model gives them, in float32: near the thresholds, each digit decides."""
    rng = np.random.default_rng(seed)
    boxes = [box(1, CAT, [*rng.uniform(0, 90, 2), *rng.uniform(3, 60, 2)]) for _ in range(30)]
    corners = torch.tensor(np.array([each["bbox"] for each in boxes]).repeat(4, 0))
    corners[:, 2:] += corners[:, :2]
    found = {
        "boxes": (corners + torch.from_numpy(rng.normal(0, 2, (120, 4)))).float(),
        "scores": torch.from_numpy(rng.uniform(0.5, 0.50001, 120)).float(),
        "labels": torch.zeros(120, dtype=torch.int64),
    }
    truth = truth_of([1], *boxes)
    categories = Categories.from_coco(truth["categories"])
    rows = detections_to_rows([found], [1], categories)  # type: ignore[list-item]
    write_results(rows, tmp_path / "results.json")
    again = read_results(tmp_path / "results.json", truth)
    np.testing.assert_array_equal(again, rows)
    assert evaluate_rows(truth, again).stats == evaluate_rows(truth, rows).stats


def test_a_box_without_an_area_is_always_missed() -> None:
    """As the doctor and the plan say: it is evaluated, though not trained on."""
    truth = truth_of([1], box(1, CAT, RIGHT), box(1, CAT, [5, 5, 0, 10]))
    result = evaluate_rows(truth, rows_of((1, RIGHT, 0.9, CAT), (1, [5, 5, 0, 10], 0.8, CAT)))
    assert result.stats["AR100"] == pytest.approx(0.5)
    assert result.stats["AP"] == pytest.approx(51 / 101)


def test_results_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.json does not exist; check its path\.$"):
        read_results(tmp_path / "absent.json", TRUTH_OF_IDS)


def test_labels_are_exact_beside_scores_of_any_precision() -> None:
    """As a detector from outside gives them under autocast: 257 is no number of bfloat16."""
    found = {
        "boxes": torch.tensor([[0.0, 0.0, 5.0, 5.0]], dtype=torch.bfloat16),
        "scores": torch.tensor([0.5], dtype=torch.bfloat16),
        "labels": torch.tensor([257]),
    }
    categories = Categories(tuple(range(300)), tuple(map(str, range(300))))
    rows = detections_to_rows([found], [1], categories)  # type: ignore[list-item]
    assert rows[:, 6].tolist() == [257]


def test_boxes_without_an_area_are_left_out() -> None:
    """They lay beside a thin image and were clipped to its border."""
    found = {
        "boxes": torch.tensor([[1.0, 0.0, 1.0, 9.0], [0.0, 3.0, 1.0, 3.0], [0.0, 0.0, 1.0, 9.0]]),
        "scores": torch.tensor([0.9, 0.8, 0.7]),
        "labels": torch.zeros(3, dtype=torch.int64),
    }
    rows = detections_to_rows([found], [1], Categories((1,), ("cat",)))  # type: ignore[list-item]
    assert rows[:, 5].tolist() == pytest.approx([0.7])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        (
            '[{"image_id": 2, "category_id": 3, "bbox": [1,2,3,4], "score": 1}]',
            r"image 2, .*, such as .*\], or as image_id the name of the image's file",
        ),
        ('[{"image_id": 1, "category_id": 4, "bbox": [1,2,3,4], "score": 1}]', "category 4"),
        ('[{"image_id": 1, "category_id": 3, "bbox": [1,2,3,Infinity], "score": 1}]', "entry 0"),
    ],
)
def test_wrong_results_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_results(tmp_path / "results.json", TRUTH_OF_IDS)


def test_results_against_boxes_of_two_corners(tmp_path: Path) -> None:
    truth = truth_of([1], box(1, CAT, RIGHT))
    write_results(rows_of((1, RIGHT, 0.9, CAT)), tmp_path / "results.json")
    x, y, width, height = RIGHT
    truth["annotations"][0]["bbox"] = [x, y, x + width, y + height]
    (tmp_path / "corners.json").write_text(json.dumps(truth))
    files = {
        "results": str(tmp_path / "results.json"),
        "annotations": str(tmp_path / "corners.json"),
    }
    assert evaluate(EvaluateConfig(**files, box_format="xyxy"))[0].stats["AP"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("factor", "shift", "said"),
    [(1, 1, "they are two corners"), (0.001, 0, "no box is larger than one pixel"), (1, 0, "")],
)
@pytest.mark.parametrize("box_format", [None, "xywh", "xyxy"])
def test_results_in_another_form_are_an_error(
    tmp_path: Path, factor: float, shift: float, said: str, box_format: str | None
) -> None:
    """Whatever the form of the ground truth."""
    places = [(60.0 + i, 60.0, 35.0, 35.0) for i in range(5)]
    truth = truth_of([1], *(box(1, CAT, place) for place in places))
    truth["images"] = [{**truth["images"][0], "width": 100, "height": 100}]
    if box_format == "xyxy":
        for each in truth["annotations"]:
            x, y, width, height = each["bbox"]
            each["bbox"] = [x, y, x + width, y + height]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    written = np.array(places) * factor
    written[:, 2:] += shift * written[:, :2]
    write_results(rows_of(*((1, each, 0.9, CAT) for each in written)), tmp_path / "results.json")
    config = EvaluateConfig(
        results=str(tmp_path / "results.json"),
        annotations=str(tmp_path / "truth.json"),
        box_format=box_format,
    )
    if not said:
        evaluate(config)
        return
    with pytest.raises(
        DataError, match=f"results.json: .*{said}.*; write each bbox as x, y, width"
    ):
        evaluate(config)


def test_more_detections_are_counted_beside_the_official_numbers(tmp_path: Path) -> None:
    """101 objects of a class, all found: COCO counts 100 of them."""
    places = [(13.0 * (i % 12), 13.0 * (i // 12), 12.0, 12.0) for i in range(101)]
    (tmp_path / "truth.json").write_text(
        json.dumps(truth_of([1], *(box(1, CAT, p) for p in places)))
    )
    write_results(rows_of(*((1, p, 0.9, CAT) for p in places)), tmp_path / "results.json")
    files = {
        "results": str(tmp_path / "results.json"),
        "annotations": str(tmp_path / "truth.json"),
    }
    official, table = evaluate(EvaluateConfig(**files))
    assert "1 object that cannot be found; evaluate max_detections=101 counts" in table
    assert "AP@" not in table
    more, table = evaluate(EvaluateConfig(**files, max_detections=101))
    assert more.stats == official.stats
    assert more.per_class == official.per_class
    assert more.to_dict()["AP@101"] == pytest.approx(1)
    assert re.search(r"^AP@101 .* 1.0000$", table, re.MULTILINE)
    assert "cannot be found" not in table


def test_a_classifier_counts_no_detections() -> None:
    from retina_dist.classification.evaluation import predictor_of

    config = EvaluateConfig(checkpoint="best.pt", max_detections=500)
    with pytest.raises(ConfigError, match="max_detections=500 is for detection, .*; leave it out"):
        predictor_of(config, "cpu")


def test_results_without_a_detection_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    truth, results = tmp_path / "truth.json", tmp_path / "results.json"
    truth.write_text(json.dumps(truth_of([1], box(1, CAT, RIGHT))))
    results.write_text("[]")
    evaluate(EvaluateConfig(results=str(results), annotations=str(truth)))
    assert f"{results} has no detection, so no object is found." in caplog.text


class Sees(torch.nn.Module):
    """Finds RIGHT, a cat, in every image; `loss` is each of the three losses of every batch."""

    def __init__(self, loss: float = 1.0) -> None:
        super().__init__()
        self.loss = loss

    def evaluate(self, batch: Batch) -> Any:
        assert not self.training
        assert torch.is_inference_mode_enabled()
        x, y, width, height = RIGHT
        found = {
            "boxes": torch.tensor([[x, y, x + width, y + height]]),
            "scores": torch.tensor([0.9]),
            "labels": torch.tensor([0]),
        }
        loss = torch.tensor(self.loss)
        return {name: loss for name in ("classification", "bbox_regression", "mask")}, [
            found
        ] * len(batch)


def batch_of(*image_ids: int) -> Batch:
    image, boxes, labels = (
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(0, 4),
        torch.zeros(0),
    )
    return collate([Sample(image, boxes, labels, i, (200, 200)) for i in image_ids], (8, 8))


def annotations_of(truth: dict[str, Any]) -> Annotations:
    categories = Categories.from_coco(truth["categories"])
    ground_truth = make_ground_truth(truth, "truth")[0]
    return Annotations(ground_truth, (), [], [], categories, np.empty((0, 2)))


LOSSES_BY_RANK = (1.0, 4.0, 9.0)


def evaluate_on_ranks(
    truth: dict[str, Any], shares: list[list[Batch]]
) -> tuple[dict[str, float], CocoEvaluator]:
    """The metrics, which are equal on every rank, and rank 0's evaluator."""

    def run(strategy: ThreadRank) -> tuple[dict[str, float], CocoEvaluator]:
        evaluator = CocoEvaluator(annotations_of(truth), lambda: shares[strategy.rank], strategy)
        return evaluator(Sees(loss=LOSSES_BY_RANK[strategy.rank])), evaluator

    (first, evaluator), *others = on_ranks(len(shares), run)
    for metrics, _ in others:
        assert repr(metrics) == repr(first)  # NaN where undefined
    return first, evaluator


def test_losses_in_a_fixed_order_have_the_same_bits_on_any_number_of_ranks() -> None:
    """A rank adds up in float32, and ranks in float64: three sums of the same losses."""
    ids = [1, 2, *NEIGHBOURS]
    losses = {1: 0.1, 2: 0.2, ids[2]: 0.3, ids[3]: 0.7}
    truth = truth_of(ids, *(box(i, CAT, RIGHT) for i in ids))

    def run(strategy: ThreadRank, fixed_order: bool) -> dict[str, float]:
        batches = [Part([i], np.zeros((0, 7)), {"a": torch.tensor(losses[i])}, 1) for i in ids]
        evaluator = CocoEvaluator(annotations_of(truth), list, strategy)
        evaluator.fixed_order = fixed_order
        own = batches[strategy.rank :: strategy.world_size]
        return evaluator._gathered(own).losses

    for fixed_order, kinds in ((True, 1), (False, 3)):
        found = {repr(on_ranks(n, lambda s: run(s, fixed_order))[0]) for n in (1, 2, 4)}  # noqa: B023
        assert len(found) == kinds


TRUTH = truth_of([1, 2, *NEIGHBOURS], *(box(i, CAT, RIGHT) for i in (1, 2, *NEIGHBOURS)))


@pytest.mark.parametrize(
    "shares",
    [
        [[batch_of(1, NEIGHBOURS[1]), batch_of(2)], [batch_of(NEIGHBOURS[0])]],
        [[], [batch_of(1, 2), batch_of(*NEIGHBOURS)]],
        [[batch_of(NEIGHBOURS[1])], [], [batch_of(2, 1), batch_of(NEIGHBOURS[0])]],
    ],
    ids=["uneven", "none on rank 0", "none on rank 1 of three"],
)
def test_ranks_together_see_what_one_would(shares: list[list[Batch]]) -> None:
    first, evaluator = evaluate_on_ranks(TRUTH, shares)
    assert first["coco/AP"] == pytest.approx(1.0)
    assert evaluator.last_result is not None
    assert evaluator.last_result.rows[:, 0].tolist() == [1, 2, *NEIGHBOURS]
    images = [sum(map(len, share)) for share in shares]
    # every image weighs the same, wherever it was
    mean = np.dot(images, LOSSES_BY_RANK[: len(images)]) / 4
    assert first["val/loss_classification"] == pytest.approx(mean)
    assert first["val/loss"] == pytest.approx(3 * mean)  # all losses, whatever their names
    assert first["val/loss_mask"] == pytest.approx(mean)


@pytest.mark.parametrize(
    "shares",
    [
        [[batch_of(1, 2)], [batch_of(*NEIGHBOURS, 1)]],
        [[batch_of(1, 2), batch_of(*NEIGHBOURS), batch_of(2)], []],
        [[batch_of(1, 1, 2)], [batch_of(*NEIGHBOURS)]],
        [[], [batch_of(1, 2)], [batch_of(2, *NEIGHBOURS), batch_of(1)]],
    ],
    ids=["on two ranks", "in two batches", "in one batch", "on two ranks of three"],
)
def test_a_repeated_image_counts_once(shares: list[list[Batch]]) -> None:
    """Its second copy would be a false positive: the right box is taken."""
    first, evaluator = evaluate_on_ranks(TRUTH, shares)
    assert evaluator.last_result is not None
    assert evaluator.last_result.rows.shape == (4, 7)
    assert first["coco/AP"] == pytest.approx(1.0)


def evaluator_of(batches: Any, best: BestMetric | None = None) -> CocoEvaluator:
    return CocoEvaluator(annotations_of(TRUTH), batches, SingleDeviceStrategy("cpu"), best=best)


def test_the_best_result_is_that_of_the_best_validation() -> None:
    best = BestMetric("val/loss")
    evaluator = evaluator_of(lambda: [batch_of(1)], best)
    best.load_state_dict(best.state_dict() | {"value": 2.0})
    evaluator(Sees(loss=1.0))
    assert evaluator.best_result is None, "it was better before a resume"
    evaluator(Sees(loss=0.5))
    of_the_best = evaluator.last_result
    evaluator(Sees(loss=math.nan))
    assert evaluator.best_result is of_the_best


def test_the_model_is_put_back_in_its_mode() -> None:
    for training in (True, False):
        model = Sees().train(training)
        evaluator = evaluator_of(lambda: [batch_of(1)])
        metrics = evaluator(model)
        assert model.training is training
    assert evaluator.last_result is not None
    undefined = [name for name, value in evaluator.last_result.stats.items() if value == -1]
    assert undefined, "not all sizes are there"
    assert all(math.isnan(metrics[f"coco/{name}"]) for name in undefined)
    assert [
        name for name, value in evaluator.last_result.to_dict().items() if value is None
    ] == undefined


@pytest.mark.parametrize("shares", [[[batch_of(1, 2)], []], [[], [batch_of(2)], [batch_of(1)]]])
def test_images_that_no_rank_read_are_left_out(
    shares: list[list[Batch]], caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = evaluate_on_ranks(TRUTH, shares)
    assert first["coco/AP"] == pytest.approx(1.0)
    assert "2 of 4 validation images are left out of the metrics" in caplog.text
    with pytest.raises(DataError, match="no validation image could be read"):
        evaluator_of(lambda: [])(Sees())


@pytest.mark.parametrize(("key", "has"), [("image_id", [7]), ("category_id", [1, 2])])
def test_an_id_that_is_not_there_is_answered_with_those_that_are(
    tmp_path: Path, key: str, has: list[int]
) -> None:
    coco = {"images": [{"id": 7, "file_name": "a.png"}], "categories": [{"id": 1}, {"id": 2}]}
    entry = {"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5, key: 0}
    (tmp_path / "results.json").write_text(json.dumps([entry]))
    with pytest.raises(DataError, match=rf"{key[:-3]} 0, .*lacks; give its ids, such as \{has}"):
        read_results(tmp_path / "results.json", coco)


def test_scores_above_one_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    coco = {"images": [{"id": 7, "file_name": "a.png"}], "categories": [{"id": 1}]}
    entry = {"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 90}
    (tmp_path / "results.json").write_text(json.dumps([entry]))
    read_results(tmp_path / "results.json", coco)
    assert "has scores up to 90; divide percents by 100" in caplog.text
