"""Metrics against numbers computed by hand, and how ranks share the images."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from retina_dist.base.errors import DataError
from retina_dist.classification.dataset import ImageBatch
from retina_dist.classification.metrics import (
    BINARY,
    METRICS,
    ClassificationEvaluator,
    evaluate_rows,
    roc_auc,
    rows_of,
)
from retina_dist.classification.samples import Samples
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.testing.thread_ranks import Job, ThreadRank
from retina_dist.tracking.loggers import CsvLogger, LoggerCollection
from retina_dist.tracking.settings import LoggerSettings
from tests.metric_files import read_metrics


def rows(*items: tuple[int, int, int, float, float]) -> np.ndarray:
    """Of (label, prediction, place, loss, score), an image each."""
    return np.array([(i, *item) for i, item in enumerate(items)], np.float64)


def test_two_classes_by_hand() -> None:
    """Scores of the second class 0.9 0.4 | 0.6 0.2 0.1: of six pairs, five are in order."""
    found = evaluate_rows(
        rows(
            (1, 1, 0, 0.1, 0.9),
            (1, 0, 1, 0.9, 0.4),
            (0, 1, 1, 0.9, 0.6),
            (0, 0, 0, 0.2, 0.2),
            (0, 0, 0, 0.1, 0.1),
        ),
        ("healthy", "ill"),
    )
    assert found.confusion.tolist() == found.to_dict()["confusion"] == [[2, 1], [1, 1]]
    many = evaluate_rows(found.rows, [str(label) for label in range(2001)])
    assert many.to_dict()["confusion"] is None
    expected = {
        "top1": 3 / 5,
        "top5": 1.0,
        "balanced_accuracy": (2 / 3 + 1 / 2) / 2,
        "loss": 2.2 / 5,
    }
    expected |= {"sensitivity": 1 / 2, "specificity": 2 / 3, "roc_auc": 5 / 6}
    assert found.metrics == pytest.approx(
        {f"val/{name}": value for name, value in expected.items()}
    )
    assert tuple(sorted(found.metrics)) == tuple(sorted(METRICS + BINARY))
    assert found.per_class == pytest.approx({"healthy": 2 / 3, "ill": 1 / 2})


def test_roc_auc_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores, labels = rng.integers(0, 6, 20).astype(float), rng.integers(0, 2, 20)
        above, below = scores[labels == 1, None], scores[None, labels == 0]
        if above.size and below.size:
            assert roc_auc(scores, labels) == pytest.approx(
                float(((above > below) + (above == below) / 2).mean())
            )


def test_large_logit_differences_do_not_tie() -> None:
    """In float64, softmax gives 1.0 for 40 and for 50."""
    logits, labels = torch.tensor([[0.0, 40.0], [0.0, 50.0]]), torch.tensor([0, 1])
    found = evaluate_rows(
        rows_of(logits, torch.zeros(2), labels, torch.arange(2)).numpy(), ("a", "b")
    )
    assert found.metrics["val/roc_auc"] == 1.0


@pytest.mark.parametrize(
    ("label", "undefined"),
    [(0, {"val/sensitivity", "val/roc_auc"}), (1, {"val/specificity", "val/roc_auc"})],
    ids=["no positive image", "no negative image"],
)
def test_a_metric_with_an_empty_denominator_is_nan_and_in_no_log(
    label: int, undefined: set[str], tmp_path: Path
) -> None:
    found = evaluate_rows(rows((label, 1, 0, 0, 0.5), (label, 0, 0, 0, 0.5)), ("a", "b"))
    assert {name for name, value in found.metrics.items() if math.isnan(value)} == undefined
    assert found.metrics["val/balanced_accuracy"] == 0.5
    assert {name for name, value in found.to_dict().items() if value is None} == {
        n[4:] for n in undefined
    }
    logger = LoggerCollection(CsvLogger(LoggerSettings(), tmp_path))
    logger.on_validation(found.metrics, 1)
    assert set(read_metrics(tmp_path / "metrics.csv")) == set(METRICS + BINARY) - undefined


def test_many_classes_by_hand() -> None:
    """Seven classes, one without an image; places 0, 4, 5 and 6 among the logits."""
    found = evaluate_rows(
        rows((0, 0, 0, 1, 0), (0, 1, 4, 2, 0), (1, 0, 5, 3, 0), (2, 3, 6, 4, 0)), tuple("abcdefg")
    )
    assert (found.metrics["val/top1"], found.metrics["val/top5"], found.metrics["val/loss"]) == (
        0.25,
        0.5,
        2.5,
    )
    assert found.metrics["val/balanced_accuracy"] == pytest.approx(0.5 / 3)
    assert found.per_class["d"] is None
    assert "val/roc_auc" not in found.metrics
    with pytest.raises(DataError, match="no validation image could be read"):
        evaluate_rows(np.zeros((0, 6)), ("a", "b"))


class Echo(nn.Module):
    """Sees the label in the red channel, and is wrong about image 3."""

    def logits(self, images: Tensor, real: Tensor | None = None) -> Tensor:
        wrong = images[:, 1, 0, 0] == 3
        return nn.functional.one_hot((images[:, 0, 0, 0].long() + wrong) % 3, 3).float()

    def losses(self, logits: Tensor, batch: ImageBatch) -> Tensor:
        return batch.image_ids.double()


def batch(indices: list[int]) -> ImageBatch:
    labels = torch.tensor([i % 3 for i in indices])
    images = torch.zeros(len(indices), 3, 1, 1, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 1, 0, 0] = (
        labels.to(torch.uint8),
        torch.tensor(indices, dtype=torch.uint8),
    )
    return ImageBatch(images, labels, labels, torch.ones(len(indices)), torch.tensor(indices))


VAL = Samples(tuple("0123456"), tuple("0123456"), np.arange(7) % 3, ("a", "b", "c"))


class Gathering(ThreadRank):
    """Knows the rows of the other ranks."""

    others: Tensor

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat((self.others, x))


def test_an_image_on_two_ranks_counts_once_and_an_absent_one_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def evaluator(strategy: SingleDeviceStrategy, *shares: list[int]) -> ClassificationEvaluator:
        return ClassificationEvaluator(VAL, lambda: map(batch, shares), strategy)

    alone = evaluator(SingleDeviceStrategy("cpu"), [0, 1, 2], [3, 4, 5, 6])
    expected = alone(Echo())
    assert expected["val/top1"] == pytest.approx(6 / 7)
    assert expected["val/loss"] == 3.0
    first = evaluator(SingleDeviceStrategy("cpu"), [0, 2, 4, 6])
    assert not caplog.messages
    first(Echo())
    assert caplog.messages == ["3 of 7 validation images cannot be read; no metric counts them"]
    second = Gathering(1, Job(2))
    second.others = torch.from_numpy(first.evaluate(Echo()).rows)
    both = evaluator(second, [5, 3, 1, 0])
    assert both(Echo()) == expected
    assert both.last_result is not None
    assert both.last_result.rows[:, 0].tolist() == list(range(7))
