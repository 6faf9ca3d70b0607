"""Error bars of AP: one matching, from which every resample follows as from pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from retina_dist.base.errors import DataError
from retina_dist.detection.ap_intervals import (
    Ranking,
    _too_little,
    leave_out,
    rankings,
    resample,
)
from retina_dist.detection.coco_metrics import CocoResult, evaluate_rows, read_results
from retina_dist.detection.evaluation import format_table
from retina_dist.reporting.intervals import left_out_weights
from tests.simulated_detectors import (
    DRAWS,
    EMPTY,
    FIRST,
    FREQUENCIES,
    FRESH,
    NAMES,
    POPULATIONS,
    Counts,
    draw,
    equal_pairs,
    main,
    precision_of,
    resampled,
    unequal_pairs,
)
from tests.unit.detection.test_coco_metrics import rows_of

Measure = Callable[..., dict[str, dict[str, Counts]]]

NUM_CLASSES, NUM_IMAGES = 3, 12


def drawn(seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Crowds, boxes on the limits of areas, an image without any; detections with equal scores,
    over 100 on an image.
    """
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


def all_precisions(ranked: list[list[Ranking]]) -> np.ndarray:
    """The same from the rankings."""
    result = -np.ones((10, 101, len(ranked), 4))
    for k, by_area in enumerate(ranked):
        for a, ranking in enumerate(by_area):
            for t in range(10 if len(ranking.objects) else 0):
                result[t, :, k, a] = precision_of(ranking, t)
    return result


def ids_of(coco: dict[str, Any]) -> list[int]:
    return sorted(image["id"] for image in coco["images"])


@pytest.mark.parametrize("seed", range(4))
def test_unweighted_precision_is_pycocotools_to_the_last_bit(seed: int) -> None:
    coco, rows = drawn(seed)
    ours = all_precisions(rankings(coco, rows, ids_of(coco)))
    np.testing.assert_array_equal(ours, precision_by_pycocotools(coco, rows))


def test_unweighted_precision_of_a_real_detector(real_data: Path) -> None:
    coco = json.loads((real_data / "coco-mini/annotations/instances_val2017.json").read_text())
    rows = read_results(real_data / "real-detections/yolox_nano_tiny_coco100_val2017.json", coco)
    ours = all_precisions(rankings(coco, rows, ids_of(coco)))
    np.testing.assert_array_equal(ours, precision_by_pycocotools(coco, rows))


def ranking_of(text: str, objects: int) -> Ranking:
    """Of detections on an image each, the best first: + is right, - is wrong, o is ignored."""
    right = np.array([[each == "+" for each in text]], bool)
    ignored = np.array([[each == "o" for each in text]], bool)
    images = np.arange(len(text))
    scores = np.linspace(1, 0, len(text))
    return Ranking(scores, images, right, ignored, np.arange(objects), np.ones(len(text)))


@pytest.mark.parametrize(
    ("text", "precisions"),
    [
        ("-+-+", [0, 1 / 3]),  # of what lies above each
        ("-o+o", [0]),
        ("+-+", [1 / 2, 1 / 2]),  # nothing lies above the first: the next one's
        ("+", [1 / 2]),  # nor is there a next one
        ("-" * 3 + "+" * 9, [0, 1 / 4, 2 / 5, 3 / 6, 4 / 7, 5 / 8, 6 / 9, 7 / 10, 8 / 11]),
    ],
)
def test_a_detection_does_not_count_itself(text: str, precisions: list[float]) -> None:
    weights = np.ones((len(text), 2), np.float32)
    objects = len(precisions)
    found = leave_out([ranking_of(text, objects)], weights)[0, 0]
    if "---" in text:  # the last ones are higher by more than their standard error
        assert found[1] > np.mean(precisions) + 0.1
    else:
        assert found[1] == pytest.approx(np.mean(precisions))


def test_the_best_detection_of_a_class_is_judged_by_the_other_classes() -> None:
    ranked = [ranking_of("+--", 1), ranking_of("-", 1), ranking_of("+-", 1), ranking_of("", 1)]
    found = leave_out(ranked, np.ones((3, 2), np.float32))[:, 0, 1]
    assert found == pytest.approx([(1 + 0.5) / 3, 0, (1 + 0.5) / 3, 0])


@pytest.mark.parametrize("seed", range(3))
def test_a_group_left_out_is_a_ranking_without_its_images(seed: int) -> None:
    """With equal scores, too: no image is repeated, so none changes places."""
    coco, rows = drawn(seed)
    weights = left_out_weights(NUM_IMAGES)
    found = leave_out([each[0] for each in rankings(coco, rows, ids_of(coco))], weights)
    for group in range(NUM_IMAGES):
        kept = np.array(ids_of(coco))[weights[:, 1 + group] > 0].tolist()
        ranked = [each[0] for each in rankings(coco, rows, kept)]
        expected = leave_out(ranked, np.ones((len(kept), 2), np.float32))
        np.testing.assert_allclose(found[:, :, 1 + group], expected[:, :, 1], atol=1e-5)


def test_what_is_computed_at_once_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    coco, rows = drawn(0)
    ranked = [each[0] for each in rankings(coco, rows, ids_of(coco))]
    weights = left_out_weights(NUM_IMAGES)
    whole = leave_out(ranked, weights)
    monkeypatch.setattr("retina_dist.detection.ap_intervals.BLOCK", 50)
    np.testing.assert_allclose(leave_out(ranked, weights), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("objects", "images", "reason"),
    [
        ([60], 60, ""),
        ([60], 9, "too few images with objects (9 of 10)"),
        ([29], 29, "too few objects (29 of 30)"),
        ([100, 8], 60, "too few objects of some classes (as 14 of each)"),
        ([100, 12], 60, ""),
        ([12] * 70, 60, "too few objects of some classes (as 12 of each)"),
        ([100] + [3] * 30, 60, "too few objects of some classes (as 3 of each)"),
        ([], 0, ""),
    ],
)
def test_too_few_objects_give_a_reason(objects: list[int], images: int, reason: str) -> None:
    ranked = []
    for count in objects:
        ranking = ranking_of("+" * 5, 0)
        ranked.append(replace(ranking, objects=np.arange(count) % images))
    assert _too_little(ranked, 0.5) == reason
    assert not objects or reason or _too_little(ranked, 0.99) == "too few errors"


