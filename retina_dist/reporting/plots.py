"""Plots of a run, curves over the steps, and of a sweep of runs.

matplotlib is imported when something is drawn. Figures are made without pyplot, so neither the
backend nor the settings of a program that imports this package are touched.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retina_dist.reporting.loggers import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, distinct with any colour vision; their yellow is too pale for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C564B", "#5F6B6D", "#88A80D")
INK, FAINT, BAR = "#222222", "#9A9A9A", "#5B9BC8"
PAPER: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # behind a text that a line may cross

STYLE: Any = {  # matplotlib settings
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.parse_math": False,  # a class may be called "$"
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": 130,
}


def plot_curves(metrics_csv: Path, out: Path, headline: Sequence[str] = ()) -> None:
    """Loss and its parts, the metrics in `headline`, learning rate, gradient norm and images/s over the steps, as far as logged.

    Training values are drawn thin with their running median on top. Values that are not finite leave gaps.
    Raises DataError unless a CsvLogger wrote `metrics_csv`.
    """
    series = read_metrics(metrics_csv)
    parts = [name for name in series if name.startswith("train/loss_")]
    known = {
        ("Loss", "loss"): ["train/loss", "val/loss"],
        ("Parts of the training loss", "loss"): parts,
        ("Validation", "metric"): headline,
        ("Learning rate", "learning rate"): ["train/lr"],
        ("Gradient norm", "L2 norm"): ["train/grad_norm"],
        ("Throughput", "images/s"): ["time/images_per_s"],
    }
    panels = {title: [n for n in names if n in series] for title, names in known.items()}
    panels = {title: names for title, names in panels.items() if names}
    columns = 1 if len(panels) <= 1 else 2 if len(panels) <= 4 else 3
    rows = max(1, -(-len(panels) // columns))
    with new_figure(out, (1 + 5.2 * columns, 0.4 + 3.4 * rows)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        last_step = max((steps[-1] for steps, _ in series.values()), default=1)
        for axes, ((title, unit), names) in zip(grid.flat, panels.items(), strict=False):
            axes.set(title=title, xlabel="optimizer step", ylabel=unit)
            for color, name in zip(COLORS, names, strict=False):
                _draw_curve(axes, name, *series[name], color)
            _limit(axes, [series[name][1] for name in names])
            axes.set_xlim(0, max(1, last_step) * 1.02)
            axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
            axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
            if len(names) > 1 or title == "Validation":
                axes.legend()
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        if not panels:
            grid[0, 0].text(0.5, 0.5, "nothing has been logged yet", ha="center", color=FAINT)


def plot_sweep(
    settings: Sequence[Mapping[str, str]],
    measures: Mapping[str, Sequence[float | None]],
    out: Path,
    *,
    failed: Sequence[bool],
    best: int | None = None,
) -> None:
    """A bar for each job and measure, side by side; the job number `best` is orange.

    `settings` holds a job's swept values by key, `measures` each measure's value for every job, by title, None if unknown.
    """
    keys = [key for key in settings[0] if len({job[key] for job in settings}) > 1]
    labels = [
        f"{i}  " + "  ".join(f"{key.rpartition('.')[2]}={job[key]}" for key in keys) for i, job in enumerate(settings)
    ]
    size = (3.6 * len(measures) + 0.085 * max(map(len, labels)), 1.6 + 0.3 * max(3, len(labels)))
    with new_figure(out, size) as figure:
        grid = figure.subplots(1, len(measures), squeeze=False, sharey=True)[0]
        for axes, (title, values) in zip(grid, measures.items(), strict=True):
            known = [np.nan if value is None or lost else value for value, lost in zip(values, failed, strict=True)]
            lengths = np.nan_to_num(known)
            colors = [COLORS[1] if i == best else BAR for i in range(len(labels))]
            bars = axes.barh(range(len(labels)), lengths, height=0.72, color=colors)
            words = [
                "failed" if lost else "-" if np.isnan(value) else f"{value:.4g}"
                for value, lost in zip(known, failed, strict=True)
            ]
            axes.bar_label(bars, words, padding=4, fontsize=8.5)
            axes.set_title(title)
            axes.grid(axis="y", visible=False)
            axes.set_yticks(range(len(labels)), labels)
            axes.set_ylim(len(labels) - 0.4, -0.6)
            axes.set_xlim(min(0.0, lengths.min()), 1.25 * max(lengths.max(), 1e-9))


def running_median(values: Sequence[float], span: int) -> np.ndarray:
    """Median of the finite values among the `span` (odd) around each; it neither lags nor follows outliers.

    >>> running_median([1.0, 9.0, 3.0, 4.0, 5.0], span=3).tolist()
    [5.0, 3.0, 4.0, 4.0, 4.5]
    """
    numbers = np.asarray(values, dtype=float)
    padded = np.pad(np.where(np.isfinite(numbers), numbers, np.nan), span // 2, constant_values=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the median of no values is nan
        return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, span), axis=1)


@contextmanager
def new_figure(out: Path, size: tuple[float, float]) -> Iterator[Figure]:
    """A figure of `size` inches in this module's style, saved to `out` when the context ends."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        FigureCanvasAgg(figure)
        yield figure
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out)


def _draw_curve(axes: Axes, name: str, steps: Sequence[int], values: Sequence[float], color: str) -> None:
    label = name.split("/", 1)[-1].removeprefix("loss_").replace("_", " ")
    if name.split("/")[0] not in ("train", "time"):
        label = "validation" if name == "val/loss" else f"{label} {values[-1]:.3f}"
        axes.plot(steps, values, color=color, marker="o", markersize=4, label=label)
        return
    axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.35)
    smooth = running_median(values, span=2 * (len(values) // 40) + 1)
    axes.plot(steps, smooth, color=color, label="training" if name == "train/loss" else label)


def _limit(axes: Axes, curves: Sequence[Sequence[float]]) -> None:
    """Cut the axis above almost all values, so that a few outliers do not flatten the rest."""
    values = np.concatenate([np.asarray(curve) for curve in curves])
    values = values[np.isfinite(values)]
    if len(values) and values.min() >= 0 and values.max() > 0:
        usual = np.percentile(values, 99)
        axes.set_ylim(0, 1.08 * (values.max() if values.max() < 2 * usual else usual))


def footnote(figure: Figure, notes: Sequence[str]) -> None:
    """Small grey text below the plots."""
    if notes:
        figure.supxlabel("; ".join(notes), fontsize=8.5, color="#666666")
