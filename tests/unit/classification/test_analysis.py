"""What an evaluation of a classifier says of errors and images."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from retina_dist.classification.analysis import analyse
from retina_dist.classification.metrics import ClassificationResult, evaluate_rows, rows_of
from retina_dist.reporting.analysis import lines_of

SAMPLE = Path(__file__).parents[2] / "samples" / "analysis_classification.json"
CLASSES = ("cat", "dog", "fox")


NAMES = [f"{i}.jpg" for i in range(4)]
LOGITS = torch.tensor([[4.0, 0, 0], [0, 1, 0], [3, 2, 0], [0, 0, 9]])


@pytest.fixture(scope="module")
def result() -> ClassificationResult:
    labels = torch.tensor([0, 1, 1, 0])
    losses = torch.nn.functional.cross_entropy(LOGITS, labels, reduction="none")
    return evaluate_rows(rows_of(LOGITS, losses, labels, torch.arange(4)).numpy(), CLASSES)


def test_the_worst_images_and_the_most_confident_errors(
    result: ClassificationResult, tmp_path: Path
) -> None:
    analysis, _ = analyse(result, NAMES, tmp_path)
    assert [image["file_name"] for image in analysis["worst"]] == NAMES[::-1]
    assert [image["file_name"] for image in analysis["confident"]] == ["3.jpg", "2.jpg"]
    worst = analysis["worst"][0]
    assert (worst["class"], worst["predicted"], worst["misses"]) == ("cat", "fox", 1)
    assert worst["score"] == pytest.approx(float(LOGITS[3].softmax(0)[2]))
    with (tmp_path / "images.csv").open() as file:
        assert next(csv.DictReader(file))["file_name"] == "3.jpg"


def test_the_confusion_and_the_calibration_count_every_image(result: ClassificationResult) -> None:
    analysis, resampled = analyse(result, NAMES)
    assert analysis["confusion"] == {
        "labels": list(CLASSES),
        "counts": [[1, 0, 1], [1, 1, 0], [0, 0, 0]],
    }
    assert analysis["metrics"]["top1"]["value"] == resampled.values["val/top1"] == 0.5
    assert analysis["classes"]["fox"] == {"value": None, "low": None, "high": None, "objects": 0}
    assert sum(each["count"] for each in analysis["calibration"]["bins"]) == 4


def test_the_analysis_has_the_form_of_the_sample(result: ClassificationResult) -> None:
    analysis, _ = analyse(result, NAMES)
    sample = json.loads(SAMPLE.read_text())
    assert list(analysis) == list(sample)
    assert list(analysis["metrics"]) == list(sample["metrics"])
    assert set(analysis["worst"][0]) == set(sample["worst"][0])
    lines = lines_of(analysis)
    assert "most confused   cat taken for fox (1), dog taken for cat (1)" in lines
    assert len(lines) <= 11
    worst = lines.index("worst images   true class / predicted / score")
    assert lines[worst + 1] == "  3.jpg   cat / fox / 1.000"


def test_resamples_are_of_the_same_images_by_their_names(result: ClassificationResult) -> None:
    images = analyse(result, NAMES)[1].images
    assert analyse(result, NAMES)[1].images == images
    assert analyse(result, [f"other/{name}" for name in NAMES])[1].images != images


def test_logits_that_are_not_finite_raise_nothing() -> None:
    """Nor is any metric a number, which could be the best one."""
    logits = torch.tensor([[torch.nan, 0.0, 0.0], [0.0, 1.0, 0.0]])
    rows = rows_of(logits, logits[:, 0], torch.tensor([0, 1]), torch.arange(2))
    result = evaluate_rows(rows.numpy(), CLASSES)
    assert all(np.isnan(value) for value in result.metrics.values())
    analysis, _ = analyse(result, ["a.jpg", "b.jpg"])
    json.dumps(analysis, allow_nan=False)
    assert analysis["metrics"]["top1"] == {"value": None, "low": None, "high": None}
    assert np.isfinite(analysis["calibration"]["ece"])
