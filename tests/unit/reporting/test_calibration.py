"""The temperature that scores need, and the calibration error before and after it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retina_dist.reporting.calibration import binary_logits, calibration_of

pytest.importorskip("hotcoco", reason='needs pip install "retina-dist[analysis]"')

# Logits of a calibrated model, and how many of the predictions with each are right and wrong.
SHARES = {np.log(9): (9, 1), np.log(3): (3, 1), 0.0: (2, 2), -np.log(4): (1, 4)}


def scored(temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are calibrated at `temperature`, and whether each prediction is right."""
    logits = []
    right = []
    for logit, (hits, misses) in SHARES.items():
        logits += [temperature * logit] * (hits + misses)
        right += [1] * hits + [0] * misses
    return 1 / (1 + np.exp(-np.array(logits))), np.array(right)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.83, 6.0])
def test_a_known_temperature_of_scores_is_found(temperature: float) -> None:
    scores, right = scored(temperature)
    found = calibration_of(scores, np.ones(len(scores), int), right, binary_logits(scores))
    assert found is not None
    assert found["temperature"] == pytest.approx(temperature, rel=1e-4)
    assert found["after"]["ece"] == pytest.approx(0, abs=1e-4)
    if temperature == 1.83:
        # 10 scores of .982 with .9 right, 4 of .882 with .75, 4 of .5, 5 of .073 with .2
        gaps = 10 * (0.98239 - 0.9) + 4 * (0.88189 - 0.75) + 5 * (0.2 - 0.07331)
        assert found["ece"] == pytest.approx(gaps / 23, abs=1e-4)


def test_a_known_temperature_of_logits_is_found() -> None:
    """Three classes with the shares 1/2, 1/4, 1/4 and 1/10, 1/10, 8/10."""
    counts = np.array([[2, 1, 1], [1, 1, 8]])
    images = counts.sum(axis=1)
    logits = 2.5 * np.log(counts / images[:, None]).repeat(images, axis=0)
    labels = np.concatenate([np.arange(3).repeat(row) for row in counts])
    predicted = logits.argmax(axis=1)
    scores = torch.from_numpy(logits).softmax(1).amax(1).numpy()
    found = calibration_of(scores, predicted, labels, logits)
    assert found is not None
    assert found["temperature"] == pytest.approx(2.5, rel=1e-4)
    assert found["after"]["ece"] == pytest.approx(0, abs=1e-4)
    assert found["ece"] > 0.05
    without = calibration_of(scores, predicted, labels)
    assert without == {**found, "temperature": None, "after": None}


@pytest.mark.parametrize(
    ("scores", "right"),
    [
        ([], []),
        ([0.3, 0.9], [1, 1]),
        ([0.3, 0.9], [0, 0]),
        ([0.9, 0.8, 0.2], [0, 0, 1]),
        ([np.nan, 0.5], [1, 0]),
    ],
    ids=["no prediction", "all right", "all wrong", "the wrong way round", "not finite"],
)
def test_where_no_temperature_fits_there_is_none(scores: list[float], right: list[int]) -> None:
    values = np.array(scores)
    labels = np.array(right, np.int64)
    found = calibration_of(values, np.ones(len(values), int), labels, binary_logits(values))
    assert found is not None
    assert found["temperature"] is found["after"] is None
