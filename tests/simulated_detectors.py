"""Detectors drawn at random, to see how often the 95 % intervals of their AP hold the true one.

A population draws images, objects and detections by a few numbers; its true AP is that of very many
images. `python -m tests.simulated_detectors` prints the table of docs/evaluation.md.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retina_dist.detection.ap_intervals import AREAS, IOUS, RECALLS, Ranking, resample
from retina_dist.detection.coco_metrics import STATS, CocoResult
from retina_dist.reporting.intervals import Resampled

NAMES = ("AP", "AP50", "AP75", "AP/class 0")
IMAGES = (20, 100, 200, 1000)
# Objects of each class on an image: the classes of most data sets differ in this.
FREQUENCIES = {
    1: np.array([2.0]),
    5: np.array([3.0, 1.5, 0.7, 0.4, 0.2]),
    20: 2.5 / np.arange(1, 21) / (1 / np.arange(1, 21)).sum(),
    80: 7.3 / np.arange(1, 81) / (1 / np.arange(1, 81)).sum(),
}
EMPTY = Ranking(
    np.zeros(0),
    np.zeros(0, np.int64),
    np.zeros((len(IOUS), 0), bool),
    np.zeros((len(IOUS), 0), bool),
    np.zeros(0, np.int64),
)


@dataclass(frozen=True)
class Population:
    """A detector on images of one kind; ranges are from the first to the last class, mixed."""

    recall: tuple[float, float]
    alarms: tuple[float, float]  # false alarms for each object
    sharpness: float  # how far the scores of right detections lie from those of false alarms
    quality: float  # mean IoU of right detections
    spread: float  # how much harder some images are than others


POPULATIONS = {
    "weak": Population((0.25, 0.60), (0.8, 2.5), 2.5, 0.72, 0.8),
    "middling": Population((0.50, 0.90), (0.3, 1.0), 4.0, 0.80, 0.5),
    "strong": Population((0.85, 0.98), (0.05, 0.3), 7.0, 0.90, 0.3),
}


def draw(
    population: Population,
    frequencies: np.ndarray,
    images: int,
    rng: np.random.Generator,
    detectors: int = 1,
) -> list[list[Ranking]]:
    """The rankings of each class by each detector; they find half of the objects alike."""
    mixed = np.random.default_rng(5)
    inner = np.arange(1, len(frequencies) + 1) / (len(frequencies) + 1)
    recalls = mixed.permutation(np.interp(inner, (0, 1), population.recall))
    alarms = mixed.permutation(np.interp(inner, (0, 1), population.alarms)) * frequencies
    hardness = rng.gamma(1 / population.spread, population.spread, images)  # its mean is 1
    results: list[list[Ranking]] = [[] for _ in range(detectors)]
    for frequency, recall, alarm in zip(frequencies, recalls, alarms, strict=True):
        objects = np.repeat(np.arange(images), rng.poisson(frequency, images))
        common = rng.random(len(objects))
        for result in results:
            own = rng.random(len(objects))
            luck = np.where(rng.random(len(objects)) < 0.5, common, own)
            hit = objects[luck < recall ** hardness[objects]]
            false = np.repeat(np.arange(images), rng.poisson(alarm * hardness))
            quality = population.quality
            overlap = rng.beta(12 * quality, 12 * (1 - quality), len(hit))
            score = rng.beta(population.sharpness, 2, len(hit)) * (0.5 + overlap / 2)
            score = np.append(score, rng.beta(1.2, population.sharpness, len(false)))
            overlap = np.append(overlap, np.zeros(len(false)))

            order = np.argsort(-score)
            right = overlap[order] >= IOUS[:, None]
            places = np.append(hit, false)[order]
            result.append(Ranking(score[order], places, right, np.zeros_like(right), objects))
    return results


def average_precision(ranking: Ranking) -> np.ndarray:
    """[T], COCO's; NaN without objects."""
    result = np.full(len(ranking.right), np.nan)
    for t in range(len(result) if len(ranking.objects) else 0):
        precision = precision_of(ranking, t)
        result[t] = precision.sum() / len(RECALLS)
    return result


def precision_of(ranking: Ranking, t: int) -> np.ndarray:
    """[101], the precision at COCO's recalls, bit by bit as pycocotools computes it."""
    right = ranking.right[t]
    counted = ~ranking.ignored[t]
    hits = np.cumsum(right)[right]
    precision = hits / (np.cumsum(counted)[right] + np.spacing(1))
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    place = np.searchsorted(hits / len(ranking.objects), RECALLS, side="left")
    return np.append(precision, np.zeros(len(RECALLS)))[np.minimum(place, len(precision))]


