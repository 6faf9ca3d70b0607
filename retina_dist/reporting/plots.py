"""Plots of a run, curves over the steps, and of a sweep of runs.

matplotlib is imported when something is drawn. Figures are made without pyplot, so neither the
backend nor the settings of a program that imports this package are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from retina_dist.reporting.loggers import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = Mapping[str, tuple[list[int], list[float]]]

# Okabe and Ito's colours, distinct with any colour vision; their yellow is too pale for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C564B", "#5F6B6D", "#88A80D")
INK, FAINT, BAR = "#222222", "#9A9A9A", "#5B9BC8"
SWEEP_HUES = ("Blues", "Purples", "Greens")  # one for each measure of a sweep
PAPER: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # behind a text that a line may cross

STYLE: Any = {  # matplotlib settings
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$"
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#BBBBBB",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "savefig.dpi": 130,
}


def plot_curves(metrics_csv: Path, out: Path, headline: Sequence[str] = ()) -> None:
    """Loss and its parts, the metrics in `headline`, learning rate, gradient norm and images/s over the steps, as far as logged.

    Training values are drawn thin with their running median on top. Values that are not finite leave gaps.
    Raises DataError when `metrics_csv` is missing or is no file of a CsvLogger.
    """
    series = read_metrics(metrics_csv)
    panels = [panel for panel in _panels(series, headline) if not series.keys().isdisjoint(panel.names)]
    columns = 1 if len(panels) <= 1 else 2 if len(panels) <= 4 else 3
    rows = max(1, -(-len(panels) // columns))
    with new_figure(out, (1 + 5.2 * columns, 0.4 + 3.4 * rows)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False)
        last_step = max((steps[-1] for steps, _ in series.values()), default=1)
        for axes, panel in zip(grid.flat, panels, strict=False):
            axes.set(title=panel.title, xlabel="optimizer step", ylabel=panel.unit)
            panel.draw(axes, series)
            axes.set_xlim(0, max(1, last_step) * 1.02)
            axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
            axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
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
    """Each measure over the settings that differ between jobs, side by side; failed jobs are crossed out.

    `settings` holds a job's swept values by key, `measures` each measure's value for every job, by title, None if
    unknown. Two settings that fill a grid give heatmaps; one numeric setting gives a line; anything else gives a bar for each
    job. The job number `best` is highlighted.
    """
    keys = [key for key in settings[0] if len({job[key] for job in settings}) > 1]
    jobs = _Jobs(settings, keys, failed, best)
    draw: Callable[..., None] = _draw_sweep_bars
    if len(keys) == 2 and jobs.fill_a_grid():
        draw = _draw_sweep_heatmap
    elif len(keys) == 1 and jobs.numbers(keys[0]):
        draw = _draw_sweep_line
    with new_figure(out, _sweep_size(draw, jobs, len(measures))) as figure:
        all_axes = figure.subplots(1, len(measures), squeeze=False, sharey=draw is _draw_sweep_bars)[0]
        for axes, (title, values), hue in zip(all_axes, measures.items(), cycle(SWEEP_HUES)):
            axes.set_title(title)
            known = [np.nan if value is None or lost else value for value, lost in zip(values, failed, strict=True)]
            draw(axes, jobs, np.array(known), hue)
        notes = ["failed jobs are crossed out"] if any(failed) and draw is not _draw_sweep_bars else []
        how = "orange" if draw is _draw_sweep_bars else "outlined"
        footnote(figure, notes + ([f"the best job is {how}"] if best is not None else []))


def running_median(values: Sequence[float], span: int) -> np.ndarray:
    """Median of the `span` (odd) values around each; at the ends the window shrinks on both sides.

    Unlike an exponential mean it neither lags nor follows outliers. Values that are not finite do not count; the median of
    no values is nan.

    >>> running_median([1.0, 9.0, 3.0, 4.0, 5.0], span=3).tolist()
    [1.0, 3.0, 4.0, 4.0, 5.0]
    """
    numbers = np.asarray(values, dtype=float)
    medians = np.full(len(numbers), np.nan)
    for i in range(len(numbers)):
        reach = min(span // 2, i, len(numbers) - 1 - i)
        window = numbers[i - reach : i + reach + 1]
        finite = window[np.isfinite(window)]
        if len(finite):
            medians[i] = np.median(finite)
    return medians


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


def _draw_loss(axes: Axes, series: Series) -> None:
    _draw_smoothed(axes, series, {"train/loss": "training"})
    if "val/loss" in series:
        axes.plot(*series["val/loss"], color=COLORS[1], marker="o", markersize=4, label="validation")
    _limit_above(axes, [series[name][1] for name in LOSS_NAMES if name in series])
    axes.legend()


def _draw_parts(axes: Axes, series: Series) -> None:
    names = [name for name in series if name.startswith(PART)]
    _draw_smoothed(axes, series, {name: name.removeprefix(PART).replace("_", " ") for name in names})
    axes.legend()


def _draw_smoothed(axes: Axes, series: Series, labels: Mapping[str, str]) -> None:
    """The metrics as they were logged, thin, and their running median."""
    shown = [name for name in labels if name in series]
    for color, name in zip(COLORS, shown, strict=False):
        steps, values = series[name]
        axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.35)
        smooth = running_median(values, span=2 * (len(values) // 40) + 1)
        axes.plot(steps, smooth, color=color, label=labels[name])
    _limit_above(axes, [series[name][1] for name in shown])


def _draw_lr(axes: Axes, series: Series) -> None:
    axes.plot(*series["train/lr"], color=COLORS[0])
    axes.set_ylim(bottom=0)


def _draw_metrics(axes: Axes, series: Series, names: Sequence[str]) -> None:
    for color, name in zip(COLORS, names, strict=False):
        if name in series:
            steps, values = series[name]
            known = [np.nan if value == -1 else value for value in values]  # -1: undefined
            label = f"{name.split('/', 1)[-1]} {known[-1]:.3f}"
            axes.plot(steps, known, color=color, marker="o", markersize=4, label=label)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.legend()


def _draw_speed(axes: Axes, series: Series) -> None:
    steps, values = series["time/images_per_s"]
    axes.plot(steps, values, color=COLORS[2], linewidth=1.0)
    median = np.median(values)
    axes.axhline(median, color=INK, linewidth=1.0, linestyle="--", label=f"median {median:.1f}")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")


class _Panel(NamedTuple):
    """One of the curves' panels, drawn when any of `names` was logged."""

    title: str
    unit: str
    names: Sequence[str]
    draw: Callable[[Axes, Series], None]


