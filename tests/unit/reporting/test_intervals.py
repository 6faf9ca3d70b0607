"""95 % intervals by bootstrap over images."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retina_dist.base.errors import DataError
from retina_dist.reporting.intervals import (
    Ranking,
    Resampled,
    average_precision,
    digest_of,
    resampled_weights,
)


def accuracy_of(right: np.ndarray, weights: np.ndarray) -> Resampled:
    images = digest_of((i, f"{i}.jpg") for i in range(len(right)))
    return Resampled(images, {"top1": right.mean()}, {"top1": right @ weights / len(right)})


def test_weights_are_a_function_of_the_seed() -> None:
    weights = resampled_weights(50, 20, seed=3)
    assert (weights.shape, weights.dtype) == ((50, 20), np.float32)
    assert (weights.sum(axis=0) == 50).all()
    np.testing.assert_array_equal(weights[:, :5], resampled_weights(50, 5, seed=3))
    assert (weights != resampled_weights(50, 20, seed=4)).any()


def test_an_accuracys_interval_is_the_binomial_one() -> None:
    right = np.arange(400) % 5 > 0
    bars = accuracy_of(right, resampled_weights(400)).interval("top1")
    assert bars.value == 0.8
    assert (bars.high - bars.low) / 2 == pytest.approx(1.96 * (0.8 * 0.2 / 400) ** 0.5, rel=0.1)


def test_a_paired_difference_is_surer_than_the_two_intervals(tmp_path: Path) -> None:
    rng, weights = np.random.default_rng(0), resampled_weights(1000)
    first = rng.random(1000) < 0.7
    second = first | (rng.random(1000) < 0.1)  # right on the same images, and on some more
    one, two = accuracy_of(first, weights), accuracy_of(second, weights)
    assert one.interval("top1").high > two.interval("top1").low, "the intervals overlap"
    assert two.difference(one, "top1").low > 0, "and yet the second one is better"
    two.save(tmp_path)
    loaded = Resampled.load(tmp_path)
    assert loaded is not None
    assert loaded.values == two.values
    assert loaded.difference(one, "top1").low == pytest.approx(
        two.difference(one, "top1").low, abs=1e-6
    )
    with pytest.raises(DataError, match="of different images"):
        accuracy_of(first[:500], resampled_weights(500)).difference(one, "top1")
    assert Resampled.load(tmp_path / "other") is None


@pytest.mark.parametrize(
    "damage", [lambda content: b"", lambda content: b"text", lambda content: content[:-40]]
)
def test_a_damaged_file_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    accuracy_of(np.ones(5), resampled_weights(5)).save(tmp_path)
    file = tmp_path / "resamples.npz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"resamples.npz cannot be read .*; remove or repair it"):
        Resampled.load(tmp_path)


def test_rounding_does_not_part_a_value_from_its_resamples() -> None:
    """Many resamples of few images have the value itself, and half of them count as below it."""
    samples = np.repeat([0.5, 0.7, 0.9], [100, 700, 200])
    bars = Resampled("", {"AP": 0.7}, {"AP": samples}).interval("AP")
    for rounded in (samples - 1e-9, samples + 1e-9, samples.astype(np.float32)):
        again = Resampled("", {"AP": 0.7}, {"AP": rounded}).interval("AP")
        assert (again.low, again.high) == pytest.approx((bars.low, bars.high))


def test_many_objects_and_one_hit_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed at once is limited by the number of objects; the hit reaches the first of 101 recalls."""
    monkeypatch.setattr("retina_dist.reporting.intervals.BLOCK", 1 << 20)
    objects = np.repeat([0, 1, 2], [15_000, 0, 5_000])
    right = np.array([[True]])
    ranking = Ranking(np.array([0.9]), np.array([0]), right, ~right, objects)
    weights = np.tile(np.array([[1, 0, 0, 2], [1, 3, 0, 1], [1, 0, 3, 0]], np.float32), 250)
    tracemalloc.start()
    found = average_precision(ranking, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found, np.tile([[1 / 101, np.nan, 0, 1 / 101]], 250), rtol=1e-6)
    assert peak < 100e6


