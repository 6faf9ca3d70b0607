"""Plots of scaling: epoch time over the number of workers, measured or calculated."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from retina_dist.reporting.plots import COLORS, FAINT, footnote, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "D", "^", "v", "P", "X")  # with the colours, they tell overlapping lines apart


class Epoch(NamedTuple):
    """Minutes of an epoch with `workers` workers; `shortest` and `longest` over several rounds."""

    workers: int
    minutes: float
    shortest: float
    longest: float


class Forecast(NamedTuple):
    """Time and cost of a training with `gpus` GPUs; `cost` is None where part of a machine would be idle."""

    gpus: int
    epoch_minutes: float
    efficiency: float
    hours: float
    cost: float | None


def plot_steps(rows: Sequence[Mapping[str, Any]], out: Path, notes: Sequence[str] = ()) -> None:
    """Images a second of each path by batch size, as groups of bars; on each bar how many times the first path it is.

    A row has `path`, `batch_size`, `images_per_s` and `ratio`.
    """
    paths = list(dict.fromkeys(row["path"] for row in rows))
    sizes = sorted({row["batch_size"] for row in rows})
    width = 0.8 / len(paths)
    with new_figure(out, (max(6.0, 1.2 + 0.6 * len(paths) * len(sizes)), 4.6 + 0.22 * len(paths))) as figure:
        axes = figure.subplots()
        axes.set(title="Images a second", xlabel="images a step", ylabel="images a second")
        for i, path in enumerate(paths):
            own = [row for row in rows if row["path"] == path]
            places = [sizes.index(row["batch_size"]) + (i - (len(paths) - 1) / 2) * width for row in own]
            speeds = [row["images_per_s"] for row in own]
            bars = axes.bar(places, speeds, width * 0.92, label=path, color=COLORS[i % len(COLORS)])
            axes.bar_label(bars, [f"{row['ratio']:.2f}x" for row in own], fontsize=8, padding=2)
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.grid(visible=False, axis="x")
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.14), borderaxespad=0)
        footnote(figure, [*notes, f"on the bars: times {paths[0]}"])


def plot_epochs(lines: Mapping[str, Sequence[Epoch]], alone: float, out: Path, notes: Sequence[str] = ()) -> None:
    """Epoch length over workers on logarithmic axes, a line for each launcher, beside the ideal of `alone` minutes / N.

    Whiskers reach from the shortest to the longest round.
    """
    with new_figure(out, (7.4, 4.7 + 0.22 * len(lines))) as figure:
        axes = figure.subplots()
        axes.set(title="Length of an epoch", xlabel="workers", ylabel="minutes")
        workers = sorted({point.workers for line in lines.values() for point in line})
        axes.plot(workers, [alone / n for n in workers], color=FAINT, linestyle="--", linewidth=1.3, label="ideal, 1/N")
        for i, (name, points) in enumerate(lines.items()):
            line = sorted(points)
            numbers, minutes = [p.workers for p in line], [p.minutes for p in line]
            reach = [[p.minutes - p.shortest for p in line], [p.longest - p.minutes for p in line]]
            look: Any = {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 5}
            capsize = 3 + 2 * (i % 5)  # so that whiskers do not hide each other
            axes.errorbar(numbers, minutes, reach, linewidth=1.5, capsize=capsize, elinewidth=1.2, label=name, **look)
        _log_workers(axes, workers)
        _log_values(axes, "y")
        # below, since lines may pass anywhere
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.14), borderaxespad=0)
        footnote(figure, ["\n".join(textwrap.wrap("; ".join(notes), 95))])


def plot_forecasts(lines: Mapping[str, Sequence[Forecast]], out: Path, *, cost: str, notes: Sequence[str] = ()) -> None:
    """Epoch length and efficiency over GPUs, and what the whole training costs, in `cost`, over how long it takes.

    A line for each kind of machine; dashed is its own ideal of 1/N. In the last panel each point is a number of GPUs, more of
    them to the left.
    """
    with new_figure(out, (14.5, 4.9 + 0.22 * len(lines))) as figure:
        epochs, efficiency, costs = figure.subplots(1, 3)
        epochs.set(title="Length of an epoch", xlabel="GPUs", ylabel="minutes")
        efficiency.set(title="Efficiency", xlabel="GPUs", ylabel="speed-up / GPUs", ylim=(0, 1.04))
        costs.set(title="What the training takes", xlabel="hours", ylabel=cost)
        gpus = sorted({point.gpus for line in lines.values() for point in line})
        for i, (name, points) in enumerate(lines.items()):
            line = sorted(points, key=lambda point: point.gpus)
            numbers = [p.gpus for p in line]
            alone = line[0].epoch_minutes * line[0].gpus * line[0].efficiency  # minutes of one GPU
            look: Any = {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 5}
            epochs.plot(numbers, [alone / n for n in numbers], color=FAINT, linestyle="--", linewidth=1.3, zorder=1)
            epochs.plot(numbers, [p.epoch_minutes for p in line], label=name, **look)
            efficiency.plot(numbers, [p.efficiency for p in line], **look)
            _draw_cost(costs, line, look, above=i % 2 == 1)
        epochs.plot([], [], color=FAINT, linestyle="--", linewidth=1.3, label="ideal, 1/N")
        for axes in (epochs, efficiency):
            _log_workers(axes, gpus)
        efficiency.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        costs.margins(x=0.16, y=0.14)
        costs.set_ylim(bottom=0)
        costs.yaxis.set_major_formatter(_plain)
        _log_values(epochs, "y")
        _log_values(costs, "x")
        epochs.legend(loc="upper left", bbox_to_anchor=(0, -0.14), borderaxespad=0)
        footnote(figure, ["\n".join(textwrap.wrap("; ".join(notes), 190))])


def plot_published(rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Forecast over published step of clusters, before and after the fit, and the error over the number of GPUs.

    A row has `network`, `round`, `gpus`, `step_ms`, `before_ms` and `forecast_ms`. Full marks are rounds that were held out.
    """
    with new_figure(out, (12.5, 5.6)) as figure:
        steps, error = figure.subplots(1, 2)
        steps.set(title="A step of a cluster", xlabel="published ms", ylabel="forecast ms")
        error.set(title="Error of the forecast", xlabel="GPUs", ylabel="forecast / published - 1")
        ends = [min(row["step_ms"] for row in rows) / 1.3, max(row["step_ms"] for row in rows) * 1.3]
        steps.plot(ends, ends, color=FAINT, linestyle="--", linewidth=1.3, zorder=1, label="equal")
        error.axhline(0, color=FAINT, linestyle="--", linewidth=1.3, zorder=1)
        networks = list(dict.fromkeys(row["network"] for row in rows))
        for i, network in enumerate(networks):
            for held_out in (False, True):
                own = [row for row in rows if row["network"] == network and (row["round"] >= 4.0) == held_out]
                if not own:
                    continue
                published, gpus = [row["step_ms"] for row in own], [row["gpus"] for row in own]
                for key, color, name in (("before_ms", FAINT, "before"), ("forecast_ms", COLORS[i], "after")):
                    look: Any = {
                        "marker": MARKERS[i],
                        "linestyle": "",
                        "markersize": 6,
                        "color": color,
                        "zorder": 2 + held_out,
                    }
                    look["markerfacecolor"] = color if held_out else "none"
                    found = [row[key] for row in own]
                    label = f"{network}, {name}, {'held out' if held_out else 'fitted'}"
                    steps.plot(published, found, label=label, **look)
                    error.plot(gpus, [a / b - 1 for a, b in zip(found, published, strict=True)], **look)
        for which in ("x", "y"):
            _log_values(steps, which)  # type: ignore[arg-type]
        error.set_xscale("log", base=2)
        error.xaxis.set_major_formatter(_plain)
        error.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        steps.legend(loc="upper left", bbox_to_anchor=(0, -0.14), borderaxespad=0, ncols=2)