LOSS_NAMES = ("train/loss", "val/loss")
PART = "train/loss_"
GRAD_NORM = {"train/grad_norm": "gradient norm"}


def _panels(series: Series, headline: Sequence[str]) -> list[_Panel]:
    return [
        _Panel("Loss", "loss", LOSS_NAMES, _draw_loss),
        _Panel("Parts of the training loss", "loss", [name for name in series if name.startswith(PART)], _draw_parts),
        _Panel("Validation", "metric", headline, partial(_draw_metrics, names=headline)),
        _Panel("Learning rate", "learning rate", ("train/lr",), _draw_lr),
        _Panel("Gradient norm", "L2 norm", tuple(GRAD_NORM), partial(_draw_smoothed, labels=GRAD_NORM)),
        _Panel("Throughput", "images/s", ("time/images_per_s",), _draw_speed),
    ]


class _Jobs(NamedTuple):
    """The jobs of a sweep; `keys` are the settings that differ between them."""

    settings: Sequence[Mapping[str, str]]
    keys: Sequence[str]
    failed: Sequence[bool]
    best: int | None

    def numbers(self, key: str) -> list[float] | None:
        """The setting of each job, None unless all are numbers."""
        try:
            return [float(job[key]) for job in self.settings]
        except ValueError:
            return None

    def values(self, key: str) -> list[str]:
        """The values of a setting, numbers rising, others in their order."""
        found = list(dict.fromkeys(job[key] for job in self.settings))
        return sorted(found, key=float) if self.numbers(key) else found

    def fill_a_grid(self) -> bool:
        """Whether at least half of all pairs of values are jobs, none of them twice."""
        first, second = self.keys
        pairs = {(job[first], job[second]) for job in self.settings}
        possible = len(self.values(first)) * len(self.values(second))
        return len(pairs) == len(self.settings) and 2 * len(pairs) >= possible

    def label(self, i: int) -> str:
        """The job's number and settings, keys without their groups."""
        return f"{i}  " + "  ".join(f"{key.rpartition('.')[2]}={self.settings[i][key]}" for key in self.keys)


def _sweep_size(draw: Callable[..., None], jobs: _Jobs, panels: int) -> tuple[float, float]:
    """Inches."""
    if draw is _draw_sweep_heatmap:
        width, height = (len(jobs.values(key)) for key in jobs.keys)
        return panels * (1.9 + max(3, width) * 0.85), 1.9 + max(2, height) * 0.62
    if draw is _draw_sweep_line:
        return 4.6 * panels, 3.9
    names = max(len(jobs.label(i)) for i in range(len(jobs.settings)))
    return 3.6 * panels + 0.085 * names, 1.6 + 0.3 * max(3, len(jobs.settings))


