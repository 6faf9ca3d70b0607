"""metrics.json of a validation, and its plots: precision over recall, and AP of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.files import write_json
from retina_dist.reporting.plots import BAR, COLORS, FAINT, INK, PAPER, footnote, new_figure
from retina_dist.text import pluralize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CLASS_LINES = 8
MAX_BARS = 60
RECALLS = np.linspace(0, 1, 101)  # COCO's recall points
IOU_50, IOU_75 = 0, 5  # rows of COCO's IoU thresholds .50, .55, ... .95


def draw_metrics(result: CocoResult, folder: Path) -> None:
    """`folder`/pr_curve.png and per_class_ap.png."""
    plot_pr(result.precision, list(result.per_class), folder / "pr_curve.png")
    plot_per_class(result.per_class, folder / "per_class_ap.png")


def write_metrics(result: CocoResult, folder: Path) -> None:
    """`folder`/metrics.json and the plots of `draw_metrics`."""
    write_json(folder / "metrics.json", result.to_dict())
    draw_metrics(result, folder)


def plot_pr(precision: np.ndarray, names: Sequence[str], out: Path) -> None:
    """Precision over recall at IoU .50, at .75 and as mean over .50:.95; a few classes get a line each, of many the mean.

    `precision` is [10, 101, K] as COCO's evaluator gives it (all areas, 100 detections), -1 where a class
    has no ground truth; such classes are left out.
    """
    has_truth = np.all(precision > -1, axis=(0, 1))  # [K]
    kept = precision[:, :, has_truth]
    kept_names = [name for name, keep in zip(names, has_truth.tolist(), strict=True) if keep]
    views = (("IoU .50", kept[IOU_50]), ("IoU .75", kept[IOU_75]), ("mean of IoU .50:.95", kept.mean(axis=0)))
    num_lines = len(kept_names) if len(kept_names) <= MAX_CLASS_LINES else 1
    with new_figure(out, (14.5, 5.0 + 0.18 * num_lines)) as figure:
        all_axes = figure.subplots(1, 3, sharey=True)
        for axes, (title, curves) in zip(all_axes, views, strict=True):
            axes.set(title=title, xlabel="recall", xlim=(0, 1), ylim=(0, 1.02))
            if kept_names:
                _draw_pr(axes, curves, kept_names)
            else:
                axes.text(0.5, 0.5, "no class has ground truth", ha="center", color=FAINT)
        all_axes[0].set_ylabel("precision")
        footnote(figure, _without_truth(len(names) - len(kept_names)))


def plot_per_class(per_class: Mapping[str, float | None], out: Path) -> None:
    """AP of every class as horizontal bars, best on top; of very many, the best and the worst thirty.

    Classes without ground truth (None) are left out and counted below the plot.
    """
    known = sorted(((name, ap) for name, ap in per_class.items() if ap is not None), key=lambda pair: -pair[1])
    cut = len(known) > MAX_BARS
    bars = known[: MAX_BARS // 2] + known[-MAX_BARS // 2 :] if cut else known
    notes = _without_truth(len(per_class) - len(known))
    if cut:
        notes.insert(0, f"best and worst {MAX_BARS // 2} of {len(known)} classes")
    with new_figure(out, (8, 1.5 + 0.24 * max(3, len(bars)))) as figure:
        axes = figure.subplots()
        axes.set(title="AP per class", xlabel="AP, mean of IoU .50:.95", xlim=(0, 1))
        axes.grid(axis="y", visible=False)
        axes.set_yticks(range(len(bars)), [name for name, _ in bars])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        for place, (_, ap) in enumerate(bars):
            axes.barh(place, ap, height=0.72, color=BAR)
            axes.text(ap + 0.008, place, f"{ap:.3f}", va="center", fontsize=8.5, bbox=PAPER)
        if known:
            mean = float(np.mean([ap for _, ap in known]))
            axes.axvline(mean, color=COLORS[1], linewidth=1.3, linestyle="--", label=f"mean {mean:.3f}")
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
        footnote(figure, notes)


def _draw_pr(axes: Axes, curves: np.ndarray, names: Sequence[str]) -> None:
    """curves: [101, K]. The legend gives the area under each curve, which is the AP."""
    if len(names) <= MAX_CLASS_LINES:
        for k in np.argsort(-curves.mean(axis=0), kind="stable"):
            axes.plot(*_reached(curves[:, k]), color=COLORS[k], label=f"{curves[:, k].mean():.3f}  {names[k]}")
    if len(names) > 1:
        mean = curves.mean(axis=1)
        axes.plot(*_reached(mean), color=INK, linewidth=2.4, label=f"{mean.mean():.3f}  mean of {len(names)} classes")
    # below, since curves may pass anywhere in the square
    axes.legend(title="AP", loc="upper left", bbox_to_anchor=(0, -0.13), alignment="left", borderaxespad=0)


def _reached(curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The curve down to its first zero: beyond the greatest recall there is nothing to draw."""
    end = int(np.argmax(curve <= 0)) + 1 if (curve <= 0).any() else len(curve)
    return RECALLS[:end], curve[:end]


def _without_truth(count: int) -> list[str]:
    return [f"{pluralize(count, 'class')} without ground truth left out"] if count else []
