"""How far scores are from the share that is right, and the temperature that brings them nearer.

Guo et al., On Calibration of Modern Neural Networks, 2017, https://arxiv.org/abs/1706.04599.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from retina_dist.reporting.analysis import can_analyse

# Of a temperature; beyond them the scores tell hardly anything.
COLDEST, HOTTEST = 0.05, 20.0
NAMES = {
    "bin_lower": "low",
    "bin_upper": "high",
    "avg_confidence": "confidence",
    "avg_accuracy": "accuracy",
}


def calibration_of(
    scores: np.ndarray,
    predicted: np.ndarray,
    labels: np.ndarray,
    logits: np.ndarray | None = None,
) -> dict[str, object] | None:
    """`calibration` of analysis.json: the scores as they are and `after` temperature scaling.

    Args:
        scores: [N], of the predictions.
        predicted: [N], their classes.
        labels: [N], the true classes.
        logits: [N, K], whose softmax the scores are. There is no temperature without them, nor
            where all predictions are right, or all wrong.

    None without hotcoco.
    """
    if not can_analyse():
        return None
    right = predicted == labels
    temperature = None
    after = None
    if logits is not None and 0 < right.sum() < len(right):
        wide = torch.from_numpy(logits)
        temperature = fit_temperature(wide, torch.from_numpy(labels))
        if temperature is not None:
            shares = (wide / temperature).softmax(1).numpy()
            after = _bins_of(np.take_along_axis(shares, predicted[:, None], 1)[:, 0], right)
    return {**_bins_of(scores, right), "temperature": temperature, "after": after}


def binary_logits(scores: np.ndarray) -> np.ndarray:
    """[N, 2], whose softmax gives the scores [N] to the second class."""
    logits = torch.logit(torch.from_numpy(scores), eps=1e-12).numpy()
    return np.column_stack((np.zeros_like(logits), logits))


def fit_temperature(logits: Tensor, labels: Tensor) -> float | None:
    """The T that gives the labels [N] their highest likelihood under softmax(logits [N, K] / T).

    The likelihood has one maximum, as its logarithm is concave in 1 / T. None where that does not
    lie between COLDEST and HOTTEST.
    """
    if not logits.isfinite().all():
        return None
    inverse = torch.ones((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [inverse],
        max_iter=100,
        tolerance_grad=1e-12,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(logits * inverse, labels)
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    if not COLDEST < 1 / inverse < HOTTEST:
        return None
    return 1 / inverse.item()


def _bins_of(scores: np.ndarray, right: np.ndarray) -> dict[str, object]:
    """Score and share of right predictions by bin; their mean (`ece`) and largest gap (`mce`)."""
    from hotcoco import metrics

    ece, mce = metrics.calibration_error(scores, right, n_bins=10)
    curve = metrics.calibration_curve(scores, right, n_bins=10)
    bins = [{NAMES.get(key, key): value for key, value in each.items()} for each in curve]
    return {"ece": ece, "mce": mce, "bins": bins}
