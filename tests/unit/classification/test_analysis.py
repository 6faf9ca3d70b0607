"""What an evaluation of a classifier says of errors and images."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from retina_dist.classification.analysis import analyse
from retina_dist.classification.metrics import evaluate_rows, rows_of
from retina_dist.reporting.analysis import lines_of

SAMPLE = Path(__file__).parents[2] / "samples" / "analysis_classification.json"
CLASSES = ("cat", "dog", "fox")


def test_the_worst_images_and_the_most_confident_errors(tmp_path: Path) -> None:
    logits = torch.tensor([[4.0, 0, 0], [0, 1, 0], [3, 2, 0], [0, 0, 9]])
    labels = torch.tensor([0, 1, 1, 0])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    result = evaluate_rows(rows_of(logits, losses, labels, torch.arange(4)).numpy(), CLASSES)
    names = [f"{i}.jpg" for i in range(4)]
    analysis, resampled = analyse(result, names, tmp_path)
    assert [image["file_name"] for image in analysis["worst"]] == [
        "3.jpg",
        "2.jpg",
        "1.jpg",
        "0.jpg",
    ]
    assert [image["file_name"] for image in analysis["confident"]] == ["3.jpg", "2.jpg"]
    worst = analysis["worst"][0]
    assert (worst["class"], worst["predicted"], worst["misses"]) == ("cat", "fox", 1)
    assert worst["score"] == pytest.approx(float(logits[3].softmax(0)[2]))
    assert analysis["confusion"] == {
        "labels": list(CLASSES),
        "counts": [[1, 0, 1], [1, 1, 0], [0, 0, 0]],
    }
    assert analysis["metrics"]["top1"]["value"] == resampled.values["val/top1"] == 0.5
    assert analysis["classes"]["fox"] == {"value": None, "low": None, "high": None, "objects": 0}
    assert sum(each["count"] for each in analysis["calibration"]["bins"]) == 4
    assert [row["file_name"] for row in csv.DictReader((tmp_path / "images.csv").open())][
        0
    ] == "3.jpg"
    sample = json.loads(SAMPLE.read_text())
    assert list(analysis) == list(sample)
    assert list(analysis["metrics"]) == list(sample["metrics"])
    assert set(worst) == set(sample["worst"][0])
    assert "most confused   cat taken for fox (1), dog taken for cat (1)" in lines_of(analysis)
    assert len(lines_of(analysis)) <= 10
    assert analyse(result, names)[1].images == resampled.images
    assert analyse(result, [f"other/{name}" for name in names])[1].images != resampled.images


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