def test_intervals_are_keyed_by_metric_and_do_not_depend_on_the_order_of_rows() -> None:
    coco, rows = drawn(0)
    result = evaluate_rows(coco, rows)
    first = resample(result)
    again = resample(evaluate_rows(coco, rows[::-1].copy()[::-1]))
    assert first.values["coco/AP"] == result.stats["AP"]
    assert {name: first.values[f"coco/AP/{name}"] for name in result.per_class} == result.per_class
    for name in first.values:
        np.testing.assert_array_equal(first.samples[name], again.samples[name])
        bars = first.interval(name)
        assert bars.reason or 0 < bars.low < bars.high < 1
    assert not first.interval("coco/AP").reason
    assert first.interval("coco/APl").reason.startswith("too few images")
    heading, line = format_table(result, first).splitlines()[:2]
    assert line[heading.index("95 % interval") :] == str(first.interval("coco/AP"))
    apart = [name for name in first.values if first.interval(name).leaves_out_value]
    assert ("corrected values" in format_table(result, first)) == bool(apart)
    above = replace(first, values={**first.values, "coco/AP": 0.999})
    assert format_table(result, above).endswith("the intervals lie around the corrected values.")


def test_a_worse_detector_is_told_apart() -> None:
    rng = np.random.default_rng(0)
    strong, weak = (
        resampled(draw(POPULATIONS[name], FREQUENCIES[5], 40, rng)[0], 40)
        for name in ("strong", "weak")
    )
    assert strong.difference(weak, "coco/AP50").low > 0
    assert strong.difference(strong, "coco/AP").holds_zero


def test_results_of_other_images_are_not_compared() -> None:
    coco, rows = drawn(0)
    first = resample(evaluate_rows(coco, rows))
    renamed = [image | {"file_name": f"other/{image['file_name']}"} for image in coco["images"]]
    others = resample(evaluate_rows(coco | {"images": renamed}, rows))
    with pytest.raises(DataError, match="of different images"):
        first.difference(others, "coco/AP")


def test_half_a_per_cent_of_small_objects_give_no_interval_of_their_ap() -> None:
    """100 images with three small objects each hundredth: their AP would not be known."""
    rng = np.random.default_rng(0)
    many = draw(POPULATIONS["middling"], FREQUENCIES[1], 100, rng)
    few = draw(POPULATIONS["middling"], np.array([0.06]), 100, rng)
    listed = [{"id": i, "file_name": str(i)} for i in range(100)]
    stats = dict.fromkeys(("AP", "AP50", "AP75", "APs", "APm", "APl"), 0.4)
    result = CocoResult(
        stats, {"a": 0.4}, np.zeros(0), {"images": listed}, list(range(100)), rows_of()
    )
    found = resample(result, [[many[0][0], few[0][0], many[0][0], EMPTY]])
    assert found.interval("coco/APs").reason.startswith("too few")
    assert not found.interval("coco/APm").reason


def shares_of(
    measure: Measure, classes: int, images: int, draws: int, names: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Of some populations together."""
    each = [measure(POPULATIONS[name], classes, images, range(draws)) for name in names]
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for kind in each[0]:
        for name in NAMES:
            shares[kind][name] = sum((counts[kind][name] for counts in each), Counts()).share
    return shares


def test_intervals_and_differences_of_simulated_detectors_hold_the_truth() -> None:
    """90 draws: a share has a standard error of .023. Uncorrected for bias it is about .88."""
    shares = shares_of(equal_pairs, 1, 100, 30, FIRST)
    assert all(share >= 0.88 for each in shares.values() for share in each.values()), shares


def test_the_simulation_goes_on_where_it_was_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DRAWS, 1, 1)
    file = tmp_path / "cells.jsonl"
    arguments = [str(file), "--rounds", "2", "--images", "20", "--classes", "1"]
    main(arguments)
    whole = file.read_text()
    table = capsys.readouterr().out
    assert table.count("| 20 x 1 | fresh | 6 | ") == 2
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 2 * len(POPULATIONS)
    file.write_text("".join(lines[:-2]) + lines[-2][:20])  # stopped in the middle of a line
    main(arguments)
    assert file.read_text() == whole
    assert capsys.readouterr().out == table


@pytest.mark.long
@pytest.mark.parametrize(
    ("images", "classes", "draws"),
    [(100, 1, 100), (100, 5, 100), (100, 20, 50), (20, 5, 100), (1000, 5, 25)],
)
def test_intervals_hold_what_they_promise(images: int, classes: int, draws: int) -> None:
    """The whole table: `python -m tests.simulated_detectors FILE`. Three standard errors here."""
    for names in (FIRST, FRESH):
        shares = shares_of(equal_pairs, classes, images, draws, names)
        lowest = 0.95 - 3 * (0.95 * 0.05 / (draws * len(names))) ** 0.5
        for kind, each in shares.items():
            assert all(share >= lowest for share in each.values()), (names, kind, each)


@pytest.mark.long
def test_a_difference_of_three_hundredths_is_found() -> None:
    shares = shares_of(unequal_pairs, 5, 200, 50, FIRST + FRESH)
    assert shares["told"]["AP"] >= 0.45, shares
