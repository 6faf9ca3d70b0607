"""The jobs of a sweep, which Hydra runs: failed ones, the table and the report.

Each job's result.json states how it ended, wherever its launcher ran it; rank 0 writes sweep.csv
from these after each job.
"""

import contextlib
import gc
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from retina_dist.base.errors import (
    ConfigError,
    DataError,
    Preempted,
    UserError,
    describe_error,
    is_collective,
)
from retina_dist.base.files import write_csv, write_json, write_text
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.text import aligned, escape, pluralize
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.compose import command_of, translate_hydra_errors, typed
from retina_dist.config.entry_point import reported_errors
from retina_dist.config.run_config import RunConfig
from retina_dist.reporting.intervals import Resampled
from retina_dist.reporting.page import COLORS, REPORT, Chart, page_if_possible, write_page
from retina_dist.reporting.run_files import Result, are_paired, read_typed
from retina_dist.run.records import LOSS, RESULT, read_result
from retina_dist.run.resume import CHECKPOINTS
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.tracking.console import print_redacted
from retina_dist.tracking.settings import MLFLOW_PARENT

TABLE = "sweep.csv"
MAX_TRIED = 50  # values of a setting that are checked before the first job


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


def run_sweep_job(
    get_settings: Callable[[], RunConfig], train: Callable[[RunConfig], object], folder: Path
) -> float:
    """Train one job of a sweep into `folder` and return its best monitored metric, for a sweeper
    that optimizes.

    A job that fails is reported, recorded, and gives NaN: the next one begins. Of several
    processes, one that fails alone ends the sweep, because the others may be waiting for it. With
    resume=auto a job that was trained to its end has nothing to do.
    """
    launch = detect_launch()
    started = time.perf_counter()
    failure: BaseException | None = None
    records = launch.rank == 0
    sweep = Path(HydraConfig.get().sweep.dir)
    settings = sweep / "multirun.yaml"
    if records and settings.is_file():  # Hydra has written it as it was given
        content = redacted_tree(load_yaml(settings))
        write_text(settings, OmegaConf.to_yaml(OmegaConf.create(content)))
    with reported_errors():
        try:
            config = get_settings()
            records = records and not config.dry_run
            train(config)
        except BaseException as error:
            failure = error
            if _ends_sweep(error, launch.world_size):
                raise
            reporter: int | None = 0
            if isinstance(error, UserError):
                reporter = error.reporter
            else:
                print_redacted(traceback.format_exc(), sys.stderr)
            if launch.rank == reporter:
                print_redacted(f"the job failed: {describe_error(error)}", sys.stderr)
        finally:
            if records:
                _record(folder, failure, time.perf_counter() - started)
                write_csv(sweep / TABLE, _cells(rows_of(sweep)), escape_formulas=True)
            gc.collect()  # the next job needs this one's memory
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()

    if failure is not None:
        return math.nan
    best = read_result(folder).best
    return math.nan if best is None else best


def _ends_sweep(error: BaseException, world_size: int) -> bool:
    """Whether no further job may begin: processes would wait for each other, or someone asked to
    stop.
    """
    is_alone = world_size > 1 and not is_collective(error)
    return is_alone or isinstance(error, Preempted) or not isinstance(error, Exception)


def _record(folder: Path, failure: BaseException | None, seconds: float) -> None:
    """Add to the job's result.json, which may be of an older sweep, what this one knows of it."""
    content: dict[str, object] = {"status": "ok", "error": None, "seconds": seconds}
    with contextlib.suppress(DataError):  # it was cut short by a full disk
        content |= read_typed(folder / RESULT, dict[str, object])
    content["overrides"] = redacted_tree(list(HydraConfig.get().overrides.task))
    if failure is not None:
        content["status"] = "failed"
        if isinstance(failure, Preempted):
            content["status"] = "preempted"
        content["error"] = describe_error(failure)
    write_json(folder / RESULT, content)


