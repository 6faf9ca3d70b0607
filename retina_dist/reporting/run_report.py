"""The report of a run folder, or of two side by side."""

import math
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.text import aligned, pluralize
from retina_dist.reporting.analysis import MAX_IN_MATRIX, confusions_of
from retina_dist.reporting.charts import SECTIONS
from retina_dist.reporting.intervals import Interval, Resampled
from retina_dist.reporting.page import REPORT, format_number, page_if_possible, write_page
from retina_dist.reporting.run_files import RunFiles, are_paired, short

MAX_MORE = 1e7  # images that anyone would label


@dataclass
class Difference:
    """A metric of two runs, each field as it is shown."""

    metric: str
    first: str
    second: str
    difference: str = "-"
    interval: str = ""
    verdict: str = ""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run folder and return its path.

    Args:
        folder: the folder of a run, an evaluation, or a job of a sweep.
        out: the file to write; by default report.html in `folder`.

    Raises DataError where a folder has nothing to report or a file of another shape, ConfigError
    without `retina-dist[analysis]`.
    """
    return _write_page([RunFiles(folder)], out or folder / REPORT)


def write_comparison(first: RunFiles, second: RunFiles, out: Path | None = None) -> Path:
    """Write the report of two results, whose names differ, and return its path: `out`, or
    compared_SECOND.html in the first one's folder.

    Raises as `write_report`.
    """
    name = re.sub(r"[^\w.-]+", "-", second.name)
    beside = first.source if first.source.is_dir() else first.source.parent
    return _write_page([first, second], out or beside / f"compared_{name}.html")


def print_comparison(first: RunFiles, second: RunFiles, out: Path | None = None) -> None:
    """Print the metrics of two results, which is better, and where their report is.

    Raises ConfigError for one result twice, DataError for two tasks.
    """
    if first.source.resolve() == second.source.resolve():
        raise ConfigError(
            f"other={second.source} is the run itself; give another to compare it with."
        )
    tell_apart(first, second)
    answer = f"{table_of(first, second)}\n\n{conclude(first, second)}"
    why = why_not_comparable(first, second)
    if why:
        answer = f"{why}\n\n{table_of(first, second)}"
    print(describe_equality(first, second) or answer, end="\n\n")
    print(page_if_possible(partial(write_comparison, first, second, out)))


def tell_apart(first: RunFiles, second: RunFiles) -> None:
    """Give two results of one name their paths for names. Raises DataError for two tasks."""
    tasks = {run.settings.get("task.name") for run in (first, second) if run.settings}
    if len(tasks) > 1:
        raise DataError(
            f"{first.source} and {second.source} are of two tasks; compare runs of one."
        )
    if first.name == second.name:
        first.name = str(first.source)
        second.name = str(second.source)


def _write_page(runs: Sequence[RunFiles], out: Path) -> Path:
    return write_page(
        out,
        " and ".join(run.name for run in runs),
        {title: list(draw(runs)) for title, draw in SECTIONS.items()},
        runs=runs,
        warnings=warnings_of(runs),
        differences=differences,
        describe_equality=describe_equality,
        conclude=conclude,
        why_not_comparable=why_not_comparable,
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
        if run.analysis.limit:
            sentences.append(f"{run.name}: {run.analysis.limit}")
    return sentences


def paired_differences(first: RunFiles, second: RunFiles) -> dict[str, Interval]:
    """Each metric of the second minus that of the first, of pairs of resamples.

    Without those of results that are not of the same images.
    """
    before = Resampled.load(first.folder)
    after = Resampled.load(second.folder)
    apart: dict[str, Interval] = {}
    if before and after:
        for key in filter(partial(are_paired, before, after), before.values):
            apart[short(key)] = after.difference(before, key)
    return apart


def why_not_comparable(first: RunFiles, second: RunFiles) -> str:
    """A sentence, where two results are known to be of other images or classes; else ""."""
    data: set[object] = set()
    for each in (first.analysis, second.analysis):
        if each.metrics:
            data.add((each.images, frozenset(each.classes)))
    before = Resampled.load(first.folder)
    after = Resampled.load(second.folder)
    if before and after:
        data = {before.images, after.images}
    if len(data) < 2:
        return ""
    return (
        f"cannot compare: {first.name} and {second.name} are not of the same images and classes; "
        "evaluate both on one data set."
    )


def differences(first: RunFiles, second: RunFiles) -> list[Difference]:
    """Each metric of two runs, with the interval of `paired_differences` where there is one."""
    apart = paired_differences(first, second)
    before = _values(first)
    after = _values(second)
    rows = []
    for name in dict.fromkeys([*first.metrics, *apart]):
        old = before.get(name)
        new = after.get(name)
        row = Difference(name, format_number(old), format_number(new))
        if old is not None and new is not None:
            row.difference = f"{new - old:+.3f}"
        interval = apart.get(name)
        if interval and str(interval):
            row.difference = f"{interval.value:+.3f}"
            row.interval = str(interval)
            row.verdict = "better" if interval.low > 0 else "worse"
            if interval.holds_zero:
                row.verdict = "not distinguishable"
        rows.append(row)
    return rows


def _values(run: RunFiles) -> dict[str, float | None]:
    """The metrics of a run by name, and the first one of each class."""
    values = {name: metric.value for name, metric in run.metrics.items()}
    main = next(iter(values), "")
    for name, metric in run.analysis.classes.items():
        values[f"{main}/{name}"] = metric.value
    return values


def table_of(first: RunFiles, second: RunFiles) -> str:
    """The table of `differences` as text, a line each; without them where `why_not_comparable`."""
    titles = ("", first.name, second.name, "difference", "95 % interval", "verdict")
    rows = [titles, *map(astuple, differences(first, second))]
    shown = 3 if why_not_comparable(first, second) else None
    return "\n".join(aligned([row[:shown] for row in rows]))


def describe_equality(first: RunFiles, second: RunFiles) -> str:
    """A sentence, where two results do not differ at all; else ""."""
    both = f"{first.name} and {second.name}"
    if first.result.digest and first.result.digest == second.result.digest:
        return f"{both} have the same bits, in each row of digest.csv."
    apart = paired_differences(first, second).values()
    if apart and not any(abs(each.value) > 0 or each.high > each.low for each in apart):
        images = pluralize(second.analysis.images or "all", "image")
        return f"{both}: no difference in {images}, in any metric and any part of them."
    return ""


def conclude(first: RunFiles, second: RunFiles) -> str:
    """Which of two results is better by its first metric, or how many more images would tell."""
    apart = paired_differences(first, second)
    if not apart:
        for run in (first, second):
            if Resampled.load(run.folder) is None:
                return (
                    f"cannot tell: {run.name} has no intervals; run python -m retina_dist.evaluate "
                    f"checkpoint={run.folder} output_dir=FOLDER, and compare FOLDER."
                )
        return "cannot tell: they share no metric of the same images; evaluate both on one set."
    metric, found = next(iter(apart.items()))
    if math.isnan(found.low):
        return f"cannot tell: {metric}: {found.reason or 'undefined'}."
    fact = f"{metric} {found.value:+.4f} from {first.name} to {second.name}, 95 % interval {found}"
    if not found.holds_zero:
        better = second if found.low > 0 else first
        return f"{better.name} is better on these images: {fact}."
    images = second.analysis.images
    if not images:
        return f"cannot tell: {fact}."
    more = found.more_images(images)
    if more > MAX_MORE:
        return f"cannot tell: {fact}; no set of images that is practical would."
    rounded = max(1, round(float(f"{more:.1e}")))
    return f"cannot tell: {fact}; about {pluralize(f'{rounded:,}', 'more image')} would."
