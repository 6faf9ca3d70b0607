"""The jobs of a sweep as a table and a page, from the result.json of each."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path

from retina_dist.base.errors import DataError
from retina_dist.base.files import write_csv
from retina_dist.base.text import aligned, escape
from retina_dist.reporting.intervals import Resampled
from retina_dist.reporting.page import COLORS, REPORT, Chart, page_if_possible, write_page
from retina_dist.reporting.run_files import RESULT, Result, are_paired, read_result
from retina_dist.tracking.progress import LOSS

TABLE = "sweep.csv"


@dataclass
class SweepRow:
    """A job of a sweep: its folder, how it ended, and the settings in which the jobs differ."""

    folder: Path
    result: Result

    def __post_init__(self) -> None:
        self.swept: dict[str, str] = {}  # at first all that the job was given
        for override in self.result.overrides:
            key, equals, value = override.lstrip("+").partition("=")
            if equals:
                self.swept[key] = value

    @property
    def settings(self) -> str:
        """`swept` as on a command line."""
        return " ".join(map("=".join, self.swept.items()))

    @property
    def ended_well(self) -> bool:
        """Whether the job was trained to its end."""
        return self.result.status == "ok"


@dataclass(frozen=True)
class BestRow:
    """The best job, and why: the name and the value of what the jobs were compared by."""

    row: SweepRow
    name: str
    value: float


def write_table(folder: Path) -> None:
    """Write sweep.csv into the folder of a sweep."""
    write_csv(folder / TABLE, _cells(rows_of(folder)), escape_formulas=True)


def print_table(rows: Sequence[SweepRow], folder: Path) -> None:
    """Print the table, write the report, and name both files and the best job."""
    cells = [list(map(escape, row)) for row in _cells(rows, "{:.4g}".format)]
    print("", *aligned(cells), "", sep="\n")
    print(f"{folder / TABLE}\n{page_if_possible(lambda: write_sweep_report(folder), folder)}")
    best = best_of(rows)
    if best:
        place = f"{best.row.settings}, {best.row.folder}"
        print(f"{best.name} {best.value:.3f}: {place}", flush=True)


def write_sweep_report(folder: Path, out: Path | None = None) -> Path:
    """Write the table of the jobs, and a bar for each job and measure, to `out`, by default
    `folder`/report.html.
    """
    rows = rows_of(folder)
    if not rows:
        raise DataError(f"{folder} has no {RESULT} of a job; give the folder of a sweep.")
    best = best_of(rows)
    labels = [f"{row.folder.name}  {row.settings}" for row in rows]
    colors = [COLORS[0]] * len(rows)
    if best:
        colors[rows.index(best.row)] = COLORS[1]
    results = [row.result if row.ended_well else Result() for row in rows]
    measures = {
        _monitor(rows): [result.best for result in results],
        "last training loss": [result.loss for result in results],
        "images/s": [result.images_per_s for result in results],
    }
    charts = []
    for title, values in measures.items():
        bars: dict[str, object] = {"type": "bar", "orientation": "h", "y": labels, "x": values}
        bars["marker"] = {"color": colors}
        layout = {"yaxis": {"autorange": "reversed"}}
        charts.append(Chart(title, [bars], layout, 120 + 26 * len(rows)))

    columns, *lines = _cells(rows, "{:.4g}".format)
    return write_page(
        out or folder / REPORT, f"Sweep {folder}", {"Jobs": charts}, columns=columns, rows=lines
    )


def rows_of(folder: Path) -> list[SweepRow]:
    """The jobs of a sweep. One whose result.json is damaged has the status "unreadable"."""
    rows = []
    jobs = [path.parent for path in folder.rglob(RESULT)]
    for job in sorted(jobs, key=lambda job: (len(job.name), job.name)):
        try:
            result = read_result(job)
        except DataError as error:
            result = Result(status="unreadable", error=str(error))
        rows.append(SweepRow(job, result))

    given = [row.swept for row in rows if row.swept]
    shown = []  # the keys in which the jobs differ
    for key in dict.fromkeys(chain.from_iterable(given)):
        if len(rows) == 1 or len({each.get(key, "") for each in given}) > 1:
            shown.append(key)
    for row in rows:
        row.swept = {key: row.swept.get(key, "") for key in shown}
    return rows


def best_of(rows: Sequence[SweepRow]) -> BestRow | None:
    """The best job that did not fail, by the monitored metric or, where nothing was validated, by
    its loss.
    """
    done = [row for row in rows if row.ended_well]
    validated = [(row.result.best, row) for row in done if row.result.best is not None]
    trained = [(row.result.loss, row) for row in done if row.result.loss is not None]
    if validated:
        best = min if validated[0][1].result.monitor_mode != "max" else max
        value, row = best(validated, key=itemgetter(0))
        return BestRow(row, f"best {_monitor(done)}", value)
    if trained:
        value, row = min(trained, key=itemgetter(0))
        return BestRow(row, f"lowest {LOSS}", value)
    return None


def compare_with_best(rows: Sequence[SweepRow]) -> list[tuple[str, str]]:
    """Each job's 95 % interval of the monitored metric, and whether the interval of its difference
    to the best job holds 0.

    "" where a job has no resamples of its best validation: it failed, was resumed after it, or
    monitors a loss.
    """
    name = _monitor(rows)
    best = best_of(rows)
    known = [_resamples_of(row, name) for row in rows]
    top = known[rows.index(best.row)] if best else None
    cells = []
    for each in known:
        verdict = ""
        if each and top and are_paired(each, top, name):
            verdict = "worse"
            if each is top:
                verdict = "best"
            elif each.difference(top, name).holds_zero:
                verdict = "not distinguishable from the best"
        cells.append((str(each.interval(name)) if each else "", verdict))
    return cells


def _resamples_of(row: SweepRow, metric: str) -> Resampled | None:
    """The resamples of a job's best validation, if it has them."""
    if not row.ended_well:
        return None
    try:
        resampled = Resampled.load(row.folder)
    except DataError:  # the other jobs are compared all the same
        return None
    if resampled and resampled.values.get(metric, math.nan) == row.result.best:
        return resampled
    return None


def _cells(rows: Sequence[SweepRow], form: Callable[[float], str] = repr) -> list[list[str]]:
    """The table of the jobs, by default with every digit; its first line has the names of the
    columns.
    """
    lines = [
        ["job", *rows[0].swept, "status", _monitor(rows), "95 % interval", "comparison"]
        + [LOSS, "images_per_s", "seconds", "folder", "error"]
    ]
    for row, bars in zip(rows, compare_with_best(rows), strict=True):
        result = row.result
        values = (result.best, result.loss, result.images_per_s, result.seconds)
        best, *others = ["" if value is None else form(value) for value in values]
        line = [row.folder.name, *row.swept.values(), result.status, best, *bars, *others]
        lines.append([*line, str(row.folder), result.error or ""])
    return lines


def _monitor(rows: Sequence[SweepRow]) -> str:
    return next((row.result.monitor for row in rows if row.result.monitor), "best")
