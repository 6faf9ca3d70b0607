"""The report of a run folder, or of two side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from retina_dist.base.errors import DataError
from retina_dist.reporting.analysis import MAX_IN_MATRIX, confusions_of
from retina_dist.reporting.charts import SECTIONS
from retina_dist.reporting.intervals import Interval, Resampled
from retina_dist.reporting.page import REPORT, format_number, write_page
from retina_dist.reporting.run_files import Metric, RunFiles, are_paired, short


@dataclass
class Difference:
    """A metric of two runs, each field as it is shown."""

    metric: str
    first: str
    second: str
    difference: str = "-"
    interval: str = ""
    verdict: str = ""


def write_report(folder: Path, other: Path | None = None, out: Path | None = None) -> Path:
    """Write the report of a run folder, beside that of another one.

    Args:
        folder: the folder of a run, an evaluation, or a job of a sweep.
        other: another one, to be compared with.
        out: the file to write; by default report.html in `folder`, or compared_OTHER.html.

    Raises DataError where a folder has nothing to report or a file of another shape, ConfigError
    without `retina-dist[analysis]`.
    """
    runs = [RunFiles(folder)]
    rows = []
    if other:
        runs.append(RunFiles(other))
        tasks = {run.settings.get("task.name") for run in runs if run.settings}
        if len(tasks) > 1:
            raise DataError(f"{folder} and {other} are of two tasks; compare runs of one.")
        name = re.sub(r"[^\w.-]+", "-", runs[1].name)
        out = out or folder / f"compared_{name}.html"
        if runs[0].name == runs[1].name:
            runs[0].name = str(folder)
            runs[1].name = str(other)
        rows = [astuple(each) for each in differences(*runs)]
    return write_page(
        out or folder / REPORT,
        " and ".join(run.name for run in runs),
        {title: list(draw(runs)) for title, draw in SECTIONS.items()},
        runs=runs,
        warnings=warnings_of(runs),
        differences=rows,
        max_in_matrix=MAX_IN_MATRIX,
        confusions_of=confusions_of,
    )


def warnings_of(runs: Sequence[RunFiles]) -> list[str]:
    """Sentences on trainings that have not come to their ends, and on what a metric leaves out."""
    sentences = []
    for run in runs:
        why = run.result.unfinished
        if why and (run.starts or run.result.status):
            sentences.append(f"{run.name} {why}; its numbers are not those of a whole training.")
        if run.analysis and run.analysis.limit:
            sentences.append(f"{run.name}: {run.analysis.limit}")
    return sentences


def differences(first: RunFiles, second: RunFiles) -> list[Difference]:
    """Each metric of two runs.

    The interval is of pairs of resamples, where both were validated on the same images.
    """
    before = Resampled.load(first.folder)
    after = Resampled.load(second.folder)
    apart: dict[str, Interval] = {}
    if before and after:
        for key in filter(partial(are_paired, before, after), before.values):
            apart[short(key)] = after.difference(before, key)

    rows = []
    for name in dict.fromkeys([*first.metrics, *apart]):
        old = first.metrics.get(name, Metric()).value
        new = second.metrics.get(name, Metric()).value
        row = Difference(name, format_number(old), format_number(new))
        if old is not None and new is not None:
            row.difference = f"{new - old:+.3f}"
        interval = apart.get(name)
        if interval and str(interval):
            row.difference = f"{interval.value:+.3f}"
            row.interval = str(interval)
            row.verdict = "better" if interval.value > 0 else "worse"
            if interval.holds_zero:
                row.verdict = "not distinguishable"
        rows.append(row)
    return rows
