"""What a classifier gets wrong, and how sure its metrics are."""

from __future__ import annotations

import numpy as np

from retina_dist.classification.metrics import ClassificationResult
from retina_dist.reporting.intervals import Resampled, digest_of, resampled_weights


def resample(result: ClassificationResult) -> Resampled:
    """`val/top1`, `val/top5`, `val/balanced_accuracy` and the accuracies `val/top1/CLASS`, in resamples of the images."""
    rows = result.rows
    weights = resampled_weights(len(rows))
    labels = rows[:, 1].astype(np.int64)
    right = rows[:, 3] < 1
    with np.errstate(invalid="ignore"):
        accuracies = np.array(
            [
                weights[own & right].sum(axis=0) / weights[own].sum(axis=0)
                for own in (labels == label for label in range(len(result.classes)))
            ]
        )  # [K, B]
    known = np.isfinite(accuracies)
    samples = {
        "val/top1": weights[right].sum(axis=0) / len(rows),
        "val/top5": weights[rows[:, 3] < 5].sum(axis=0) / len(rows),
        "val/balanced_accuracy": np.where(known, accuracies, 0).sum(axis=0) / known.sum(axis=0),
    }
    values = {name: result.metrics[name] for name in samples}
    for (name, accuracy), of_class in zip(result.per_class.items(), accuracies, strict=True):
        samples[f"val/top1/{name}"], values[f"val/top1/{name}"] = of_class, np.nan if accuracy is None else accuracy
    return Resampled(digest_of(rows[:, 0].astype(np.int64)), values, samples)
