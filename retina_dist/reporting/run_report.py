"""The report of a run folder, or of two side by side, from the files that a run or an evaluation wrote there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from retina_dist.reporting.analysis import MAX_IN_MATRIX, confusions_of
from retina_dist.reporting.charts import SECTIONS
from retina_dist.reporting.page import REPORT, format_number, write_page
from retina_dist.reporting.run_files import RunFiles, are_paired, load_resamples


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

    Raises DataError where a folder has nothing to report or a file of another shape, ConfigError without
    `retina-dist[analysis]`.
    """
    runs = [RunFiles(folder)]
    if other:
        runs.append(RunFiles(other))
        name = re.sub(r"[^\w.-]+", "-", runs[1].name)
        out = out or folder / f"compared_{name}.html"
        if runs[0].name == runs[1].name:
            runs[0].name = str(folder)
            runs[1].name = str(other)

    return write_page(
        out or folder / REPORT,
        " and ".join(run.name for run in runs),
        {title: list(draw(runs)) for title, draw in SECTIONS.items()},
        runs=runs,
        warnings=warnings_of(runs),
        differences=[astuple(each) for each in differences(*runs)] if other else [],
        max_in_matrix=MAX_IN_MATRIX,
        confusions_of=confusions_of,
    )


def warnings_of(runs: Sequence[RunFiles]) -> list[str]:
    """A sentence for each run whose training has not come to its end, so that its numbers are not final."""
    sentences = []
    for run in runs:
        why = run.result.unfinished
        if why and (run.starts or run.result.status):
            sentences.append(f"{run.name} {why}; its numbers are not those of a whole training.")
    return sentences


def differences(first: RunFiles, second: RunFiles) -> list[Difference]:
    """Each metric of two runs; the interval is of pairs of resamples, where both were validated on the same images."""
    before = load_resamples(first.folder)
    after = load_resamples(second.folder)
    keys: dict[str, str] = {}  # a metric's name in the resamples of both
    for name in before.values if before else ():
        if are_paired(before, after, name):
            keys[name.split("/", 1)[-1]] = name

    rows = []
    for name in dict.fromkeys([*first.metrics, *keys]):
        values = [
            run.metrics[name].value if name in run.metrics else None for run in (first, second)
        ]
        row = Difference(name, "", "")
        if before and after and name in keys:
            apart = after.difference(before, keys[name])
            if str(apart):
                values = [before.values[keys[name]], after.values[keys[name]]]
                row.interval = str(apart)
                row.verdict = "better" if apart.value > 0 else "worse"
                if apart.holds_zero:
                    row.verdict = "not distinguishable"

        row.first, row.second = map(format_number, values)
        if values[0] is not None and values[1] is not None:
            row.difference = f"{values[1] - values[0]:+.3f}"
        rows.append(row)
    return rows