class SweepTable(Callback):
    """Before a sweep, refuse a folder that holds one; after it, print the table and write the
    report.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        """Prepare the folder of the sweep.

        Exit with 2 for a key or a type that is wrong, and where the folder holds trained jobs that
        nothing asks to continue. Results of jobs that all failed are deleted, so that they do not
        join the new table.
        """
        with reported_errors(collective=True):
            _check_settings(config)
        if detect_launch().rank:
            return

        folder = Path(str(config.hydra.sweep.dir))
        with reported_errors():
            if config.resume != "auto" and not config.dry_run:
                if any(folder.rglob(CHECKPOINTS)):
                    raise ConfigError(
                        f"{folder} holds a sweep; "
                        "add resume=auto to this command to continue it, "
                        "or give another output_dir."
                    )
                earlier = _results_in(folder)
                for path in earlier:
                    path.unlink()
                if earlier:
                    jobs = pluralize(len(earlier), "failed job")
                    print_redacted(
                        f"{folder} holds {jobs} of an earlier sweep, which this one replaces",
                        sys.stderr,
                    )
            if "MLFLOW_RUN_ID" in os.environ:  # else all jobs would log to this run
                os.environ[MLFLOW_PARENT] = os.environ.pop("MLFLOW_RUN_ID")

    def on_multirun_end(self, config: DictConfig, **kwargs: object) -> None:
        """Exit with 2 where no job was trained to its end."""
        folder = Path(str(config.hydra.sweep.dir))
        rows = rows_of(folder)
        if detect_launch().rank or config.dry_run or not rows:
            return

        cells = [list(map(escape, row)) for row in _cells(rows, "{:.4g}".format)]
        print("", *aligned(cells), "", sep="\n")
        print(f"{folder / TABLE}\n{page_if_possible(lambda: write_sweep_report(folder), folder)}")
        best = best_of(rows)
        if best:
            place = f"{best.row.settings}, {best.row.folder}"
            print(f"{best.name} {best.value:.3f}: {place}", flush=True)
        if not any(row.ended_well for row in rows):
            raise SystemExit(2)


def _check_settings(config: DictConfig) -> None:
    """Raise what a job would for its keys and types.

    Up to MAX_TRIED values of a setting are tried, beside the first of each other one.
    """
    content: Any = OmegaConf.to_container(config)  # with ${hydra:...}, which only a job knows
    values = _values_by_key(content["hydra"], content["trainer"].get("checkpoint_dir"))
    first = {key: each[0] for key, each in values.items()}
    jobs = [first]
    for key, each in values.items():
        jobs += [first | {key: value} for value in each[1:]]

    for job in jobs:
        overrides = list(map("=".join, job.items()))
        with translate_hydra_errors(command_of("train")):
            composed = compose(config.hydra.job.config_name, overrides)
        if "${hydra:" not in OmegaConf.to_yaml(composed):
            typed(composed, "train", overrides)


def _values_by_key(hydra: dict[str, Any], checkpoint_dir: str | None) -> dict[str, list[str]]:
    """The values that the overrides of a sweep give to each key. Raises ConfigError for one folder
    of all jobs.
    """
    params = hydra["sweeper"].get("params") or {}
    given = [f"{key}={value}" for key, value in params.items()]
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    values: dict[str, list[str]] = {}
    for override in parser.parse_overrides([*given, *hydra["overrides"]["task"]]):
        swept = override.is_sweep_override()
        if swept and checkpoint_dir and "${" not in checkpoint_dir:
            raise ConfigError(
                f"trainer.checkpoint_dir={checkpoint_dir} is that of all jobs; "
                "append '/${hydra:job.num}'."
            )
        key = override.get_key_element()
        if override.is_interval_sweep():
            continue
        if swept:
            values[key] = list(islice(override.sweep_string_iterator(), MAX_TRIED))
        else:
            values[key] = [override.get_value_element_as_str()]
    return values


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


def _results_in(folder: Path) -> list[Path]:
    """The result.json of each job, in the order of the jobs."""
    return sorted(folder.rglob(RESULT), key=lambda path: (len(path.parent.name), path.parent.name))


def rows_of(folder: Path) -> list[SweepRow]:
    """The jobs of a sweep. One whose result.json is damaged has the status "unreadable"."""
    rows = []
    for path in _results_in(folder):
        try:
            result = read_result(path.parent)
        except DataError as error:
            result = Result(status="unreadable", error=str(error))
        rows.append(SweepRow(path.parent, result))

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
