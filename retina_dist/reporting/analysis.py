"""What a result got wrong, in one form for every task: analysis.json and its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from retina_dist.base.files import write_csv, write_json
from retina_dist.base.text import escape
from retina_dist.reporting.intervals import Resampled
from retina_dist.reporting.run_files import Analysis, Confusion

MAX_LISTED = 24  # images of a kind in analysis.json
MAX_IN_MATRIX = 2000  # labels; the file grows with their square


def can_analyse() -> bool:
    """Whether hotcoco is installed; without it there are no kinds of errors, no calibration."""
    return find_spec("hotcoco") is not None


def analysis_of(
    task: str,
    resampled: Resampled,
    classes: Mapping[str, Mapping[str, Any]],
    images: Sequence[dict[str, Any]],
    folder: Path | None,
    **parts: Any,
) -> dict[str, Any]:
    """The content of analysis.json.

    `images` are all of them, worst first; `classes` more about each class.

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
    analysis = {
        "task": task,
        "images": len(images),
        "metrics": metrics,
        "classes": {
            name: resampled.interval(f"{main}/{name}").to_dict() | dict(more)
            for name, more in classes.items()
        },
        **parts,
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


def confusion_of(labels: Sequence[str], counts: Callable[[], np.ndarray]) -> dict[str, Any] | None:
    """`confusion` of analysis.json; None above MAX_IN_MATRIX labels."""
    if len(labels) > MAX_IN_MATRIX:
        return None
    return {"labels": list(labels), "counts": counts().tolist()}


def calibration_of(scores: np.ndarray, right: np.ndarray) -> dict[str, Any] | None:
    """Score and share of right predictions by bin; their mean (`ece`) and largest gap (`mce`).

    Guo et al., On Calibration of Modern Neural Networks, 2017, https://arxiv.org/abs/1706.04599.
    None without hotcoco.
    """
    if not can_analyse():
        return None
    from hotcoco import metrics

    ece, mce = metrics.calibration_error(scores, right, n_bins=10)
    names = {
        "bin_lower": "low",
        "bin_upper": "high",
        "avg_confidence": "confidence",
        "avg_accuracy": "accuracy",
    }
    curve = metrics.calibration_curve(scores, right, n_bins=10)
    bins = [{names.get(key, key): value for key, value in each.items()} for each in curve]
    return {"ece": ece, "mce": mce, "bins": bins}


def confusions_of(confusion: Confusion, most: int | None = None) -> list[tuple[str, str, int]]:
    """True label, predicted label and number of the `most` frequent confusions."""
    labels = confusion.labels
    counts = np.array(confusion.counts)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[: np.count_nonzero(counts)][:most]
    rows, columns = np.unravel_index(order, counts.shape)
    return [(labels[i], labels[j], int(counts[i, j])) for i, j in zip(rows, columns, strict=True)]


def lines_of(analysis: Mapping[str, Any]) -> list[str]:
    """At most ten lines for a terminal.

    They name threshold, types of errors, confusions, calibration and worst images.
    """
    known = msgspec.convert(analysis, Analysis)
    lines = [""]
    best = known.threshold
    if best and best.threshold is not None:
        facts = f"f1 {best.f1:.3f}, precision {best.precision:.3f}, recall {best.recall:.3f}"
        lines.append(f"threshold of the best F1   {best.threshold:.3f}: {facts}")

    if known.errors:
        gains = [(each.gain or 0.0, name) for name, each in known.errors.types.items()]
        gains.sort(key=itemgetter(0), reverse=True)
        words = [f"{name.replace('_', ' ')} +{gain:.3f}" for gain, name in gains]
        lines.append(f"AP50 by correcting   {', '.join(words[:4])}")
        lines.append(f"{'':<21}{', '.join(words[4:])}")

    if known.confusion:
        lines.append(f"most confused   {_most_confused(known, known.confusion)}")

    found = known.calibration
    if found:
        lines.append(f"calibration error   {found.ece:.3f}, at most {found.mce:.3f} in a bin")

    lines.append("worst images   hits / false alarms / misses")
    for image in known.worst[:3]:
        counts = f"{image.hits} / {image.false_alarms} / {image.misses}"
        lines.append(f"  {escape(image.file_name)}   {counts}")
    if known.limit:
        lines.append(known.limit)
    return lines


def _most_confused(known: Analysis, confusion: Confusion) -> str:
    """The three most frequent confusions of two classes, without background."""
    words = []
    for right, other, count in confusions_of(confusion):
        if {right, other} <= known.classes.keys():
            words.append(f"{escape(right)} taken for {escape(other)} ({count})")
    return ", ".join(words[:3]) or "none"