def test_what_is_undefined_has_no_interval() -> None:
    nothing = Ranking(
        np.zeros(0),
        np.zeros(0, np.int64),
        np.zeros((1, 0), bool),
        np.zeros((1, 0), bool),
        np.zeros(0, np.int64),
    )
    missed = Ranking(
        np.array([0.5]),
        np.array([0]),
        np.zeros((1, 1), bool),
        np.zeros((1, 1), bool),
        np.array([0, 0]),
    )
    weights = resampled_weights(2, 4)
    assert np.isnan(average_precision(nothing, weights)).all()
    assert (average_precision(missed, np.ones((2, 1))) == 0).all()
    bars = Resampled("", {"AP": float("nan")}, {"AP": np.full(4, np.nan)}).interval("AP")
    assert bars.to_dict() == {"value": None, "low": None, "high": None}
    assert str(bars) == ""


def drawn(rng: np.random.Generator, settings: dict[str, Any], images: int) -> list[Ranking]:
    """What a simulated detector says of so many images: some are harder than others, for hits and false alarms alike."""
    rankings = []
    hardness = rng.gamma(1 / settings["spread"], settings["spread"], images)  # its mean is 1
    for frequency, recall, alarms in zip(
        *(settings[key] for key in ("frequency", "recall", "alarms")), strict=True
    ):
        objects = np.repeat(np.arange(images), rng.poisson(frequency, images))
        hit = objects[rng.random(len(objects)) < recall ** hardness[objects]]
        false = np.repeat(np.arange(images), rng.poisson(alarms * hardness))
        overlap = np.append(
            rng.beta(12 * settings["quality"], 12 * (1 - settings["quality"]), len(hit)), 0 * false
        )
        scores = rng.beta(settings["sharpness"], 2, len(hit)) * (0.5 + overlap[: len(hit)] / 2)
        scores = np.append(scores, rng.beta(1.2, settings["sharpness"], len(false)))
        order = np.argsort(-scores)
        right = overlap[order] >= np.linspace(0.5, 0.95, 10)[:, None]
        places = np.append(hit, false)[order]
        rankings.append(Ranking(scores[order], places, right, np.zeros_like(right), objects))
    return rankings


def mean_and_at_50(rankings: list[Ranking], weights: np.ndarray) -> dict[str, np.ndarray]:
    found = np.array([average_precision(ranking, weights) for ranking in rankings])  # [K, T, B]
    return {"AP": found.mean(axis=(0, 1)), "AP50": found[:, 0].mean(axis=0)}


@pytest.mark.long
def test_intervals_of_simulated_detectors_hold_their_true_ap() -> None:
    """200 detectors of five classes, each judged on 200 images, and on 20,000 others for its true AP."""
    weights, held = resampled_weights(200), {"AP": 0, "AP50": 0}
    for seed in range(200):
        rng = np.random.default_rng([7, seed])
        settings = {
            "recall": rng.uniform(0.5, 0.95, 5),
            "sharpness": rng.uniform(2, 8),
            "alarms": rng.uniform(0.2, 2, 5),
            "spread": rng.uniform(0.2, 0.8),
            "quality": rng.uniform(0.7, 0.9),
            "frequency": np.array([3, 1.5, 0.7, 0.4, 0.2]) * rng.uniform(0.7, 1.3, 5),
        }
        truth = mean_and_at_50(drawn(rng, settings, 20_000), np.ones((20_000, 1)))
        sample = drawn(rng, settings, 200)
        values, samples = mean_and_at_50(sample, np.ones((200, 1))), mean_and_at_50(sample, weights)
        resampled = Resampled(
            "", {name: float(value[0]) for name, value in values.items()}, samples
        )
        for name in held:
            bars = resampled.interval(name)
            held[name] += int(bars.low <= truth[name][0] <= bars.high)
        print(seed + 1, held, flush=True)
    assert all(0.93 <= count / 200 <= 0.97 for count in held.values()), held