def metrics_of(ranked: Sequence[Ranking]) -> dict[str, float]:
    """The metrics of NAMES."""
    each = np.array([average_precision(ranking) for ranking in ranked])
    known = each[np.isfinite(each[:, 0])]
    values = [known.mean(), known[:, 0].mean(), known[:, 5].mean(), each[0].mean()]
    return dict(zip(NAMES, map(float, values), strict=True))


def resampled(ranked: Sequence[Ranking], images: int) -> Resampled:
    """What `evaluate` has of a detector with these rankings."""
    metrics = metrics_of(ranked)
    each = {f"class {k}": float(average_precision(r).mean()) for k, r in enumerate(ranked)}
    listed = [{"id": i, "file_name": str(i)} for i in range(images)]
    result = CocoResult(
        stats=dict.fromkeys(STATS, -1.0) | metrics,
        per_class={name: None if np.isnan(ap) else ap for name, ap in each.items()},
        precision=np.zeros(0),
        coco={"images": listed},
        image_ids=list(range(images)),
        rows=np.zeros((0, 7)),
    )
    return resample(result, [[ranking] + [EMPTY] * (len(AREAS) - 1) for ranking in ranked])


def true_metrics(population: Population, frequencies: np.ndarray) -> dict[str, float]:
    """The metrics of 150,000 images."""
    rng = np.random.default_rng(1)
    values = [metrics_of(draw(population, frequencies, 30_000, rng)[0]) for _ in range(5)]
    return {name: float(np.mean([each[name] for each in values])) for name in NAMES}


@dataclass
class Counts:
    """Of some draws: those with an interval, and those whose interval holds the true value."""

    draws: int = 0
    shown: int = 0
    held: int = 0

    def __str__(self) -> str:
        if self.shown < self.draws / 4:
            return "none"
        share = f"{self.held / self.shown:.3f}"
        return share if self.shown == self.draws else f"{share} ({self.shown / self.draws:.2f})"


def coverage(
    population: Population, frequencies: np.ndarray, images: int, draws: int
) -> dict[str, Counts]:
    """How often the intervals hold the true value, by metric."""
    truth = true_metrics(population, frequencies)
    counts: dict[str, Counts] = defaultdict(Counts)
    for seed in range(draws):
        rng = np.random.default_rng([2, images, seed])
        found = resampled(draw(population, frequencies, images, rng)[0], images)
        for name in NAMES:
            bars = found.interval(f"coco/{name}")
            counts[name].draws += 1
            counts[name].shown += int(not np.isnan(bars.low))
            counts[name].held += int(bars.low <= truth[name] <= bars.high)
    return counts


def equal_pairs(
    population: Population, frequencies: np.ndarray, images: int, draws: int
) -> dict[str, Counts]:
    """Of two detectors of one population on the same images: how often the difference holds 0."""
    counts: dict[str, Counts] = defaultdict(Counts)
    for seed in range(draws):
        rng = np.random.default_rng([3, images, seed])
        pair = draw(population, frequencies, images, rng, detectors=2)
        first, second = (resampled(ranked, images) for ranked in pair)
        for name in NAMES:
            gain = second.difference(first, f"coco/{name}")
            counts[name].draws += 1
            counts[name].shown += int(not np.isnan(gain.low))
            counts[name].held += int(gain.low <= 0 <= gain.high)
    return counts


def main() -> None:
    """Print the tables; fewer draws where one takes longer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--images", type=int, nargs="*", default=IMAGES)
    parser.add_argument("--classes", type=int, nargs="*", default=list(FREQUENCIES))
    arguments = parser.parse_args()
    for title, measure in (("held", coverage), ("equal pairs", equal_pairs)):
        print(f"| {title} | " + " | ".join(NAMES) + " |\n|" + "---|" * (len(NAMES) + 1))
        for images in arguments.images:
            for classes in arguments.classes:
                for name, population in POPULATIONS.items():
                    start = time.perf_counter()
                    counts = measure(population, FREQUENCIES[classes], images, arguments.draws)
                    cells = " | ".join(str(counts[metric]) for metric in NAMES)
                    took = f"<!-- {time.perf_counter() - start:.0f} s -->"
                    print(f"| {images} x {classes} {name} | {cells} | {took}", flush=True)


if __name__ == "__main__":
    main()
