"""The charts of a report, by section, of one run or of two in the same charts.

`PANELS` is the table of the curves.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from retina_dist.reporting.page import COLORS, Chart
from retina_dist.reporting.run_files import Calibration, Metric, RunFiles, Series, short
from retina_dist.tracking.progress import TRAINING_GROUPS

MAX_LINES = 10  # of one chart
MAX_CLASSES = 60  # as bars, and in a drawn confusion matrix
MAX_WRITTEN = 20  # classes of a confusion matrix with numbers in its cells
SHOWN_VALIDATIONS = 3  # curves of validation that are not hidden at first

Trace = dict[str, Any]
Runs = Sequence[RunFiles]


# The title of each chart of curves, its unit, and the names of the metrics that it draws.
PANELS = (
    ("Loss", "loss", "(train|val)/loss"),
    ("Parts of the training loss", "loss", "train/loss_.*"),
    # the metrics of every validation but its losses
    ("Validation", "metric", rf"(?!({'|'.join(TRAINING_GROUPS)})(/|$)|val/loss).*"),
    ("Learning rate", "learning rate", "train/lr"),
    ("Gradient norm", "L2 norm", "train/grad_norm"),
    ("Speed", "images/s", "time/images_per_s"),
)


def curves(runs: Runs) -> Iterator[Chart]:
    """What `PANELS` names over the steps, as far as logged.

    Training values are drawn thin with their running median on top.
    """
    logged = dict.fromkeys(name for run in runs for name in run.series)
    for title, unit, pattern in PANELS:
        names = [name for name in logged if re.fullmatch(pattern, name)]
        if names:
            yield _panel_chart(title, unit, names, runs)


def _panel_chart(title: str, unit: str, names: Sequence[str], runs: Runs) -> Chart:
    traces: list[Trace] = []
    values: list[float] = []
    num_lines = 0
    for run_place, run in enumerate(runs):
        for name_place, name in enumerate(names):
            series = run.series.get(name)
            if series is None:
                continue
            line: Trace = {"color": COLORS[name_place % len(COLORS)], "width": 2}
            if len(names) == 1:
                line["color"] = COLORS[run_place]
            elif run_place > 0:
                line["dash"] = "dash"

            label = _label(run, runs, name)
            common = {"name": label, "legendgroup": label, "x": series.steps, "line": line}
            if name.split("/")[0] in TRAINING_GROUPS:
                traces += _lines(series, {**common, "mode": "lines"})
            else:
                visible = name_place < SHOWN_VALIDATIONS or "legendonly"
                look = {"mode": "lines+markers", "visible": visible}
                traces.append({**common, **look, "y": _rounded(series.values)})
            values += series.values
            num_lines += 1

    layout = _axes("optimizer step", unit, y=_usual(values))
    layout |= {"showlegend": num_lines > 1, "hovermode": "x unified"}
    return Chart(title, traces, layout)


def _lines(series: Series, common: Trace) -> Iterator[Trace]:
    """The values, thin and pale, and their running median."""
    span = 2 * (len(series.values) // 40) + 1
    yield common | {
        "y": _rounded(series.values),
        "line": {**common["line"], "width": 1},
        "opacity": 0.35,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    yield common | {"y": _rounded(running_median(series.values, span))}


def results(runs: Runs) -> Iterator[Chart]:
    """Metrics, and each class, with their 95 % intervals."""
    known = [run for run in runs if run.analysis.metrics]
    if not known:
        return
    layout = {"barmode": "group", "showlegend": len(runs) > 1}
    named = [name for name, metric in known[0].metrics.items() if metric.value is not None]
    yield Chart("Metrics", [_bars(run, runs, named, run.metrics, "y") for run in known], layout)

    values: dict[str, float] = {}
    for run in reversed(known):
        for name, metric in run.analysis.classes.items():
            if metric.value is not None:
                values[name] = metric.value
    ranked = sorted(values, key=values.__getitem__)
    title = "Each class"
    if len(ranked) > MAX_CLASSES:
        half = MAX_CLASSES // 2
        title = f"The worst and the best {half} of {len(ranked)} classes"
        ranked = ranked[:half] + ranked[-half:]

    bars = [_bars(run, runs, ranked, run.analysis.classes, "x") for run in known]
    yield Chart(title, bars, layout, max(320, 90 + 24 * len(known) * len(ranked)))


def _bars(
    run: RunFiles, runs: Runs, names: Sequence[str], metrics: Mapping[str, Metric], axis: str
) -> Trace:
    """The values of `names` along an axis."""
    found = [metrics.get(name, Metric()) for name in names]
    # an interval may leave out its value, which is not corrected for bias
    known = [(each.value, each.low, each.high) for each in found]
    value, low, high = np.array(known, float).reshape(-1, 3).T
    whiskers = {
        "symmetric": False,
        "array": _rounded(np.maximum(high - value, 0)),
        "arrayminus": _rounded(np.maximum(value - low, 0)),
        "thickness": 1.2,
        "width": 3,
    }
    trace = {
        **_of_run(run, runs),
        "type": "bar",
        "orientation": "h" if axis == "x" else "v",
        "x": list(names),
        "y": list(names),
        f"error_{axis}": whiskers,
    }
    return trace | {axis: [each.value for each in found]}


def precision_recall(runs: Runs) -> Iterator[Chart]:
    """Precision over recall: the mean and, of one run with few of them, each class."""
    recalls = np.linspace(0, 1, 101).round(2).tolist()
    titles = dict.fromkeys(title for run in runs for title in run.details.precision_recall)
    for title in titles:
        traces = []
        for run_place, run in enumerate(runs):
            lines = list(run.details.precision_recall.get(title, {}).items())
            if len(runs) > 1 or len(lines) > MAX_LINES:
                lines = lines[:1]
            for place, (name, precisions) in enumerate(lines):
                traces.append(
                    {
                        "name": name if len(runs) == 1 else run.name,
                        "mode": "lines",
                        "line": {
                            "color": COLORS[(place + run_place) % len(COLORS)],
                            "width": 1.7 if place else 3,
                        },
                        "x": recalls,
                        "y": precisions,
                    }
                )
        axes = _axes("recall", "precision", x={"range": [0, 1]}, y={"range": [0, 1.02]})
        yield Chart(title, traces, axes | {"showlegend": True}, 400)


def confusion(runs: Runs) -> Iterator[Chart]:
    """Predictions by true class; of very many classes only the table of the page."""
    for run in runs:
        matrix = run.analysis.confusion
        if not matrix or len(matrix.labels) > MAX_CLASSES:
            continue
        counts = np.array(matrix.counts)
        shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        told = "true %{y}, predicted %{x}: %{text} (%{z:.1%} of the row)"
        trace = {
            "type": "heatmap",
            "x": matrix.labels,
            "y": matrix.labels,
            "z": shares.round(4).tolist(),
            "text": matrix.counts,
            "hovertemplate": told,
            "zmin": 0,
            "zmax": 1,
        }
        title = "Share of each true class"
        if len(matrix.labels) <= MAX_WRITTEN:
            trace["texttemplate"] = "%{text}"
            title = "In each cell the count, as its color the share of the true class"
        yield Chart(
            _title(title, run, runs),
            [trace],
            _axes("predicted", "true", y={"autorange": "reversed"}),
            height=max(340, 130 + 28 * len(matrix.labels)),
            wide=len(matrix.labels) > 12,
        )


def errors(runs: Runs) -> Iterator[Chart]:
    """The AP50 that the correction of each type of error would add."""
    traces = []
    for run in runs:
        known = run.analysis.errors
        if known:
            gains = {name.replace("_", " "): Metric(e.gain) for name, e in known.types.items()}
            traces.append(_bars(run, runs, list(reversed(gains)), gains, "x"))
    if traces:
        title = "AP50 that the correction of each type would add"
        yield Chart(title, traces, {"showlegend": len(runs) > 1})


def calibration(runs: Runs) -> Iterator[Chart]:
    """How often predictions of a confidence are right."""
    dotted = {"mode": "lines", "line": {"color": "#8a929c", "dash": "dot"}, "hoverinfo": "skip"}
    traces: list[Trace] = [{"name": "calibrated", "x": [0, 1], "y": [0, 1], **dotted}]
    for run in runs:
        known = run.analysis.calibration
        if not known:
            continue
        look = _of_run(run, runs)
        traces.append({**look, **_reliability(known)})
        if known.after and known.temperature is not None:
            name = f"{run.name}, temperature {known.temperature:.2f}"
            line = {"color": look["marker"]["color"], "dash": "dash"}
            traces.append({**look, **_reliability(known.after), "name": name, "line": line})
    if len(traces) > 1:
        axes = _axes(
            "confidence", "share that is right", x={"range": [0, 1]}, y={"range": [0, 1.02]}
        )
        yield Chart("Reliability", traces, axes | {"showlegend": True})


def _reliability(known: Calibration) -> Trace:
    bins = [each for each in known.bins if each.count]
    return {
        "x": [each.confidence for each in bins],
        "y": [each.accuracy for each in bins],
        "mode": "lines+markers",
        "text": [each.count for each in bins],
        "hovertemplate": "%{y:.3f} of %{text} predictions are right",
    }


def times(runs: Runs) -> Iterator[Chart]:
    """Seconds of each phase on each rank."""
    for run in runs:
        ranks = run.timings.ranks
        if not ranks:
            continue
        traces = []
        for phase in ranks[0].seconds:
            seconds = [rank.seconds[phase] for rank in ranks]
            if any(seconds):
                traces.append(
                    {
                        "type": "bar",
                        "orientation": "h",
                        "name": phase.replace("_", " "),
                        "y": [f"rank {i}" for i in range(len(ranks))],
                        "x": seconds,
                    }
                )
        layout = _axes("seconds", "", y={"autorange": "reversed"})
        layout |= {"barmode": "stack", "showlegend": True}
        title = _title("Each rank", run, runs)
        yield Chart(title, traces, layout, 180 + 26 * len(ranks), wide=True)


SECTIONS: dict[str, Callable[[Runs], Iterator[Chart]]] = {
    "Curves": curves,
    "Results": results,
    "Precision and recall": precision_recall,
    "Confusion matrix": confusion,
    "Types of errors": errors,
    "Calibration": calibration,
    "Time": times,
}


def _axes(
    x_title: str, y_title: str, y: Mapping[str, object], x: Mapping[str, object] = {}
) -> Trace:
    return {
        "xaxis": {"title": {"text": x_title, "standoff": 8}, **x},
        "yaxis": {"title": {"text": y_title, "standoff": 8}, **y},
    }


def _title(text: str, run: RunFiles, runs: Runs) -> str:
    return f"{text}, {run.name}" if len(runs) > 1 else text


def _label(run: RunFiles, runs: Runs, name: str) -> str:
    label = short(name).removeprefix("loss_").replace("_", " ")
    label = {"train/loss": "training", "val/loss": "validation"}.get(name, label)
    return f"{run.name}: {label}" if len(runs) > 1 else label


def _of_run(run: RunFiles, runs: Runs) -> Trace:
    return {"name": run.name, "marker": {"color": COLORS[runs.index(run)]}}


def running_median(values: Sequence[float], span: int) -> np.ndarray:
    """Median of the finite values among the `span` (odd) around each.

    Time and memory are the number of values times `span`: thin them first.

    >>> running_median([1.0, 9.0, 3.0, 4.0, 5.0], span=3).tolist()
    [5.0, 3.0, 4.0, 4.0, 4.5]
    """
    finite = np.where(np.isfinite(values), values, np.nan)
    padded = np.pad(finite, span // 2, constant_values=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the median of no values is nan
        return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, span), axis=1)


def _usual(values: Sequence[float]) -> Trace:
    """An axis that is cut above almost all values, so that outliers do not flatten the rest."""
    finite = np.array(values)[np.isfinite(values)]
    if not len(finite) or finite.min() < 0 or finite.max() <= 0:
        return {}
    end = finite.max()
    usual = np.percentile(finite, 99)
    if end >= 2 * usual:
        end = usual
    return {"range": [0, 1.08 * float(end)]}


def _rounded(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Five digits, more than a chart can show; null for NaN and infinity, which JSON lacks."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
