"""Metrics of a classifier.

Ranks gather one row for each image, and each computes the metrics from all rows.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retina_dist.base.arguments import Numbers, Suggests
from retina_dist.base.errors import DataError
from retina_dist.classification.dataset import ImageBatch
from retina_dist.reporting.analysis import MAX_IN_MATRIX
from retina_dist.task.image_task import Evaluator

logger = logging.getLogger(__name__)

# Of a row: image, label, prediction, rank of the label's logit, loss, last logit - first logit,
# probability of the prediction. With `keep_logits` the logits follow.
COLUMNS = 7
METRICS = ("val/top1", "val/top5", "val/balanced_accuracy", "val/loss")
# Of two classes, the second one positive.
BINARY = ("val/roc_auc", "val/sensitivity", "val/specificity")


@dataclass(frozen=True)
class ClassificationResult(Suggests):
    """Metrics by name, with the rows that they were computed from."""

    metrics: dict[str, float]
    classes: tuple[str, ...]
    confusion: np.ndarray  # [K, K] images by class (row) and prediction (column)
    rows: np.ndarray = field(repr=False)  # one for each image

    @property
    def per_class(self) -> dict[str, float | None]:
        """Accuracy of each class; None for one without images."""
        accuracies: dict[str, float | None] = dict.fromkeys(self.classes)
        for i, name in enumerate(self.classes):
            count = self.confusion[i].sum()
            if count:
                accuracies[name] = float(self.confusion[i, i] / count)
        return accuracies

    def to_dict(self) -> dict[str, Any]:
        """For JSON: null in place of NaN and of a confusion matrix of more than 2,000 classes."""
        content: dict[str, object] = {}
        for name, value in self.metrics.items():
            content[name.removeprefix("val/")] = value if math.isfinite(value) else None
        content["per_class_accuracy"] = self.per_class
        content["confusion"] = None
        if len(self.classes) <= MAX_IN_MATRIX:
            content["confusion"] = self.confusion.tolist()
        return content


def rows_of(logits: Tensor, losses: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
    """[B, 7] float64 rows of a batch; of equal logits the first class comes first."""
    wide = logits.double()
    own = wide.gather(1, labels[:, None])
    earlier = torch.arange(wide.shape[1], device=wide.device) < labels[:, None]
    above = (wide > own).sum(1) + ((wide == own) & earlier).sum(1)
    # logits, since softmax gives 1.0 for every difference above 37, a tie
    score = (wide[:, -1] - wide[:, 0]).where(wide.isfinite().all(1), torch.nan)
    columns = (indices, labels, wide.argmax(1), above, losses, score, wide.softmax(1).amax(1))
    return torch.stack([column.double() for column in columns], 1)


def evaluate_rows(rows: np.ndarray, classes: Sequence[str]) -> ClassificationResult:
    """The metrics of rows [N, 7], or more columns, one for each image.

    Every metric is NaN where a logit was not finite.

    The balanced accuracy is the mean over the classes that have images (the macro recall). A metric
    with an empty denominator is NaN, such as sensitivity without a positive image. Raises DataError
    without any row.
    """
    if not len(rows):
        raise DataError(
            "no validation image could be read; look at the data with retina_dist.doctor."
        )
    labels = rows[:, 1].astype(np.int64)
    predictions = rows[:, 2].astype(np.int64)
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (labels, predictions), 1)
    with np.errstate(invalid="ignore"):  # of a class without images: NaN
        recall = confusion.diagonal() / confusion.sum(axis=1)
    metrics = {
        "val/top1": float((rows[:, 3] < 1).mean()),
        "val/top5": float((rows[:, 3] < 5).mean()),
        "val/balanced_accuracy": float(np.nanmean(recall)),
        "val/loss": float(rows[:, 4].mean()),
    }
    if len(classes) == 2:
        metrics["val/specificity"], metrics["val/sensitivity"] = map(float, recall)
        metrics["val/roc_auc"] = roc_auc(rows[:, 5], labels)
    if np.isnan(rows[:, 5]).any():
        metrics = dict.fromkeys(metrics, math.nan)
    return ClassificationResult(Numbers(metrics), tuple(classes), confusion, rows)


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Probability that an image of label 1 scores above one of label 0; a tie counts half.

    It is the Mann-Whitney U from ranks, over the number of pairs; NaN without both labels.
    """
    positive = labels == 1
    num_positive = int(positive.sum())
    pairs = num_positive * int((~positive).sum())
    if not pairs:
        return math.nan
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    lowest_sum = num_positive * (num_positive + 1) / 2
    return float((ranks[positive].sum() - lowest_sum) / pairs)


class ClassificationEvaluator(Evaluator[ClassificationResult]):
    """Metrics of a model over `val`, the `Samples` of the validation set.

    A warning counts images that cannot be read. With `keep_logits` each image's row ends with its
    logits, of which a temperature is fitted.
    """

    keep_logits = False

    def update(self, model: Any, batch: ImageBatch) -> Tensor:
        with self.autocast():
            logits = model.logits(batch.images, batch.real)
        if self.temperature != 1:
            logits = logits.float() / self.temperature
        rows = rows_of(logits, model.losses(logits, batch), batch.labels, batch.image_ids)
        if self.keep_logits:
            rows = torch.cat((rows, logits.double()), dim=1)
        return rows if batch.real is None else rows[batch.real]

    def compute(self, parts: list[Tensor]) -> tuple[ClassificationResult, dict[str, float]]:
        columns = COLUMNS + len(self.val.classes) * self.keep_logits
        none = torch.zeros((0, columns), dtype=torch.float64, device=self.strategy.device)
        gathered = self.strategy.all_gather(torch.cat([none, *parts])).cpu().numpy()
        rows = gathered[np.unique(gathered[:, 0], return_index=True)[1]]
        unread = len(self.val) - len(rows)
        if self.strategy.is_main and unread:
            logger.warning(
                f"{unread} of {len(self.val)} validation images cannot be read; "
                "no metric counts them"
            )
        result = evaluate_rows(rows, self.val.classes)
        return result, dict(result.metrics)
