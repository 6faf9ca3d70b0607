"""How sure a metric is: 95 % intervals by bootstrap over the images, and the difference of two results on the same images.

A resample draws as many images as there are, with replacement. Matches do not change, so it is a weight for each image, and all
resamples are computed from one matching. Efron and Tibshirani, An Introduction to the Bootstrap, 1993.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from retina_dist.base.errors import DataError, first_line
from retina_dist.base.files import write_bytes

FILE = "resamples.npz"
RECALLS = np.linspace(0.0, 1.0, 101)
BLOCK = 1 << 24  # values of an array that are computed at once


@dataclass(frozen=True)
class Interval:
    """A value, and the interval that holds the true one in 95 % of cases; NaN where it is undefined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return "" if math.isnan(self.low) else f"{self.low:.4f} to {self.high:.4f}"

    @property
    def holds_zero(self) -> bool:
        """Whether the interval holds 0; the two of a difference cannot be told apart then."""
        return not (self.low > 0 or self.high < 0)

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which has no NaN."""
        return {name: x if math.isfinite(x) else None for name, x in vars(self).items()}


@dataclass(frozen=True)
class Resampled:
    """Metrics of one result by name, each with its value and its values [B] in the resamples.

    Results with the same `images`, a digest of ids and file names, were resampled alike, so they can be compared by pairs.
    """

    images: str
    values: Mapping[str, float]
    samples: Mapping[str, np.ndarray] = field(repr=False)

    def interval(self, name: str) -> Interval:
        """The interval of a metric."""
        return _interval(self.values[name], self.samples[name])

    def difference(self, other: Resampled, name: str) -> Interval:
        """The interval of this result's metric minus the other's. Raises DataError where the images differ."""
        if self.images != other.images:
            raise DataError(
                "the two results are of different images; compare results on one validation set."
            )
        return _interval(
            self.values[name] - other.values[name], self.samples[name] - other.samples[name]
        )

    def save(self, folder: Path) -> None:
        """Write `folder`/resamples.npz."""
        names, values, file = list(self.values), list(self.values.values()), io.BytesIO()
        samples = np.array([self.samples[name] for name in names], np.float32)
        np.savez_compressed(file, images=self.images, names=names, values=values, samples=samples)
        write_bytes(folder / FILE, file.getvalue())

    @classmethod
    def load(cls, folder: Path) -> Resampled | None:
        """What `save` wrote into `folder`; None without the file. Raises DataError where it cannot be read."""
        if not (folder / FILE).is_file():
            return None
        try:
            with np.load(folder / FILE, allow_pickle=False) as content:
                names = content["names"].tolist()
                values = dict(zip(names, content["values"].tolist(), strict=True))
                return cls(
                    str(content["images"]),
                    values,
                    dict(zip(names, content["samples"], strict=True)),
                )
        except (
            OSError,
            EOFError,
            KeyError,
            TypeError,
            ValueError,
            zipfile.BadZipFile,
            zlib.error,
        ) as error:
            raise DataError(
                f"{folder / FILE} cannot be read ({first_line(error)}); remove or repair it."
            ) from error


@dataclass(frozen=True)
class Ranking:
    """Predictions of one class on all images, by falling score: the image of each, and whether it is right.

    `scores` are [n], `images` [n] places in the list of images. `right` and `ignored` [T, n] are by T criteria; an ignored one
    counts neither as right nor as wrong. `objects` are the images of the objects to predict, one entry for each.
    """

    scores: np.ndarray
    images: np.ndarray
    right: np.ndarray
    ignored: np.ndarray
    objects: np.ndarray


def resampled_weights(num_images: int, resamples: int = 1000, seed: int = 0) -> np.ndarray:
    """float32 [num_images, B]: how often each image is drawn; a function of the arguments alone."""
    weights = np.empty((num_images, resamples), np.float32)
    for i in range(resamples):
        drawn = np.random.default_rng([seed, i]).integers(num_images, size=num_images)
        weights[:, i] = np.bincount(drawn, minlength=num_images)
    return weights


def digest_of(images: Iterable[tuple[int, str]]) -> str:
    """A digest of the (id, file name) of the images of a result, in their order."""
    text = "\n".join(f"{image_id} {file_name}" for image_id, file_name in images)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def average_precision(ranking: Ranking, weights: np.ndarray) -> np.ndarray:
    """[T, B] average precision, the mean over 101 recalls, for weights [N, B] of the images; NaN without objects.

    A whole number as weight repeats the image so often; float64 weights give every digit of pycocotools' precision, float32 ones
    seven.
    """
    points = (len(ranking.objects) + 1) * weights.shape[1]
    blocks = np.array_split(weights, 1 + points // BLOCK, axis=1)
    result = np.zeros((len(ranking.right), weights.shape[1]))
    for columns, block in zip(
        np.array_split(np.arange(weights.shape[1]), len(blocks)), blocks, strict=True
    ):
        for t, (precision, reached) in enumerate(curves(ranking, np.ascontiguousarray(block))):
            steps = np.diff(reached, axis=0, prepend=np.int16(0))
            result[t, columns] = np.einsum("pb,pb->b", precision, steps) / len(RECALLS)
    result[:, _drawn_objects(ranking, weights) == 0] = np.nan
    return result


def curves(ranking: Ranking, weights: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The precision-recall curve for each of T criteria, as precision [P, B] and how many [P, B] of the 101 recalls are reached.

    It has a point for each right prediction, where recall grows; precision falls, and is 0 at recalls beyond the last point.
    """
    total = _drawn_objects(ranking, weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        recall = np.arange(total.max(initial=0) + 1) / total[:, None]
    reached = np.searchsorted(RECALLS, recall, side="right").astype(
        np.int16
    )  # by right predictions, [B, objects + 1]
    first = np.arange(len(total)) * reached.shape[1]
    counted = ~ranking.ignored
    some = np.flatnonzero(ranking.right.any(axis=0))  # where counts are needed
    always = np.asarray(counted.all(axis=0))
    varying = np.asarray(counted.any(axis=0)) & ~always
    counts = _running_sums(weights, ranking.images, always, some)
    for right, ignored in zip(ranking.right, ranking.ignored, strict=True):
        places = np.flatnonzero(right)
        hits = _running_sums(weights, ranking.images, right, places)
        precision = counts[np.searchsorted(some, places)]
        also = varying & ~ignored
        if also.any():
            precision += _running_sums(weights, ranking.images, also, places)
        precision += np.spacing(1)
        np.divide(hits, precision, out=precision)
        for i in range(
            len(places) - 2, -1, -1
        ):  # numpy's own running maximum takes five times as long
            np.maximum(precision[i], precision[i + 1], out=precision[i])
        yield precision, np.take(reached.ravel(), hits.astype(np.int64) + first)


def _drawn_objects(ranking: Ranking, weights: np.ndarray) -> np.ndarray:
    """float64 [B]: the objects on the drawn images, each as often as its image was drawn."""
    images, counts = np.unique(ranking.objects, return_counts=True)
    return (counts.astype(weights.dtype) @ weights[images]).astype(np.float64)


def _running_sums(
    weights: np.ndarray, images: np.ndarray, chosen: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """[P, B]: the weights of the images of the predictions that are `chosen`, up to and with each of P ascending places."""
    picked = np.flatnonzero(chosen)
    bounds = np.searchsorted(picked, places, side="right")
    taken = torch.from_numpy(images[picked[: bounds[-1] if len(bounds) else 0]])
    starts = torch.from_numpy(np.concatenate(([0], bounds[:-1]))[: len(places)])
    sums = embedding_bag(taken, torch.from_numpy(weights), starts, mode="sum").numpy()
    for i in range(1, len(sums)):
        sums[i] += sums[i - 1]
    return sums


def _interval(value: float, samples: np.ndarray) -> Interval:
    """The bias-corrected interval, Efron and Tibshirani, chapter 14: few images overestimate AP, their resamples more so."""
    known = samples[np.isfinite(samples)]
    if not len(known) or not math.isfinite(value):
        return Interval(value, math.nan, math.nan)
    normal, least = NormalDist(), 0.5 / len(known)
    same = np.isclose(known, value, rtol=0, atol=1e-6)  # as far as rounding tells
    below = float(
        ((known < value) & ~same).mean() + same.mean() / 2
    )  # half of the resamples, without a bias
    shift = 2 * normal.inv_cdf(min(max(below, least), 1 - least))
    low, high = np.quantile(
        known, [normal.cdf(shift + normal.inv_cdf(share)) for share in (0.025, 0.975)]
    )
    return Interval(value, float(low), float(high))
