"""The report of a run folder, or of two side by side, from the files that a run or an evaluation wrote there."""

from __future__ import annotations

import base64
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retina_dist.base.errors import DataError, first_line
from retina_dist.base.files import read_bytes
from retina_dist.base.settings import flattened
from retina_dist.base.yaml_files import load_yaml
from retina_dist.reporting.analysis import MOST_IN_MATRIX, confusions_of
from retina_dist.reporting.intervals import Resampled
from retina_dist.reporting.page import COLORS, REPORT, Chart, format_number, write_page
from retina_dist.reporting.pictures import LISTS, MOST_LISTED
from retina_dist.tracking.loggers import read_metrics
from retina_dist.tracking.progress import TRAINING_GROUPS

FILES = ("config.yaml", "metrics.csv", "result.json", "metrics.json", "analysis.json")
MOST_POINTS = 1500  # of a curve
MOST_LINES = 10  # of one chart
MOST_CLASSES = 60  # as bars, and in a drawn confusion matrix

Trace = dict[str, Any]


class RunFiles:
    """The files of a run folder, each empty where it is missing; `settings` are by dotted key.

    Raises DataError for a folder without any of the files, and for a file that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not any((folder / name).is_file() for name in FILES):
            raise DataError(f"{folder} has none of {', '.join(FILES)}; give the folder of a run.")
        self.folder, path = folder, folder.resolve()
        self.name = (
            "/".join(path.parts[-2:]) if path.name.isdecimal() else path.name
        )  # a sweep's job
        self.settings: dict[str, str] = flattened(self._content("config.yaml", {}))
        self.starts: list[dict[str, Any]] = self._content("command.json", [])
        self.result: dict[str, Any] = self._content("result.json", {})
        self.timings: dict[str, Any] = self._content("timings.json", {})
        self.analysis: dict[str, Any] = self._content("analysis.json", {})
        self.details: dict[str, Any] = self._content("details.json", {})
        self.series = (
            read_metrics(folder / "metrics.csv") if (folder / "metrics.csv").is_file() else {}
        )

    def _content(self, name: str, default: Any) -> Any:
        file = self.folder / name
        try:
            if not file.is_file():
                return default
            if file.suffix == ".yaml":
                return load_yaml(file)
            return json.loads(read_bytes(file), parse_constant=lambda _: None)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{file} cannot be read ({first_line(error)}); remove or repair it."
            ) from error

    @property
    def metrics(self) -> dict[str, Any]:
        """Those of analysis.json, `value`, `low` and `high` by name; without it values of the last validation."""
        last = {
            n.split("/", 1)[-1]: {"value": v} for n, v in self.result.get("metrics", {}).items()
        }
        return self.analysis.get("metrics") or last

    @property
    def environment(self) -> dict[str, Any]:
        """Commit, job and versions of the last start."""
        start = self.starts[-1] if self.starts else {}
        return {"commit": start.get("commit"), "job": start.get("job"), **start.get("versions", {})}

    @property
    def pictures(self) -> dict[str, list[dict[str, Any]]]:
        """The images of each list of analysis.json that the folder has, with their JPEG as `source`."""
        lists: dict[str, list[dict[str, Any]]] = {}
        for kind in LISTS:
            for entry in self.analysis.get(kind, ())[:MOST_LISTED]:
                known = self.details.get("images", {}).get(str(entry["image_id"]))
                if known and (file := self.folder / "images" / Path(known["file"]).name).is_file():
                    source = (
                        "data:image/jpeg;base64," + base64.b64encode(file.read_bytes()).decode()
                    )
                    lists.setdefault(kind, []).append({**entry, **known, "source": source})
        return lists


def write_report(folder: Path, other: Path | None = None, out: Path | None = None) -> Path:
    """Write the report of a run folder, beside that of another one, to `out`, by default `folder`/report.html or compared.html.

    Raises DataError where a folder has nothing to report, ConfigError without `retina-dist[analysis]`.
    """
    runs = [RunFiles(path) for path in (folder, other) if path]
    if other and runs[0].name == runs[1].name:
        runs[0].name, runs[1].name = str(folder), str(other)
    sections = {
        "Curves": curves,
        "Results": results,
        "Precision and recall": precision_recall,
        "Confusion matrix": confusion,
        "Types of errors": errors,
        "Calibration": calibration,
        "Time": times,
    }
    charts = {title: list(draw(runs)) for title, draw in sections.items()}
    more = {"most_in_matrix": MOST_IN_MATRIX, "confusions_of": confusions_of}
    more["differences"] = differences(*runs) if other else []
    out, title = (
        out or folder / ("compared.html" if other else REPORT),
        " and ".join(run.name for run in runs),
    )
    return write_page(out, title, charts, runs=runs, **more)


def differences(first: RunFiles, second: RunFiles) -> list[tuple[str, ...]]:
    """(metric, value of the first, of the second, difference, 95 % interval of that, what it says) of two runs.

    The interval is of pairs of resamples, where both runs were validated on the same images.
    """
    rows, keys = [], {}
    before, after = (Resampled.load(run.folder) for run in (first, second))
    if before and after and before.images == after.images:
        keys = {name.split("/", 1)[-1]: name for name in before.values if name in after.values}
    for name in dict.fromkeys([*first.metrics, *keys]):
        values = [run.metrics.get(name, {}).get("value") for run in (first, second)]
        interval, verdict = "", ""
        if (
            before
            and after
            and name in keys
            and math.isfinite((apart := after.difference(before, keys[name])).value)
        ):
            values, interval = [each.values[keys[name]] for each in (before, after)], str(apart)
            verdict = (
                "not distinguishable"
                if apart.holds_zero
                else "better"
                if apart.value > 0
                else "worse"
            )
        number = "-" if None in values else f"{values[1] - values[0]:+.3f}"
        rows.append((name, *map(format_number, values), number, interval, verdict))
    return rows


# charts


def curves(runs: Sequence[RunFiles]) -> Iterator[Chart]:
    """Loss and its parts, validation, learning rate, gradient norm and speed over the steps, as far as logged.

    Training values are drawn thin with their running median on top.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.series))
    validation = [
        n for n in names if n.split("/")[0] not in TRAINING_GROUPS and not n.startswith("val/loss")
    ]
    panels = [
        ("Loss", "loss", ["train/loss", "val/loss"]),
        ("Parts of the training loss", "loss", [n for n in names if n.startswith("train/loss_")]),
        ("Validation", "metric", validation),
        ("Learning rate", "learning rate", ["train/lr"]),
        ("Gradient norm", "L2 norm", ["train/grad_norm"]),
        ("Speed", "images/s", ["time/images_per_s"]),
    ]
    for title, unit, wanted in panels:
        shown = [name for name in wanted if name in names]
        drawn = [(run, name) for run in runs for name in shown if name in run.series]
        traces: list[Trace] = []
        for run, name in drawn:
            (steps, values), label = run.series[name], _label(run, runs, name)
            color = runs.index(run) if len(shown) == 1 else shown.index(name)
            dash = "dash" if len(shown) > 1 and run is not runs[0] else "solid"
            line = {"color": COLORS[color % len(COLORS)], "width": 2, "dash": dash}
            common = {
                "name": label,
                "legendgroup": label,
                "x": _thinned(steps),
                "mode": "lines",
                "line": line,
            }
            raw = common | {"y": _thinned(_rounded(values))}
            if name.split("/")[0] in TRAINING_GROUPS:
                smooth = _rounded(running_median(values, span=2 * (len(values) // 40) + 1))
                thin = {
                    "line": line | {"width": 1},
                    "opacity": 0.35,
                    "hoverinfo": "skip",
                    "showlegend": False,
                }
                traces += [raw | thin, common | {"y": _thinned(smooth)}]
            else:
                traces += [
                    raw
                    | {"mode": "lines+markers", "visible": shown.index(name) < 3 or "legendonly"}
                ]
        if traces:
            axes = _axes(
                "optimizer step",
                unit,
                y=_usual([v for run, name in drawn for v in run.series[name][1]]),
            )
            yield Chart(
                title, traces, axes | {"showlegend": len(drawn) > 1, "hovermode": "x unified"}
            )


def results(runs: Sequence[RunFiles]) -> Iterator[Chart]:
    """Metrics, and each class, with their 95 % intervals."""
    known = [run for run in runs if run.analysis]
    if not known:
        return
    group = {"barmode": "group", "showlegend": len(runs) > 1}
    named = [name for name, entry in known[0].metrics.items() if entry.get("low") is not None]
    yield Chart("Metrics", [_bars(run, runs, named, run.metrics, "y") for run in known], group)
    classes = {
        name: entry
        for name, entry in known[0].analysis["classes"].items()
        if entry["value"] is not None
    }
    ranked = sorted(classes, key=lambda name: classes[name]["value"])
    if cut := len(ranked) > MOST_CLASSES:
        ranked = ranked[: MOST_CLASSES // 2] + ranked[-MOST_CLASSES // 2 :]
    title = (
        f"The worst and the best {MOST_CLASSES // 2} of {len(classes)} classes"
        if cut
        else "Each class"
    )
    bars = [_bars(run, runs, ranked, run.analysis["classes"], "x") for run in known]
    yield Chart(title, bars, group, max(320, 90 + 24 * len(known) * len(ranked)))


def _bars(
    run: RunFiles, runs: Sequence[RunFiles], names: list[str], entries: dict[str, Any], axis: str
) -> Trace:
    """The values of `names` along an axis."""
    known = [entries.get(name) or {"value": None, "low": None, "high": None} for name in names]
    # An interval may leave out its value, which is not corrected for bias.
    up = [None if e["high"] is None else max(0.0, e["high"] - e["value"]) for e in known]
    down = [None if e["low"] is None else max(0.0, e["value"] - e["low"]) for e in known]
    whiskers = {"symmetric": False, "array": up, "arrayminus": down, "thickness": 1.2, "width": 3}
    places = {"x": "y", "y": "x"}[axis]
    values = {axis: [e["value"] for e in known], places: list(names), f"error_{axis}": whiskers}
    return _of_run(run, runs) | {
        "type": "bar",
        "orientation": "h" if axis == "x" else "v",
        **values,
    }


def precision_recall(runs: Sequence[RunFiles]) -> Iterator[Chart]:
    """Precision over recall: the mean and, of one run with few of them, each class."""
    for title in dict.fromkeys(
        title for run in runs for title in run.details.get("precision_recall", {})
    ):
        traces = []
        for run in runs:
            lines = run.details.get("precision_recall", {}).get(title, {})
            lines = (
                lines
                if len(runs) == 1 and len(lines) <= MOST_LINES
                else dict(list(lines.items())[:1])
            )
            for place, (name, values) in enumerate(lines.items()):
                line = {"color": COLORS[place + runs.index(run)], "width": 1.7 if place else 3}
                points = {"x": np.linspace(0, 1, 101).round(2).tolist(), "y": values}
                traces.append(
                    {
                        "name": name if len(runs) == 1 else run.name,
                        "mode": "lines",
                        "line": line,
                        **points,
                    }
                )
        axes = _axes("recall", "precision", x={"range": [0, 1]}, y={"range": [0, 1.02]})
        yield Chart(title, traces, axes | {"showlegend": True}, 400)


def confusion(runs: Sequence[RunFiles]) -> Iterator[Chart]:
    """Predictions by true class; of very many classes only the table of the page."""
    for run in runs:
        matrix = run.analysis.get("confusion")
        if not matrix or len(matrix["labels"]) > MOST_CLASSES:
            continue
        counts, labels = np.array(matrix["counts"]), matrix["labels"]
        shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        trace = {
            "type": "heatmap",
            "x": labels,
            "y": labels,
            "z": shares.round(4).tolist(),
            "text": counts.tolist(),
        }
        trace |= {
            "hovertemplate": "true %{y}, predicted %{x}<br>%{text} (%{z:.1%} of the row)<extra></extra>"
        }
        trace |= {"zmin": 0, "zmax": 1, "texttemplate": "%{text}" if len(labels) <= 20 else ""}
        axes = _axes("predicted", "true", y={"autorange": "reversed"})
        title = _title("Share of each true class", run, runs)
        yield Chart(title, [trace], axes, max(340, 130 + 28 * len(labels)), len(labels) > 12)


def errors(runs: Sequence[RunFiles]) -> Iterator[Chart]:
    """The AP50 that the correction of each type of error would add."""
    traces = []
    for run in runs:
        if known := run.analysis.get("errors"):
            types = [
                (name.replace("_", " "), entry["gain"])
                for name, entry in reversed(known["types"].items())
            ]
            bars = {"y": [name for name, _ in types], "x": [gain for _, gain in types]}
            traces.append(_of_run(run, runs) | {"type": "bar", "orientation": "h", **bars})
    if traces:
        yield Chart(
            "AP50 that the correction of each type would add", traces, {"showlegend": len(runs) > 1}
        )


def calibration(runs: Sequence[RunFiles]) -> Iterator[Chart]:
    """How often predictions of a confidence are right."""
    look = {"mode": "lines", "line": {"color": "#8a929c", "dash": "dot"}, "hoverinfo": "skip"}
    traces: list[Trace] = [{"name": "calibrated", "x": [0, 1], "y": [0, 1], **look}]
    for run in runs:
        if known := run.analysis.get("calibration"):
            bins = [entry for entry in known["bins"] if entry["count"]]
            points = {
                "x": [e["confidence"] for e in bins],
                "y": [e["accuracy"] for e in bins],
                "mode": "lines+markers",
            }
            told = {
                "text": [e["count"] for e in bins],
                "hovertemplate": "%{y:.3f} of %{text} predictions are right",
            }
            traces.append(_of_run(run, runs) | points | told)
    if len(traces) > 1:
        axes = _axes(
            "confidence", "share that is right", x={"range": [0, 1]}, y={"range": [0, 1.02]}
        )
        yield Chart("Reliability", traces, axes | {"showlegend": True})


def times(runs: Sequence[RunFiles]) -> Iterator[Chart]:
    """Seconds of each phase on each rank."""
    for run in [run for run in runs if run.timings.get("ranks")]:
        ranks = run.timings["ranks"]
        labels = [f"rank {i}" for i in range(len(ranks))]
        traces = [
            {
                "type": "bar",
                "orientation": "h",
                "name": part.replace("_", " "),
                "y": labels,
                "x": seconds,
            }
            for part in ranks[0]["seconds"]
            if any(seconds := [rank["seconds"][part] for rank in ranks])
        ]
        layout = _axes("seconds", "", y={"autorange": "reversed"}) | {
            "barmode": "stack",
            "showlegend": True,
        }
        yield Chart(
            _title("Each rank", run, runs), traces, layout, 180 + 26 * len(ranks), wide=True
        )


def _axes(
    x_title: str,
    y_title: str,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
) -> Trace:
    return {
        "xaxis": {"title": {"text": x_title, "standoff": 8}, **(x or {})},
        "yaxis": {"title": {"text": y_title, "standoff": 8}, **(y or {})},
    }


def _title(text: str, run: RunFiles, runs: Sequence[RunFiles]) -> str:
    return f"{text}, {run.name}" if len(runs) > 1 else text


def _label(run: RunFiles, runs: Sequence[RunFiles], name: str) -> str:
    label = name.split("/", 1)[-1].removeprefix("loss_").replace("_", " ")
    label = {"train/loss": "training", "val/loss": "validation"}.get(name, label)
    return f"{run.name}: {label}" if len(runs) > 1 else label


def _of_run(run: RunFiles, runs: Sequence[RunFiles]) -> Trace:
    return {"name": run.name, "marker": {"color": COLORS[runs.index(run)]}}


def running_median(values: Sequence[float], span: int) -> np.ndarray:
    """Median of the finite values among the `span` (odd) around each; it neither lags nor follows outliers.

    >>> running_median([1.0, 9.0, 3.0, 4.0, 5.0], span=3).tolist()
    [5.0, 3.0, 4.0, 4.0, 4.5]
    """
    numbers = np.asarray(values, dtype=float)
    padded = np.pad(
        np.where(np.isfinite(numbers), numbers, np.nan), span // 2, constant_values=np.nan
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the median of no values is nan
        return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, span), axis=1)


def _usual(values: Sequence[float]) -> dict[str, Any]:
    """An axis that is cut above almost all values, so that a few outliers do not flatten the rest."""
    finite = np.array(values)[np.isfinite(values)]
    if not len(finite) or finite.min() < 0 or finite.max() <= 0:
        return {}
    usual = float(np.percentile(finite, 99))
    return {"range": [0, 1.08 * (float(finite.max()) if finite.max() < 2 * usual else usual)]}


def _rounded(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Five digits, more than a chart can show; null for NaN and infinity, which JSON lacks."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def _thinned(values: Sequence[Any]) -> list[Any]:
    """At most MOST_POINTS or so, evenly spread, the last one included."""
    return [*values[: -1 : len(values) // MOST_POINTS + 1], *values[-1:]]
