"""What a result got wrong, in one form for every task: analysis.json (docs/evaluation.md), images.csv and resamples.npz."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from retina_dist.base.files import write_csv, write_json
from retina_dist.reporting.intervals import Resampled

SHOWN = 24  # images of a kind in analysis.json
MOST_IN_MATRIX = 2000  # labels; the file grows with their square


def can_analyse() -> bool:
    """Whether hotcoco, of the extra `analysis`, is installed: without it there are no kinds of errors and no calibration."""
    return find_spec("hotcoco") is not None


def analysis_of(
    task: str,
    resampled: Resampled,
    classes: Mapping[str, Mapping[str, Any]],
    images: Sequence[dict[str, Any]],
    folder: Path | None,
    **parts: Any,
) -> dict[str, Any]:
    """The content of analysis.json. `images` are all of them, worst first; `classes` more about each class.

    The first metric is also the classes' own: METRIC/CLASS of `resampled` is a class's interval. Written to `folder`, if
    given, with images.csv, a row for each image, and resamples.npz.
    """
    main = next(iter(resampled.values))
    names = [name for name in resampled.values if not name.startswith(f"{main}/")]
    wrong = [image for image in images if image["false_alarms"]]
    analysis = {
        "task": task,
        "images": len(images),
        "metrics": {name.partition("/")[2]: resampled.interval(name).to_dict() for name in names},
        "classes": {
            name: {**resampled.interval(f"{main}/{name}").to_dict(), **more}
            for name, more in classes.items()
        },
        **parts,
        "worst": list(images[:SHOWN]),
        "best": list(images[: -SHOWN - 1 : -1]),
        "confident": sorted(wrong, key=lambda image: -image["score"])[:SHOWN],
    }
    if folder:
        write_json(folder / "analysis.json", analysis)
        write_csv(folder / "images.csv", [images[0], *(image.values() for image in images)])
        resampled.save(folder)
    return analysis


def confusion_of(labels: Sequence[str], counts: Callable[[], np.ndarray]) -> dict[str, Any] | None:
    """`confusion` of analysis.json, of the matrix that `counts` gives; None above MOST_IN_MATRIX labels."""
    return (
        {"labels": list(labels), "counts": counts().tolist()}
        if len(labels) <= MOST_IN_MATRIX
        else None
    )


def calibration_of(scores: np.ndarray, right: np.ndarray) -> dict[str, Any] | None:
    """Mean score and share of right predictions in bins of the score; `ece`, the mean difference, `mce`, the largest.

    Guo et al., On Calibration of Modern Neural Networks, 2017, https://arxiv.org/abs/1706.04599. None without hotcoco.
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


def confusions_of(analysis: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """True label, predicted label and number of each confusion, the most frequent first."""
    labels, counts = analysis["confusion"]["labels"], np.array(analysis["confusion"]["counts"])
    np.fill_diagonal(counts, 0)
    order = [
        divmod(int(place), len(labels)) for place in np.argsort(-counts, axis=None, kind="stable")
    ]
    return [(labels[i], labels[j], int(counts[i, j])) for i, j in order if counts[i, j]]


def lines_of(analysis: Mapping[str, Any]) -> list[str]:
    """At most ten lines for a terminal: threshold, kinds of errors, confusions, calibration, worst images."""
    lines = [""]
    best = analysis["threshold"]
    if best and best["threshold"] is not None:
        facts = ", ".join(f"{name} {best[name]:.3f}" for name in ("f1", "precision", "recall"))
        lines.append(f"threshold of the best F1   {best['threshold']:.3f}: {facts}")
    if errors := analysis["errors"]:
        kinds = sorted(errors["types"].items(), key=lambda item: -item[1]["gain"])
        words = [f"{name.replace('_', ' ')} +{kind['gain']:.3f}" for name, kind in kinds]
        lines += [f"AP50 by correcting   {', '.join(words[:4])}", f"{'':<21}{', '.join(words[4:])}"]
    if analysis["confusion"]:
        pairs = [
            pair for pair in confusions_of(analysis) if analysis["classes"].keys() >= set(pair[:2])
        ]
        words = [f"{right} taken for {other} ({count})" for right, other, count in pairs[:3]]
        lines.append(f"most confused   {', '.join(words) or 'none'}")
    if calibration := analysis["calibration"]:
        lines.append(
            f"calibration error   {calibration['ece']:.3f}, at most {calibration['mce']:.3f} in a bin"
        )
    lines.append("worst images   hits / false alarms / misses")
    for image in analysis["worst"][:3]:
        lines.append(
            f"  {image['file_name']}   {image['hits']} / {image['false_alarms']} / {image['misses']}"
        )
    return lines
