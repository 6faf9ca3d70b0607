"""What an evaluation says of errors, thresholds and images."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

import numpy as np
import pytest

from retina_dist.detection.analysis import ERRORS, analyse, confusion_matrix
from retina_dist.detection.ap_intervals import limit_note
from retina_dist.detection.coco_metrics import CocoResult, evaluate_rows, read_results
from retina_dist.reporting.analysis import lines_of
from tests.unit.detection import test_coco_metrics
from tests.unit.detection.test_coco_metrics import box, rows_of

SAMPLE = Path(__file__).parents[2] / "samples" / "analysis_detection.json"
BOX = (10.0, 10.0, 40.0, 40.0)
AWAY = (120.0, 120.0, 40.0, 40.0)


def truth_of(*boxes: tuple[int, tuple[float, ...], int], crowd: int = 0) -> dict[str, Any]:
    """(image, box, category) on three images of two categories."""
    truth = test_coco_metrics.truth_of(
        [1, 2, 3], *(box(image, k, place, crowd) for image, place, k in boxes)
    )
    return truth | {
        "categories": [{"id": 1, "name": "cat", "supercategory": 5}, {"id": 2, "name": "dog"}]
    }


def moved(pixels: float) -> tuple[float, ...]:
    return (BOX[0] + pixels, *BOX[1:])


def test_each_kind_of_error_is_counted(tmp_path: Path) -> None:
    coco = truth_of((1, BOX, 1), (2, BOX, 2), (3, BOX, 1), (3, AWAY, 2))
    rows = rows_of(
        (1, BOX, 0.9, 1),
        (1, moved(1), 0.8, 1),  # a duplicate
        (1, AWAY, 0.85, 2),  # background
        (2, BOX, 0.7, 1),  # another class
        (3, moved(20), 0.6, 1),  # badly placed
    )
    analysis, resampled = analyse(evaluate_rows(coco, rows), tmp_path)
    counts = {name: kind["count"] for name, kind in analysis["errors"]["types"].items()}
    expected = {
        "classification": 1,
        "localization": 1,
        "both": 0,
        "duplicate": 1,
        "background": 1,
        "missed": 1,
    }
    assert counts == expected | {"false_positives": None, "false_negatives": None}
    assert analysis["threshold"] == {"threshold": 0.9, "f1": 0.4, "precision": 1.0, "recall": 0.25}
    assert analysis["classes"]["cat"]["objects"] == 2
    assert analysis["classes"]["dog"]["f1"] == 0
    assert analysis["confusion"] == {
        "labels": ["cat", "dog", "background"],
        "counts": [[1, 0, 1], [0, 0, 2], [0, 0, 0]],
    }
    assert [
        (image["file_name"], image["misses"], image["score"]) for image in analysis["worst"]
    ] == [
        ("3.png", 2, 0.6),
        ("2.png", 1, 0.7),
        ("1.png", 0, 0.85),
    ]
    table = list(csv.DictReader((tmp_path / "images.csv").open()))
    assert [row["file_name"] for row in table] == ["3.png", "2.png", "1.png"]
    counts = {"hits": "1", "false_alarms": "0", "misses": "0"}
    assert table[2] == {"file_name": "1.png", "image_id": "1", **counts, "score": "0.85"}
    assert json.loads((tmp_path / "analysis.json").read_text()) == analysis
    assert analysis["metrics"]["AP"]["value"] == resampled.values["coco/AP"]


def test_the_iou_of_hits_and_its_correlation_with_their_scores() -> None:
    """Moved by 10 px of 40 the IoU is 30 / 50, by 5 px 35 / 45; by 20 px it is no hit."""
    coco = truth_of((1, BOX, 1), (2, BOX, 1), (3, BOX, 2), (3, AWAY, 2))
    rows = rows_of(
        (1, BOX, 0.7, 1),
        (2, moved(10), 0.9, 1),
        (2, BOX, 0.3, 1),  # a duplicate
        (3, moved(5), 0.4, 2),
        (3, (AWAY[0] + 20, *AWAY[1:]), 0.8, 2),
    )
    analysis, _ = analyse(evaluate_rows(coco, rows))
    ious = [1.0, 30 / 50, 35 / 45]
    assert analysis["classes"]["cat"]["iou"] == pytest.approx(0.8)
    assert analysis["classes"]["dog"]["iou"] == pytest.approx(35 / 45)
    assert analysis["hits"] == pytest.approx(
        {"iou": fmean(ious), "correlation": correlation([0.7, 0.9, 0.4], ious)}
    )
    assert "IoU of hits   0.793, Pearson's correlation with scores -0.338" in lines_of(analysis)


def test_a_crowd_is_no_hit() -> None:
    coco = truth_of((1, BOX, 1), crowd=1)
    analysis, _ = analyse(evaluate_rows(coco, rows_of((1, BOX, 0.9, 1))))
    assert analysis["hits"] == {"iou": None, "correlation": None}


def test_detections_that_a_crowd_covers_are_in_no_table() -> None:
    """AP does not count them, so neither do the confusion matrix and the table of images."""
    coco = truth_of((1, BOX, 1), (2, BOX, 1))
    coco["annotations"].append(box(1, 1, AWAY, crowd=1) | {"id": 9})
    inside = [(1, (AWAY[0] + i, *AWAY[1:]), 0.9, 1) for i in range(5)]
    analysis, _ = analyse(evaluate_rows(coco, rows_of((1, BOX, 0.8, 1), *inside)))
    assert analysis["confusion"]["counts"] == [[1, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert sum(image["false_alarms"] for image in analysis["worst"]) == 0


def test_the_matrix_takes_the_100_best_of_each_class() -> None:
    """150 objects of two classes on one image, all found: all count, though COCO counts
    100 each.
    """
    places = [(13.0 * (i % 12), 13.0 * (i // 12), 12.0, 12.0) for i in range(150)]
    coco = truth_of(*((1, place, 1 + i % 2) for i, place in enumerate(places)))
    rows = rows_of(*((1, place, 0.9, 1 + i % 2) for i, place in enumerate(places)))
    result = evaluate_rows(coco, rows)
    assert result.stats["AP"] == pytest.approx(1)
    assert confusion_matrix(result, 0.5).tolist() == [[75, 0, 0], [0, 75, 0], [0, 0, 0]]
    assert limit_note(result) == ""


def test_the_limit_is_said_where_it_bites() -> None:
    places = [(13.0 * (i % 12), 13.0 * (i // 12), 12.0, 12.0) for i in range(150)]
    coco = truth_of(*((1, place, 1) for place in places))
    result = evaluate_rows(coco, rows_of(*((1, place, 0.9, 1) for place in places)))
    assert confusion_matrix(result, 0.5)[0].tolist() == [100, 0, 50]
    assert limit_note(result) == (
        "The tables count the 100 best detections of a class on an image: "
        "50 detections left out, 50 objects that cannot be found; "
        "evaluate max_detections=150 counts them."
    )

    more = evaluate_rows(coco, result.rows, max_detections=150)
    assert more.stats == result.stats  # the official numbers
    assert more.stats["AR100"] == pytest.approx(2 / 3)
    assert more.beyond == pytest.approx({"AP@150": 1, "AR@150": 1})
    assert confusion_matrix(more, 0.5)[0].tolist() == [150, 0, 0]
    analysis, _ = analyse(more)
    assert analysis["worst"][0]["misses"] == 0
    assert analysis["limit"] == ""
    assert analysis["errors"]["types"]["missed"]["gain"] == pytest.approx(0)
    fewer = evaluate_rows(coco, result.rows, max_detections=120)
    assert limit_note(fewer).startswith(
        "The tables count the 120 best detections of a class on an image (COCO: 100): 30 "
    )


@pytest.mark.parametrize("seed", range(20))
def test_every_table_counts_the_same_hits(seed: int) -> None:
    """Random scenes with crowds: the matrix holds the hits, false alarms and misses
    of images.csv.
    """
    rng = np.random.default_rng(seed)
    entries = []
    for _ in range(30):
        place = (*rng.uniform(0, 100, 2), *rng.uniform(10, 60, 2))
        crowd = int(rng.random() < 0.2)
        entries.append(box(int(rng.integers(1, 4)), int(rng.integers(1, 3)), place, crowd))
    found = []
    for entry in entries * 3:
        place = np.array(entry["bbox"]) + rng.uniform(-6, 6, 4)
        found.append((entry["image_id"], place, rng.random(), int(rng.integers(1, 3))))
    coco = truth_of() | {"annotations": [{"id": i + 1} | entry for i, entry in enumerate(entries)]}
    analysis, _ = analyse(evaluate_rows(coco, rows_of(*found)))  # type: ignore[arg-type]
    counts = np.array(analysis["confusion"]["counts"])
    totals = {}
    for key in ("hits", "false_alarms", "misses"):
        totals[key] = sum(image[key] for image in analysis["worst"])
    assert totals["hits"] == np.trace(counts)
    assert totals["false_alarms"] == counts[:, :-1].sum() - np.trace(counts)
    assert totals["misses"] == counts[:-1].sum() - np.trace(counts)


def test_no_kinds_of_errors_where_ap50_is_undefined() -> None:
    analysis, _ = analyse(evaluate_rows(truth_of(), rows_of((1, BOX, 0.5, 1))))
    assert analysis["errors"] is None
    assert analysis["metrics"]["AP50"]["value"] is None


def keys_of(content: Any) -> Any:
    """The keys of nested dicts, of a list those of its first entry."""
    if isinstance(content, dict):
        return {
            key: keys_of(value)
            for key, value in content.items()
            if key not in ("classes", "metrics", "types")
        }
    return keys_of(content[0]) if isinstance(content, list) and content else None


def test_the_form_is_that_of_the_sample() -> None:
    rows = rows_of((1, BOX, 0.9, 1), (2, AWAY, 0.95, 2), (2, BOX, 0.95, 2))
    analysis, _ = analyse(evaluate_rows(truth_of((1, BOX, 1), (2, BOX, 2)), rows))
    sample = json.loads(SAMPLE.read_text())
    assert keys_of(analysis) == keys_of(sample)
    assert list(analysis["metrics"]) == list(sample["metrics"])
    assert set(analysis["errors"]["types"]) == set(sample["errors"]["types"])
    assert set(analysis["classes"]["cat"]) == {*sample["classes"]["RBC"], "reason"}, "too few"
    assert len(lines_of(analysis)) <= 11


@pytest.mark.parametrize(
    ("coco", "rows"),
    [
        (truth_of((1, BOX, 1)), rows_of()),
        (truth_of(), rows_of((1, BOX, 0.5, 1))),
        (truth_of((1, BOX, 1), (2, BOX, 1), crowd=1), rows_of((1, BOX, 0.5, 1))),
    ],
    ids=["nothing detected", "nothing to detect", "crowds only"],
)
def test_without_detections_or_objects(coco: dict[str, Any], rows: np.ndarray) -> None:
    analysis, _ = analyse(evaluate_rows(coco, rows))
    assert analysis["threshold"]["threshold"] is None
    assert sum(image["hits"] + image["false_alarms"] for image in analysis["worst"]) == 0
    assert len(lines_of(analysis)) <= 11
    json.dumps(analysis, allow_nan=False)


def test_without_hotcoco_the_rest_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hotcoco", None)
    monkeypatch.setattr("retina_dist.reporting.analysis.find_spec", lambda name: None)
    analysis, _ = analyse(evaluate_rows(truth_of((1, BOX, 1)), rows_of((1, BOX, 0.9, 1))))
    assert analysis["errors"] is None
    assert analysis["calibration"] is None
    assert analysis["confusion"]["counts"][0] == [1, 0, 0]
    assert analysis["threshold"]["f1"] == 1


def test_no_matrix_of_very_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retina_dist.reporting.analysis.MAX_IN_MATRIX", 2)
    analysis, _ = analyse(evaluate_rows(truth_of((1, BOX, 1)), rows_of((1, BOX, 0.9, 1))))
    assert analysis["confusion"] is None
    assert analysis["errors"]["AP50"] == pytest.approx(1)
    assert not any(line.startswith("most confused") for line in lines_of(analysis))


def real_result(
    real_data: Path, name: str, split: str, crowds: bool
) -> tuple[CocoResult, dict[str, Any]]:
    """Of the classes that have objects."""
    coco = json.loads((real_data / f"coco-mini/annotations/instances_{split}.json").read_text())
    coco["annotations"] = [entry for entry in coco["annotations"] if crowds or not entry["iscrowd"]]
    known = {entry["category_id"] for entry in coco["annotations"] if not entry["iscrowd"]}
    coco["categories"] = [each for each in coco["categories"] if each["id"] in known]
    coco["annotations"] = [entry for entry in coco["annotations"] if entry["category_id"] in known]
    full = json.loads((real_data / f"coco-mini/annotations/instances_{split}.json").read_text())
    rows = read_results(real_data / f"real-detections/yolox_nano_{name}.json", full)
    return evaluate_rows(coco, rows[np.isin(rows[:, 6], sorted(known))]), coco


@pytest.mark.long
def test_gains_are_those_of_tidecv(real_data: Path, tmp_path: Path) -> None:
    """Compared with tidecv, installed into a separate environment; docs/evaluation.md lists the
    differences.
    """
    python = tmp_path / "tide" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "tide")], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "tidecv==1.0.1"], check=True)
    for name, split in (("tiny_coco100_val2017", "val2017"), ("coco128_train2017", "train2017")):
        for crowds in (False, True):
            result, coco = real_result(real_data, name, split, crowds)
            ours, _ = analyse(result)
            theirs = tide_of(python, coco, result.rows, tmp_path)
            base = ours["errors"]["AP50"]
            assert theirs.pop("AP") == pytest.approx(base, abs=1e-3)
            detected = set(result.rows[:, 6].astype(int).tolist())
            undetected = sum(each["id"] not in detected for each in coco["categories"])
            kept = 1 - undetected / len(coco["categories"])
            for key, gain in theirs.items():
                # A class without detections has nothing left where its objects are taken away:
                # tidecv's mean leaves it out.
                gain = (base + gain) * kept - base if key in ("Miss", "FN") else gain
                found = ours["errors"]["types"][ERRORS[key]]["gain"]
                print(f"{split} crowds={crowds} {key}: {found:.5f}, tidecv {gain:.5f}")
                assert found == pytest.approx(gain, abs=4e-3 if crowds else 1e-3), (split, key)


def tide_of(python: Path, coco: dict[str, Any], rows: np.ndarray, folder: Path) -> dict[str, float]:
    results = [
        {"image_id": int(r[0]), "bbox": r[1:5], "score": r[5], "category_id": int(r[6])}
        for r in rows.tolist()
    ]
    (folder / "truth.json").write_text(json.dumps(coco))
    (folder / "results.json").write_text(json.dumps(results))
    code = (
        "import json; from tidecv import TIDE, datasets; tide = TIDE()\n"
        "run = tide.evaluate(datasets.COCO('truth.json'), datasets.COCOResult('results.json'), mode=TIDE.BOX)\n"
        "errors = tide.get_all_errors(); main, special = (next(iter(errors[k].values())) for k in ('main', 'special'))\n"
        "special = {'FP': special['FalsePos'], 'FN': special['FalseNeg']}\n"
        "print(json.dumps({'AP': run.ap, **main, **special}))"
    )
    done = subprocess.run(
        [str(python), "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return {name: value / 100 for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
