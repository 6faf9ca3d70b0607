"""What a classifier gets wrong, and how sure its metrics are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retina_dist.classification.metrics import ClassificationResult
from retina_dist.reporting.analysis import analysis_of, calibration_of, confusion_of
from retina_dist.reporting.intervals import Resampled, digest_of, resampled_weights


def analyse(
    result: ClassificationResult, names: Sequence[str], folder: Path | None = None
) -> tuple[dict[str, Any], Resampled]:
    """The content of analysis.json and the resampled metrics, of images `names`; written with images.csv to `folder`, if given."""
    resampled, classes = resample(result, names), result.classes
    rows = np.nan_to_num(result.rows)  # JSON has no NaN
    images = [
        {
            "file_name": names[int(row[0])],
            "image_id": int(row[0]),
            "hits": int(row[3] < 1),
            "false_alarms": int(row[3] >= 1),
            "misses": int(row[3] >= 1),
            "score": float(row[6]),
            "class": classes[int(row[1])],
            "predicted": classes[int(row[2])],
            "loss": float(row[4]),
        }
        for row in rows[np.lexsort((-rows[:, 4], rows[:, 3] < 1))]
    ]
    analysis = analysis_of(
        "classification",
        resampled,
        {
            name: {"objects": int(count)}
            for name, count in zip(classes, result.confusion.sum(axis=1), strict=True)
        },
        images,
        folder,
        threshold=None,
        confusion=confusion_of(classes, lambda: result.confusion),
        errors=None,
        calibration=calibration_of(rows[:, 6], rows[:, 3] < 1),
    )
    return analysis, resampled


def resample(result: ClassificationResult, names: Sequence[str]) -> Resampled:
    """`val/top1`, `val/top5`, `val/balanced_accuracy` and the accuracies `val/top1/CLASS`, in resamples of the images `names`."""
    rows = result.rows
    weights = resampled_weights(len(rows))
    labels = rows[:, 1].astype(np.int64)
    right = rows[:, 3] < 1
    of_classes = (labels == label for label in range(len(result.classes)))
    with np.errstate(invalid="ignore"):
        shares = [weights[own & right].sum(axis=0) / weights[own].sum(axis=0) for own in of_classes]
    accuracies = np.array(shares)  # [K, B]
    known = np.isfinite(accuracies)
    samples = {
        "val/top1": weights[right].sum(axis=0) / len(rows),
        "val/top5": weights[rows[:, 3] < 5].sum(axis=0) / len(rows),
        "val/balanced_accuracy": np.where(known, accuracies, 0).sum(axis=0) / known.sum(axis=0),
    }
    values = {name: result.metrics[name] for name in samples}
    for (name, accuracy), of_class in zip(result.per_class.items(), accuracies, strict=True):
        samples[f"val/top1/{name}"], values[f"val/top1/{name}"] = (
            of_class,
            np.nan if accuracy is None else accuracy,
        )
    return Resampled(
        digest_of((i, names[i]) for i in rows[:, 0].astype(np.int64).tolist()), values, samples
    )
