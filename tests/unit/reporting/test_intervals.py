"""95 % intervals by the jackknife over images."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retina_dist.base.errors import DataError
from retina_dist.reporting.intervals import (
    MAX_GROUPS,
    NO_VARIATION,
    Interval,
    Resampled,
    digest_of,
    left_out_weights,
)


def accuracy_of(right: np.ndarray) -> Resampled:
    images = digest_of((i, f"{i}.jpg") for i in range(len(right)))
    weights = left_out_weights(len(right))
    samples = right @ weights / weights.sum(axis=0)
    return Resampled(images, {"top1": float(right.mean())}, {"top1": samples})


@pytest.mark.parametrize("images", [0, 1, 7, MAX_GROUPS, 3 * MAX_GROUPS + 5])
def test_each_image_is_left_out_once(images: int) -> None:
    weights = left_out_weights(images)
    assert weights.shape == (images, 1 + min(images, MAX_GROUPS))
    assert (weights[:, 0] == 1).all()
    weights = weights[:, 1:]
    assert ((weights == 0).sum(axis=1) == 1).all()
    left_out = (weights == 0).sum(axis=0)
    assert left_out.max(initial=0) - left_out.min(initial=images) <= 1
    np.testing.assert_array_equal(weights, left_out_weights(images)[:, 1:])


@pytest.mark.parametrize("images", [100, 400])
def test_an_accuracys_interval_is_the_binomial_one(images: int) -> None:
    bars = accuracy_of(np.arange(images) % 5 > 0).interval("top1")
    assert bars.value == 0.8
    assert (bars.high - bars.low) / 2 == pytest.approx(1.96 * (0.8 * 0.2 / images) ** 0.5, rel=0.1)


def test_the_interval_of_a_difference_holds_the_difference() -> None:
    """What is left of it without the bias of few images may have the other sign."""
    leave_out = np.linspace(-1e-3, 1e-3, 20)
    worse = Resampled("", {"AP": 0.4999}, {"AP": np.append(0.502, 0.502 + leave_out / 1e3)})
    first = Resampled("", {"AP": 0.5}, {"AP": np.append(0.5, 0.5 + 0 * leave_out)})
    found = worse.difference(first, "AP")
    assert found.low == found.value == pytest.approx(-1e-4)
    assert found.high > 0.002
    assert found.holds_zero


def test_the_named_number_of_images_would_tell_a_difference() -> None:
    """As many images of the same kind bring the end of the interval to 0."""
    numbers = np.arange(400)
    first, second = numbers % 5 > 0, numbers % 4 > 0
    near = accuracy_of(first).difference(accuracy_of(second), "top1")
    assert near.holds_zero
    times = 1 + near.more_images(400) / 400
    assert 1.1 < times < 2.5
    enough = round(times * 20) * 20  # a multiple of 20 keeps the rates
    numbers = np.arange(enough)
    first, second = numbers % 5 > 0, numbers % 4 > 0
    far = accuracy_of(first).difference(accuracy_of(second), "top1")
    assert far.low == pytest.approx(0, abs=0.005)
    assert Interval(0.2, -0.1, 0.3).more_images(100) == pytest.approx(300), "(.2 / .1)^2 = 4"
    assert Interval(0.0, -0.1, 0.1).more_images(100) == math.inf


def test_an_interval_stays_between_0_and_1() -> None:
    right = np.arange(30) > 0
    bars = accuracy_of(right).interval("top1")
    assert 0.5 < bars.low < bars.value < bars.high < 1
    bars = accuracy_of(~right).interval("top1")
    assert 0 < bars.low < bars.value < bars.high < 0.5


def test_the_interval_lies_around_the_center() -> None:
    samples = np.append(0.3, 0.3 + np.linspace(-0.001, 0.001, 50))
    shifted = Resampled("", {"AP": 0.4}, {"AP": samples}).interval("AP")
    plain = Resampled("", {"AP": 0.3}, {"AP": samples}).interval("AP")
    assert (shifted.low, shifted.high) == (plain.low, plain.high)
    assert shifted.value == 0.4


def test_a_paired_difference_is_surer_than_the_two_intervals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first = rng.random(1000) < 0.7
    second = first | (rng.random(1000) < 0.1)  # right on the same images, and on some more
    one = accuracy_of(first)
    two = accuracy_of(second)
    assert one.interval("top1").high > two.interval("top1").low, "the intervals overlap"
    assert two.difference(one, "top1").low > 0, "and yet the second one is better"
    two.save(tmp_path)
    loaded = Resampled.load(tmp_path)
    assert loaded is not None
    assert loaded.values == two.values
    gain = two.difference(one, "top1").low
    assert loaded.difference(one, "top1").low == pytest.approx(gain, abs=1e-6)
    with pytest.raises(DataError, match="of different images"):
        accuracy_of(first[:500]).difference(one, "top1")
    assert Resampled.load(tmp_path / "other") is None


def test_a_reason_replaces_the_interval_and_that_of_a_difference(tmp_path: Path) -> None:
    samples = {"AP": np.linspace(0.2, 0.4, 50)}
    known = Resampled("", {"AP": 0.3}, samples)
    Resampled("", {"AP": 0.3}, samples, reasons={"AP": "too few objects"}).save(tmp_path)
    unknown = Resampled.load(tmp_path)
    assert unknown is not None
    bars = unknown.interval("AP")
    assert str(bars) == "too few objects"
    assert bars.to_dict() == {"value": 0.3, "low": None, "high": None, "reason": "too few objects"}
    assert unknown.difference(known, "AP").reason == "too few objects"
    assert known.difference(unknown, "AP").holds_zero


def test_a_file_of_an_older_version_is_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "resamples.npz", images="", names=[], values=[], samples=[])
    assert Resampled.load(tmp_path) is None


@pytest.mark.parametrize(
    "damage", [lambda content: b"", lambda content: b"text", lambda content: content[:-40]]
)
def test_a_damaged_file_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    accuracy_of(np.ones(5)).save(tmp_path)
    file = tmp_path / "resamples.npz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"resamples.npz cannot be read .*; remove or repair it"):
        Resampled.load(tmp_path)


def test_what_is_undefined_has_no_interval() -> None:
    bars = Resampled("", {"AP": math.nan}, {"AP": np.full(4, np.nan)}).interval("AP")
    assert bars.to_dict() == {"value": None, "low": None, "high": None}
    assert str(bars) == ""


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_images_that_do_not_differ_give_no_interval_and_no_difference(value: float) -> None:
    same = Resampled("", {"AP": value}, {"AP": np.full(50, value)})
    assert str(same.interval("AP")) == NO_VARIATION
    assert same.difference(same, "AP").holds_zero