def _draw_sweep_heatmap(axes: Axes, jobs: _Jobs, values: np.ndarray, hue: str) -> None:
    """The first setting on the x axis, the second on the y axis; larger values are darker."""
    x_key, y_key = jobs.keys
    columns, rows = jobs.values(x_key), jobs.values(y_key)
    places = [(columns.index(job[x_key]), rows.index(job[y_key])) for job in jobs.settings]
    cells = np.full((len(rows), len(columns)), np.nan)
    for (x, y), value in zip(places, values, strict=True):
        cells[y, x] = value
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    spread = (high - low) or 1.0
    # the lightest is not white, and text on the darkest is readable
    low, high = low - 0.2 * spread, high + 0.2 * spread
    axes.imshow(cells, cmap=hue, origin="lower", aspect="auto", vmin=low, vmax=high)
    for i, (x, y) in enumerate(places):
        if jobs.failed[i]:
            _cross_out(axes, x, y)
        else:
            dark = values[i] > low + 0.6 * (high - low)
            axes.text(x, y, _digits(values[i], values), ha="center", va="center", color="white" if dark else INK)
        if i == jobs.best:
            axes.add_patch(_outline(x, y))
    axes.set(xlabel=x_key, ylabel=y_key)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)  # white lines between the cells
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(visible=False)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def _cross_out(axes: Axes, x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="#F1F1F1", zorder=0.5))
    for ends in ((y - 0.3, y + 0.3), (y + 0.3, y - 0.3)):
        axes.plot((x - 0.3, x + 0.3), ends, color=FAINT, linewidth=1.2, scalex=False, scaley=False)


def _outline(x: float, y: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor=COLORS[1], linewidth=2.2, zorder=4)


def _draw_sweep_line(axes: Axes, jobs: _Jobs, values: np.ndarray, hue: str) -> None:
    key = jobs.keys[0]
    places = np.array(jobs.numbers(key))
    order = [i for i in np.argsort(places, kind="stable") if np.isfinite(values[i])]
    axes.plot(places[order], values[order], color=COLORS[0], marker="o", markersize=5)
    for i in order:
        text, place = _digits(values[i], values), (places[i], values[i])
        axes.annotate(text, place, xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8.5, bbox=PAPER)
    marks: Any = {"linestyle": "", "color": COLORS[1], "markeredgewidth": 2}
    failed = places[np.array(jobs.failed)]
    edge = axes.get_xaxis_transform()  # failed jobs are drawn at the lower edge
    axes.plot(failed, np.full(len(failed), 0.04), marker="x", markersize=9, transform=edge, **marks)
    if jobs.best is not None:
        axes.plot(places[jobs.best], values[jobs.best], marker="o", markersize=11, markerfacecolor="none", **marks)
    if places.min() > 0 and places.max() >= 8 * places.min():
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.margins(x=0.12, y=0.2)
    axes.set_xticks(sorted(set(places.tolist())), jobs.values(key))
    axes.set_xlabel(key)


def _draw_sweep_bars(axes: Axes, jobs: _Jobs, values: np.ndarray, hue: str) -> None:
    lengths = np.nan_to_num(values)
    colors = [COLORS[1] if i == jobs.best else BAR for i in range(len(values))]
    axes.barh(range(len(values)), lengths, height=0.72, color=colors)
    beside: Any = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8.5}
    for i, failed in enumerate(jobs.failed):
        text = "\N{MULTIPLICATION SIGN} failed" if failed else _digits(values[i], values)
        axes.annotate(text, (lengths[i], i), color=COLORS[1] if failed else INK, **beside)
    axes.grid(axis="y", visible=False)
    axes.set_yticks(range(len(values)), [jobs.label(i) for i in range(len(values))])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(min(0.0, lengths.min()), 1.25 * max(lengths.max(), 1e-9))


def _digits(value: float, among: np.ndarray) -> str:
    """As many digits as distinguish the values of a plot; a dash for a value that is not finite."""
    if not np.isfinite(value):
        return "-"
    greatest = np.nanmax(np.abs(among))
    return f"{value:,.{3 if greatest < 10 else 1 if greatest < 1000 else 0}f}"


def _limit_above(axes: Axes, curves: Sequence[Sequence[float]]) -> None:
    """Cut the axis above almost all values, so that a few outliers do not flatten the rest."""
    values = np.array([value for curve in curves for value in curve])
    values = values[np.isfinite(values)]
    if len(values) and values.min() >= 0 and values.max() > 0:
        usual = np.percentile(values, 99)
        axes.set_ylim(0, 1.08 * (values.max() if values.max() < 2 * usual else usual))


def footnote(figure: Figure, notes: Sequence[str]) -> None:
    """Small grey text below the plots."""
    if notes:
        figure.supxlabel("; ".join(notes), fontsize=8.5, color="#666666")
