"""Detectors drawn at random, to see how often the 95 % intervals of their AP hold the true one.

A population draws images, objects and detections by a few numbers; its true AP is that of very many
images. `python -m tests.simulated_detectors FILE` prints the tables of docs/evaluation.md; it takes
about 40 minutes of a core, and goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from retina_dist.detection.ap_intervals import AREAS, IOUS, RECALLS, Ranking, resample
from retina_dist.detection.coco_metrics import STATS, CocoResult
from retina_dist.reporting.intervals import Interval, Resampled

NAMES = ("AP", "AP50", "AP75", "AP/class 0")
IMAGES = (20, 100, 200, 1000)
# Objects of each class on an image: the classes of most data sets differ in this.
FREQUENCIES = {
    1: np.array([2.0]),
    5: np.array([3.0, 1.5, 0.7, 0.4, 0.2]),
    20: 2.5 / np.arange(1, 21) / (1 / np.arange(1, 21)).sum(),
    80: 7.3 / np.arange(1, 81) / (1 / np.arange(1, 81)).sum(),
}
# No criterion at all, so that an area without objects takes no time.
NONE = np.zeros(0, np.int64)
NO_MATCHES = np.zeros((0, 0), bool)
EMPTY = Ranking(np.zeros(0), NONE, NO_MATCHES, NO_MATCHES, NONE, np.zeros(0))


@dataclass(frozen=True)
class Population:
    """A detector on images of one kind; ranges are from the first to the last class, mixed."""

    recall: tuple[float, float]
    alarms: tuple[float, float]  # false alarms for each object
    sharpness: float  # how far the scores of right detections lie from those of false alarms
    quality: float  # mean IoU of right detections
    spread: float  # how much harder some images are than others
    imbalance: float | None = None  # class k is as frequent as 1 / k ** imbalance; or FREQUENCIES
    clumping: float = 0.0  # how many more objects some images have than others
    small: float = 0.0  # share of small objects, found half as often and placed worse
    shift: float = 0.0  # how much higher all scores of some images are than those of others

    def frequencies(self, classes: int) -> np.ndarray:
        """Objects of each class on an image."""
        if self.imbalance is None:
            return FREQUENCIES[classes]
        share = 1 / np.arange(1, classes + 1) ** self.imbalance
        return np.asarray(share / share.sum() * FREQUENCIES[classes].sum())


# The rules for too little data were chosen on the first three; the others were made afterwards.
POPULATIONS = {
    "weak": Population((0.25, 0.60), (0.8, 2.5), 2.5, 0.72, 0.8),
    "middling": Population((0.50, 0.90), (0.3, 1.0), 4.0, 0.80, 0.5),
    "strong": Population((0.85, 0.98), (0.05, 0.3), 7.0, 0.90, 0.3),
    "crowded": Population(
        (0.40, 0.80), (0.2, 1.5), 3.0, 0.76, 0.6, imbalance=0.0, clumping=1.0, shift=0.3
    ),
    "small": Population((0.60, 0.95), (0.4, 1.2), 5.0, 0.84, 0.4, imbalance=0.6, small=0.6),
    "uneven": Population(
        (0.70, 0.97), (0.1, 0.6), 6.0, 0.86, 1.2, imbalance=1.4, clumping=0.5, shift=0.6
    ),
}
FIRST = ("weak", "middling", "strong")
FRESH = ("crowded", "small", "uneven")


def draw(
    population: Population,
    frequencies: np.ndarray,
    images: int,
    rng: np.random.Generator,
    skills: Sequence[float] = (1.0,),
) -> list[list[Ranking]]:
    """The rankings of each class by a detector of each of `skills`, by which its recall is
    multiplied; they find half of the objects alike.
    """
    mixed = np.random.default_rng(5)
    inner = np.arange(1, len(frequencies) + 1) / (len(frequencies) + 1)
    recalls = mixed.permutation(np.interp(inner, (0, 1), population.recall))
    alarms = mixed.permutation(np.interp(inner, (0, 1), population.alarms)) * frequencies
    hardness = _of_mean_1(population.spread, images, rng)
    crowding = _of_mean_1(population.clumping, images, rng)
    brightness = np.exp(population.shift * rng.standard_normal(images))
    results: list[list[Ranking]] = [[] for _ in skills]
    for frequency, recall, alarm in zip(frequencies, recalls, alarms, strict=True):
        objects = np.repeat(np.arange(images), rng.poisson(frequency * crowding))
        small = rng.random(len(objects)) < population.small
        common = rng.random(len(objects))
        for skill, result in zip(skills, results, strict=True):
            own = rng.random(len(objects))
            luck = np.where(rng.random(len(objects)) < 0.5, common, own)
            luck *= 1 + small
            found = luck < skill * recall ** hardness[objects]
            hit = objects[found]
            false = np.repeat(np.arange(images), rng.poisson(alarm * hardness * crowding))
            quality = population.quality - 0.12 * small[found]
            overlap = rng.beta(12 * quality, 12 * (1 - quality))
            score = rng.beta(population.sharpness, 2, len(hit)) * (0.5 + overlap / 2)
            score = np.append(score, rng.beta(1.2, population.sharpness, len(false)))
            places = np.append(hit, false)
            score *= brightness[places]
            overlap = np.append(overlap, np.zeros(len(false)))

            order = np.argsort(-score)
            right = overlap[order] >= IOUS[:, None]
            wrong = np.zeros_like(right)
            places = places[order]
            result.append(Ranking(score[order], places, right, wrong, objects, overlap[order]))
    return results


def _of_mean_1(variance: float, count: int, rng: np.random.Generator) -> np.ndarray:
    if variance == 0:
        return np.ones(count)
    return rng.gamma(1 / variance, variance, count)


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


def true_metrics(population: Population, classes: int, skill: float = 1.0) -> dict[str, float]:
    """The metrics of 150,000 images."""
    rng = np.random.default_rng(1)
    values = []
    for _ in range(5):
        ranked = draw(population, population.frequencies(classes), 30_000, rng, [skill])
        values.append(metrics_of(ranked[0]))
    return {name: float(np.mean([each[name] for each in values])) for name in NAMES}


def skill_below(population: Population, classes: int, difference: float) -> float:
    """That of a detector whose true AP is lower by so much."""
    wanted = true_metrics(population, classes)["AP"] - difference
    low = 0.5
    high = 1.0
    for _ in range(7):
        middle = (low + high) / 2
        if true_metrics(population, classes, middle)["AP"] < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass
class Counts:
    """Of some draws: those with an interval, and those whose interval is as it should be."""

    draws: int = 0
    shown: int = 0
    held: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.draws + other.draws, self.shown + other.shown, self.held + other.held)

    @classmethod
    def of(cls, interval: Interval, held: bool) -> Counts:
        shown = not math.isnan(interval.low)
        return cls(1, int(shown), int(shown and held))

    @property
    def share(self) -> float:
        return self.held / max(1, self.shown)

    def __str__(self) -> str:
        """The share with its standard error; the share of draws with an interval.

        The error is Agresti and Coull's, which is not 0 where all are held.
        """
        if self.shown < self.draws / 4:
            return "none"
        near = (self.held + 2) / (self.shown + 4)
        error = math.sqrt(near * (1 - near) / (self.shown + 4))
        text = f"{self.share:.3f} ± {error:.3f}"
        return text if self.shown == self.draws else f"{text} ({self.shown / self.draws:.2f})"


def pairs(
    population: Population, classes: int, images: int, seeds: Iterable[int], skill: float = 1.0
) -> Iterator[tuple[Resampled, Resampled]]:
    """A detector and one of another skill on the same images, for each seed."""
    for seed in seeds:
        rng = np.random.default_rng([7, images, classes, seed])
        pair = draw(population, population.frequencies(classes), images, rng, (1.0, skill))
        first, second = (resampled(ranked, images) for ranked in pair)
        yield first, second


def equal_pairs(
    population: Population, classes: int, images: int, seeds: Iterable[int]
) -> dict[str, dict[str, Counts]]:
    """Whether an interval holds the true value, and that of a difference 0, by metric."""
    truth = true_metrics(population, classes)
    held = {name: Counts() for name in NAMES}
    zero = {name: Counts() for name in NAMES}
    for first, second in pairs(population, classes, images, seeds):
        for name in NAMES:
            bars = first.interval(f"coco/{name}")
            gain = first.difference(second, f"coco/{name}")
            held[name] += Counts.of(bars, bars.low <= truth[name] <= bars.high)
            zero[name] += Counts.of(gain, gain.low <= 0 <= gain.high)
    return {"held": held, "zero": zero}


def unequal_pairs(
    population: Population, classes: int, images: int, seeds: Iterable[int]
) -> dict[str, dict[str, Counts]]:
    """Whether the better of two detectors is told apart; their true AP differs by .03."""
    skill = skill_below(population, classes, 0.03)
    told = {name: Counts() for name in NAMES}
    for first, second in pairs(population, classes, images, seeds, skill):
        for name in NAMES:
            gain = first.difference(second, f"coco/{name}")
            told[name] += Counts.of(gain, gain.low > 0)
    return {"told": told}


TITLES = {
    "held": "the interval holds the true value",
    "zero": "the difference of two equal detectors holds 0",
    "told": "a detector whose AP is better by .03 is told apart",
}
# (images, classes), the most important first.
SIZES = [(1000, 5), (200, 5), (100, 5), (100, 1), (200, 20), (1000, 20), (20, 5), (20, 1)]
SIZES += [(200, 1), (100, 20), (1000, 1), (200, 80), (1000, 80), (100, 80), (20, 20), (20, 80)]
DRAWS = {1: 50, 5: 50, 20: 25, 80: 8}  # in a round, by classes; half as many of 1,000 images
Cell = tuple[str, int, int, str]


def cells(rounds: int) -> Iterator[tuple[int, Cell, range]]:
    """Round, measure and seeds of each cell of the tables, the most important first."""
    for part in range(rounds):
        for images, classes in SIZES:
            draws = DRAWS[classes] // (2 if images == 1000 else 1)
            seeds = range(part * draws, (part + 1) * draws)
            for name in POPULATIONS:
                yield part, ("equal", images, classes, name), seeds
                if images == 200 and classes <= 5:
                    yield part, ("unequal", images, classes, name), seeds


def read(file: Path) -> dict[tuple[int, Cell], dict[str, dict[str, Counts]]]:
    """What `main` appended to the file. A last line without its end is taken away."""
    found: dict[tuple[int, Cell], dict[str, dict[str, Counts]]] = {}
    if not file.is_file():
        return found
    lines = file.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        file.write_text("".join(lines[:-1]))
        lines.pop()
    for line in lines:
        part, cell, content = json.loads(line)
        counts = found[part, tuple(cell)] = {}
        for kind, each in content.items():
            counts[kind] = {name: Counts(*numbers) for name, numbers in each.items()}
    return found


def tables(found: dict[tuple[int, Cell], dict[str, dict[str, Counts]]]) -> Iterator[str]:
    """Lines of Markdown; each share is of three populations together."""
    sums: dict[tuple[str, int, int, str, str], Counts] = defaultdict(Counts)
    for (_, (_, images, classes, population)), counts in found.items():
        group = "fresh" if population in FRESH else "first"
        for kind, each in counts.items():
            for name in NAMES:
                sums[kind, images, classes, group, name] += each[name]
    for kind, title in TITLES.items():
        yield f"Share of draws in which {title}:"
        yield ""
        yield "| images x classes | populations | draws | " + " | ".join(NAMES) + " |"
        yield "|---|---|---|" + "---|" * len(NAMES)
        for images, classes in sorted(SIZES):
            for group in ("first", "fresh"):
                row = [sums[kind, images, classes, group, name] for name in NAMES]
                if row[0].draws:
                    start = f"| {images:,} x {classes} | {group} | {row[0].draws} | "
                    yield start + " | ".join(map(str, row)) + " |"
        yield ""


def main(command: Sequence[str] | None = None) -> None:
    """Append each cell to a file, leaving out those that it has; then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where results are appended, a JSON line a cell")
    parser.add_argument(
        "--rounds", type=int, default=6, help="of 50 draws of a small cell; 0: print"
    )
    parser.add_argument("--images", type=int, nargs="*", default=IMAGES)
    parser.add_argument("--classes", type=int, nargs="*", default=list(FREQUENCIES))
    arguments = parser.parse_args(command)
    known = read(arguments.file)
    todo = []
    for part, cell, seeds in cells(arguments.rounds):
        wanted = cell[1] in arguments.images and cell[2] in arguments.classes
        if wanted and (part, cell) not in known:
            todo.append((part, cell, seeds))

    start = time.perf_counter()
    for i, (part, cell, seeds) in enumerate(todo):
        kind, images, classes, name = cell
        measure = equal_pairs if kind == "equal" else unequal_pairs
        counts = measure(POPULATIONS[name], classes, images, seeds)
        with arguments.file.open("a") as file:
            file.write(json.dumps([part, cell, counts], default=astuple) + "\n")
        minutes = (time.perf_counter() - start) / 60
        text = f"{i + 1} of {len(todo)}, {minutes:.1f} min: {kind}, {images} x {classes} {name}"
        print(text, file=sys.stderr, flush=True)
    print("\n".join(tables(read(arguments.file))))


if __name__ == "__main__":
    main()
