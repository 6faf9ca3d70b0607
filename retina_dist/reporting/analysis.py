"""What a result got wrong, in one form for every task: analysis.json and its tables."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np

from retina_dist.base.files import write_csv, write_json
from retina_dist.base.text import escape
from retina_dist.reporting.intervals import Resampled
from retina_dist.reporting.page import format_number
from retina_dist.reporting.run_files import Analysis, Confusion

logger = logging.getLogger(__name__)

MAX_LISTED = 24  # images of a kind in analysis.json
TICK = 0.01  # s, the resolution of CPU seconds
MAX_IN_MATRIX = 2000  # labels; the file grows with their square


def can_analyse() -> bool:
    """Whether hotcoco is installed; without it there are no kinds of errors, no calibration."""
    return find_spec("hotcoco") is not None


def analysis_of(
    task: str,
    resampled: Resampled,
    classes: Mapping[str, Mapping[str, object]],
    images: Sequence[dict[str, object]],
    folder: Path | None,
    times: Mapping[str, float],
    **parts: object,
) -> dict[str, object]:
    """The content of analysis.json.

    `images` are all of them, worst first; `classes` more about each class; `times` are the
    seconds `s` and `cpu_s` that the images took.

    The first metric is also the classes' own: METRIC/CLASS of `resampled` is a class's interval.
    Written to `folder`, if given, with images.csv, a row for each image, and resamples.npz.
    """
    main = next(iter(resampled.values))
    metrics = {}
    for name in resampled.values:
        if not name.startswith(f"{main}/"):
            metrics[name.partition("/")[2]] = resampled.interval(name).to_dict()
    wrong = [image for image in images if image["false_alarms"]]
    wrong.sort(key=itemgetter("score"), reverse=True)
    speed = {f"images_per_{unit}": len(images) / max(t, TICK) for unit, t in times.items()}
    if speed:
        logger.info("%.3g images/s, %.3g a CPU second", *speed.values())
    of_classes = {}
    for name, more in classes.items():
        of_classes[name] = {**resampled.interval(f"{main}/{name}").to_dict(), **more}
    analysis = {
        "task": task,
        "images": len(images),
        "metrics": metrics,
        "classes": of_classes,
        **parts,
        "speed": speed,
        "worst": list(images[:MAX_LISTED]),
        "best": list(images[: -MAX_LISTED - 1 : -1]),
        "confident": wrong[:MAX_LISTED],
    }
    if folder:
        write_json(folder / "analysis.json", analysis)
        rows = [images[0], *(image.values() for image in images)]
        write_csv(folder / "images.csv", rows, escape_formulas=True)
        resampled.save(folder)
    return analysis


def confusion_of(
    labels: Sequence[str], counts: Callable[[], np.ndarray]
) -> dict[str, object] | None:
    """`confusion` of analysis.json; None above MAX_IN_MATRIX labels."""
    if len(labels) > MAX_IN_MATRIX:
        return None
    return {"labels": list(labels), "counts": counts().tolist()}


def confusions_of(confusion: Confusion, most: int | None = None) -> list[tuple[str, str, int]]:
    """True label, predicted label and number of the `most` frequent confusions."""
    labels = confusion.labels
    counts = np.array(confusion.counts)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[: np.count_nonzero(counts)][:most]
    rows, columns = np.unravel_index(order, counts.shape)
    return [(labels[i], labels[j], int(counts[i, j])) for i, j in zip(rows, columns, strict=True)]


def lines_of(analysis: Mapping[str, object]) -> list[str]:
    """At most twelve lines for a terminal.

    They name threshold, types of errors, confusions, IoU of hits, calibration and worst images.
    """
    known = msgspec.convert(analysis, Analysis)
    lines = [""]
    best = known.threshold
    if best and best.threshold is not None:
        lines.append(
            f"threshold of the best F1   {best.threshold:.3f}: f1 {best.f1:.3f}, precision "
            f"{best.precision:.3f}, recall {best.recall:.3f}"
        )

    if known.errors:
        gains = [(each.gain or 0.0, name) for name, each in known.errors.types.items()]
        gains.sort(key=itemgetter(0), reverse=True)
        words = [f"{name.replace('_', ' ')} +{gain:.3f}" for gain, name in gains]
        lines.append(f"AP50 by correcting   {', '.join(words[:4])}")
        lines.append(f"{'':<21}{', '.join(words[4:])}")

    if known.confusion:
        lines.append(f"most confused   {_most_confused(known, known.confusion)}")

    lines += _of_scores(known)
    titles = "hits / false alarms / misses"
    rows = []
    for image in known.worst[:3]:
        facts = f"{image.hits} / {image.false_alarms} / {image.misses}"
        if image.label:
            titles = "true class / predicted / score"
            facts = f"{image.label} / {image.predicted} / {format_number(image.score)}"
        rows.append(f"  {escape(image.file_name)}   {escape(facts)}")
    lines += [f"worst images   {titles}", *rows]
    if known.limit:
        lines.append(known.limit)
    return lines


def _of_scores(known: Analysis) -> Iterator[str]:
    """IoU of hits and calibration, as far as known."""
    hits = known.hits
    if hits.iou:
        correlation = format_number(hits.correlation)
        yield f"IoU of hits   {hits.iou:.3f}, Pearson's correlation with scores {correlation}"

    found = known.calibration
    if found:
        line = f"calibration error   {found.ece:.3f}, at most {found.mce:.3f} in a bin"
        if found.after:
            line += f"; {found.after.ece:.3f} at a temperature of {found.temperature:.3f}"
        yield line


def _most_confused(known: Analysis, confusion: Confusion) -> str:
    """The three most frequent confusions of two classes, without background."""
    words = []
    for right, other, count in confusions_of(confusion):
        if {right, other} <= known.classes.keys():
            words.append(f"{escape(right)} taken for {escape(other)} ({count})")
    return ", ".join(words[:3]) or "none"