def _draw_cost(axes: Axes, line: Sequence[Forecast], look: Mapping[str, Any], above: bool) -> None:
    """Cost over hours, the ends labelled with their GPUs above or below."""
    points = [(p.hours, p.cost, p.gpus) for p in line if p.cost is not None]
    axes.plot([hours for hours, _, _ in points], [cost for _, cost, _ in points], **look)
    place: Any = {"xytext": (0, 9 if above else -9), "textcoords": "offset points", "ha": "center"}
    for hours, cost, gpus in points[:: max(1, len(points) - 1)]:
        text = f"{gpus:,} GPU{'s' * (gpus > 1)}"
        axes.annotate(text, (hours, cost), color=look["color"], fontsize=8.5, va="bottom" if above else "top", **place)


def _log_workers(axes: Axes, workers: Sequence[int]) -> None:
    """A logarithmic axis with a tick at each number, or at powers of 4 where there are many."""
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    shown = [n for i, n in enumerate(workers) if len(workers) <= 8 or i % 2 == 0]
    axes.set_xticks(shown, [f"{n:,}" for n in shown])
    axes.set_xlim(workers[0] / 1.18, workers[-1] * 1.18)


def _log_values(axes: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis whose ticks are plain numbers, close enough to read a value."""
    from matplotlib.ticker import LogLocator

    axes.set(**{f"{which}scale": "log"})
    axis, (low, high) = (axes.xaxis, axes.get_xlim()) if which == "x" else (axes.yaxis, axes.get_ylim())
    close = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    subs = close if high < 4 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if high < 12 * low else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=40))
    axis.set_minor_locator(LogLocator(base=10, subs=(), numticks=1))
    axis.set_major_formatter(_plain)


def _plain(value: float, position: float) -> str:
    return f"{value:,.6g}"
