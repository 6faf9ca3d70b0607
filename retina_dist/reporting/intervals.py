"""How sure a metric is: 95 % intervals by the jackknife over images.

The images are split into groups; a metric is computed with each group left out in turn. How much
these values vary tells the standard error, without any random draw that repeats an image.
Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

import numpy as np

from retina_dist.base.errors import DataError, first_line
from retina_dist.base.files import write_bytes

FILE = "resamples.npz"
MAX_GROUPS = 100  # of images that are left out together; as many as images where there are fewer
COVERAGE = 0.95
NO_VARIATION = "no image changes it"


@dataclass(frozen=True)
class Interval:
    """A value, and the interval that holds the true one in 95 % of cases.

    `low` and `high` are NaN where the value is undefined, or where too little is known for an
    interval; `reason` then says why.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    reason: str = ""

    def __str__(self) -> str:
        if math.isnan(self.low):
            return self.reason
        return f"{self.low:.4f} to {self.high:.4f}"

    @property
    def holds_zero(self) -> bool:
        """Whether the interval holds 0; the two of a difference cannot be told apart then."""
        return not (self.low > 0 or self.high < 0)

    @property
    def leaves_out_value(self) -> bool:
        """Whether the value is so biased that the interval does not hold it."""
        return self.value < self.low or self.value > self.high

    def more_images(self, images: int) -> float:
        """How many images beyond these `images` would tell a difference like this one from 0.

        The half width h of an interval shrinks with 1 / sqrt(n), so it is less than the distance c
        of its center from 0 from n (h / c)^2 images on. Infinite where the center is 0.
        """
        center = (self.low + self.high) / 2
        if center == 0:
            return math.inf
        return images * (((self.high - self.low) / 2 / center) ** 2 - 1)

    def to_dict(self) -> dict[str, float | str | None]:
        """For JSON, which has no NaN; `reason` only where there is one."""
        content: dict[str, float | str | None] = {}
        for name, number in (("value", self.value), ("low", self.low), ("high", self.high)):
            content[name] = number if math.isfinite(number) else None
        if self.reason:
            content["reason"] = self.reason
        return content


@dataclass(frozen=True)
class Resampled:
    """Metrics of one result by name, and what they become with a group of images left out.

    Results with the same `images`, a digest of ids and file names, left out the same groups, so
    they can be compared by pairs.

    Args:
        images: the digest, see `digest_of`.
        values: each metric, NaN where it is undefined.
        samples: each metric [1 + G] of all images, but without the bias that few images give it,
            and with one of G groups left out.
        reasons: why a metric has no interval, for those that have none.
    """

    images: str
    values: Mapping[str, float]
    samples: Mapping[str, np.ndarray] = field(repr=False)
    reasons: Mapping[str, str] = field(default_factory=dict, repr=False)

    def interval(self, name: str) -> Interval:
        """The interval of a metric between 0 and 1, symmetric in its log odds."""
        value = self.values[name]
        if not math.isfinite(value):
            return Interval(value)

        center = float(self.samples[name][0])
        margin = _margin(self.samples[name])
        reason = self.reasons.get(name, "")
        if not reason and not (margin > 0 and 0 < center < 1):
            reason = NO_VARIATION
        if reason:
            return Interval(value, reason=reason)

        odds = center / (1 - center)
        factor = math.exp(min(margin / (center * (1 - center)), 500))
        low = odds / factor
        high = odds * factor
        return Interval(value, low / (1 + low), high / (1 + high))

    def difference(self, other: Resampled, name: str) -> Interval:
        """The interval of this result's metric minus the other's; it holds the difference itself.

        Raises:
            DataError: the two are results of different images.
        """
        if self.images != other.images:
            raise DataError(
                "the two results are of different images; compare results on one validation set."
            )
        value = self.values[name] - other.values[name]
        if not math.isfinite(value):
            return Interval(value)
        reason = self.reasons.get(name) or other.reasons.get(name)
        if reason:
            return Interval(value, reason=reason)

        samples = self.samples[name] - other.samples[name]
        margin = _margin(samples)
        # The two lose their bias apart, so a tiny difference could lie beyond its interval.
        low = min(samples[0] - margin, value)
        high = max(samples[0] + margin, value)
        return Interval(value, float(low), float(high))

    def save(self, folder: Path) -> None:
        """Write `folder`/resamples.npz."""
        names = list(self.values)
        file = io.BytesIO()
        np.savez_compressed(
            file,
            images=self.images,
            names=names,
            values=list(self.values.values()),
            samples=np.array(list(self.samples.values()), np.float32),
            reasons=[self.reasons.get(name, "") for name in names],
        )
        write_bytes(folder / FILE, file.getvalue())

    @classmethod
    def load(cls, folder: Path) -> Resampled | None:
        """What `save` wrote into `folder`; None without the file, or before version 2.

        Raises:
            DataError: the file cannot be read.
        """
        file = folder / FILE
        if not file.is_file():
            return None
        try:
            with np.load(file, allow_pickle=False) as content:
                if "samples" in content and "reasons" not in content:
                    return None
                arrays = dict(content)
            values = arrays["values"]
            samples = arrays["samples"]
            is_series = samples.ndim == 2 or samples.size == 0
            if not is_series or {values.dtype.kind, samples.dtype.kind} != {"f"}:
                raise ValueError("it holds no resamples")
            names = arrays["names"].tolist()
            of_names = (values.tolist(), samples, arrays["reasons"].tolist())
            columns = [dict(zip(names, column, strict=True)) for column in of_names]
            return cls(str(arrays["images"]), *columns)
        except Exception as error:  # a damaged file can raise nearly anything
            raise DataError(
                f"{file} cannot be read ({first_line(error)}); remove or repair it."
            ) from error


def left_out_weights(num_images: int) -> np.ndarray:
    """float32 [num_images, 1 + G]: 1 for all images, then 0 for those of one of G groups.

    A function of the argument alone; each image is in one of at most MAX_GROUPS groups.
    """
    groups = min(num_images, MAX_GROUPS)
    group = np.random.default_rng(0).permutation(num_images) % max(1, groups)
    return (group[:, None] != np.arange(-1, groups)).astype(np.float32)


def digest_of(images: Iterable[tuple[int, str]]) -> str:
    """A digest of the (id, file name) of the images of a result, in their order."""
    text = "\n".join(f"{image_id} {file_name}" for image_id, file_name in images)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _margin(samples: np.ndarray) -> float:
    """Half the width of an interval, of samples [1 + G]; NaN for fewer than three groups.

    Few groups that matter, seen in the kurtosis of the samples, give few degrees of freedom.
    """
    known = samples[1:][np.isfinite(samples[1:])].astype(np.float64)
    if len(known) < 3:
        return math.nan
    error = math.sqrt(len(known) - 1) * known.std()
    if error < 1e-6:  # of samples as float32
        return 0.0

    kurtosis = np.power((known - known.mean()) / known.std(), 4).mean()
    freedom = min(len(known) - 1, max(5.0, 2 * len(known) / max(1e-9, kurtosis - 1)))
    return float(error * _student_quantile(freedom))


def _student_quantile(freedom: float) -> float:
    """The half width of COVERAGE in standard errors, Abramowitz and Stegun 26.7.5."""
    z = NormalDist().inv_cdf((1 + COVERAGE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
