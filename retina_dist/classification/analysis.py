"""What a classifier gets wrong, and how sure its metrics are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from retina_dist.classification.metrics import COLUMNS, ClassificationResult
from retina_dist.reporting.analysis import analysis_of, confusion_of
from retina_dist.reporting.calibration import calibration_of
from retina_dist.reporting.intervals import Resampled, digest_of, left_out_weights


def analyse(
    result: ClassificationResult,
    names: Sequence[str],
    folder: Path | None = None,
    times: Mapping[str, float] = {},
) -> tuple[dict[str, object], Resampled]:
    """The content of analysis.json and the resampled metrics, of images `names`.

    With `folder` it is written there, and images.csv. `times` are the seconds `s` and `cpu_s` that
    the images took.
    """
    resampled = resample(result, names)
    classes = result.classes
    rows = np.nan_to_num(result.rows)  # JSON has no NaN
    right = rows[:, 3] < 1

    images = []
    for row in rows[np.lexsort((-rows[:, 4], right))]:
        image_id, label, predicted = map(int, row[:3])
        is_right = int(row[3] < 1)
        images.append(
            {
                "file_name": names[image_id],
                "image_id": image_id,
                "hits": is_right,
                "false_alarms": 1 - is_right,
                "misses": 1 - is_right,
                "score": float(row[6]),
                "class": classes[label],
                "predicted": classes[predicted],
                "loss": float(row[4]),
            }
        )
    per_class = {}
    for name, count in zip(classes, result.confusion.sum(axis=1), strict=True):
        per_class[name] = {"objects": int(count)}

    analysis = analysis_of(
        "classification",
        resampled,
        per_class,
        images,
        folder,
        times,
        threshold=None,
        confusion=confusion_of(classes, lambda: result.confusion),
        errors=None,
        hits={},
        calibration=calibration_of(
            rows[:, 6],
            rows[:, 2].astype(np.int64),
            rows[:, 1].astype(np.int64),
            result.rows[:, COLUMNS:] if result.rows.shape[1] > COLUMNS else None,
        ),
    )
    return analysis, resampled


def resample(result: ClassificationResult, names: Sequence[str]) -> Resampled:
    """The metrics of all images `names`, and with groups of them left out.

    They are `val/top1`, `val/top5`, `val/balanced_accuracy` and the accuracies `val/top1/CLASS`.
    """
    rows = result.rows
    weights = left_out_weights(len(rows))
    total = weights.sum(axis=0)
    labels = rows[:, 1].astype(np.int64)
    right = rows[:, 3] < 1
    shares = []
    with np.errstate(invalid="ignore"):
        for label in range(len(result.classes)):
            own = labels == label
            shares.append(weights[own & right].sum(axis=0) / weights[own].sum(axis=0))
    accuracies = np.array(shares)  # [K, B]
    known = np.isfinite(accuracies)
    samples = {
        "val/top1": weights[right].sum(axis=0) / total,
        "val/top5": weights[rows[:, 3] < 5].sum(axis=0) / total,
        "val/balanced_accuracy": np.where(known, accuracies, 0).sum(axis=0) / known.sum(axis=0),
    }
    values = {name: result.metrics[name] for name in samples}
    for (name, accuracy), of_class in zip(result.per_class.items(), accuracies, strict=True):
        key = f"val/top1/{name}"
        samples[key] = of_class
        values[key] = np.nan if accuracy is None else accuracy
    image_ids = rows[:, 0].astype(np.int64).tolist()
    return Resampled(digest_of((i, names[i]) for i in image_ids), values, samples)
