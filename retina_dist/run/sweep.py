"""The jobs of a sweep, which Hydra runs: failed ones, the table and the report.

Each job's result.json states how it ended, wherever its launcher ran it; rank 0 writes sweep.csv from these after each job.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from retina_dist.base.errors import ConfigError, Preempted, UserError, describe_error, is_collective
from retina_dist.base.files import write_csv, write_json, write_text
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.compose import command_of, translate_hydra_errors, typed
from retina_dist.config.entry_point import reported_errors
from retina_dist.config.run_config import RunConfig
from retina_dist.reporting.page import COLORS, REPORT, Chart, page_if_possible, write_page
from retina_dist.run.records import LOSS, RESULT, read_result
from retina_dist.run.resume import CHECKPOINTS
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.tracking.console import print_redacted
from retina_dist.tracking.settings import MLFLOW_PARENT

TABLE = "sweep.csv"


def run_job(
    get_settings: Callable[[], RunConfig], train: Callable[[RunConfig], Any], folder: Path
) -> float:
    """Train one job of a sweep into `folder` and return its best monitored metric, for a sweeper that optimizes.

    A job that fails is reported, recorded, and gives NaN: the next one begins. Of several processes, one that fails alone ends the
    sweep, because the others may be waiting for it. With resume=auto a job that was trained to its end has nothing to do.
    """
    launch = detect_launch()
    started, failure, skipped = time.perf_counter(), None, False
    sweep = Path(HydraConfig.get().sweep.dir)
    if launch.rank == 0:
        _redact_settings(sweep / "multirun.yaml")
    with reported_errors():
        try:
            config = get_settings()
            skipped = config.dry_run
            train(config)
        except BaseException as error:
            failure = error
            alone = launch.world_size > 1 and not is_collective(error)
            if alone or isinstance(error, Preempted) or not isinstance(error, Exception):
                raise
            if not isinstance(error, UserError):
                print_redacted(traceback.format_exc(), sys.stderr)
            if launch.rank == getattr(error, "reporter", 0):
                print_redacted(f"the job failed: {describe_error(error)}", sys.stderr)
        finally:
            if launch.rank == 0 and not skipped:
                _record(folder, failure, time.perf_counter() - started)
                write_csv(sweep / TABLE, _cells(rows_of(sweep)))
            gc.collect()  # the next job needs this one's memory
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
    best = read_result(folder).get("best") if failure is None else None
    return math.nan if best is None else float(best)


def _redact_settings(file: Path) -> None:
    """Take the secrets out of the settings of a sweep, which Hydra has written as they were given."""
    if file.is_file():
        content = redacted_tree(load_yaml(file))
        write_text(file, OmegaConf.to_yaml(OmegaConf.create(content)))


def _record(folder: Path, failure: BaseException | None, seconds: float) -> None:
    """Add to the job's result.json, which may be of an older sweep, what this one knows of it."""
    overrides = redacted_tree(list(HydraConfig.get().overrides.task))
    content = (
        {"status": "ok", "error": None, "seconds": seconds}
        | read_result(folder)
        | {"overrides": overrides}
    )
    if failure is not None:
        status = "preempted" if isinstance(failure, Preempted) else "failed"
        content |= {"status": status, "error": describe_error(failure)}
    write_json(folder / RESULT, content)


class SweepTable(Callback):
    """Before a sweep, refuse a folder that holds one; after it, print the table and write the report."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Exit with 2 for a key or a type that is wrong, and where the folder holds trained jobs that nothing asks to continue."""
        with reported_errors(collective=True):
            _check_settings(config)
        if detect_launch().rank:
            return
        folder = Path(str(config.hydra.sweep.dir))
        with reported_errors():
            if config.resume != "auto" and not config.dry_run and any(folder.rglob(CHECKPOINTS)):
                raise ConfigError(
                    f"{folder} holds a sweep; give resume=auto to continue it, or another output_dir."
                )
            if "MLFLOW_RUN_ID" in os.environ:  # else all jobs would log to this run
                os.environ[MLFLOW_PARENT] = os.environ.pop("MLFLOW_RUN_ID")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Exit with 2 where no job was trained to its end."""
        folder = Path(str(config.hydra.sweep.dir))
        rows = rows_of(folder)
        if detect_launch().rank or config.dry_run or not rows:
            return
        table = _cells(rows, "{:.4g}".format)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in table
        )
        print("\n".join(["", *(line.rstrip() for line in lines), ""]))
        print(f"{folder / TABLE}\n{page_if_possible(lambda: write_sweep_report(folder), folder)}")
        if best := best_of(rows):
            row, name, value = best
            print(f"{name} {value:.3f}: {row['settings']}, {row['folder']}", flush=True)
        if not any(row["status"] == "ok" for row in rows):
            raise SystemExit(2)


def _check_settings(config: DictConfig) -> None:
    """Raise what a job would for its keys and types; up to 50 values of a setting are tried beside the first of the others."""
    content: Any = OmegaConf.to_container(config)  # with ${hydra:...}, which only a job knows
    hydra, place = content["hydra"], content["trainer"].get("checkpoint_dir")
    given = [f"{key}={value}" for key, value in (hydra["sweeper"].get("params") or {}).items()]
    parser = OverridesParser.create(GlobalHydra.instance().config_loader())
    values: dict[str, list[str]] = {}
    for override in parser.parse_overrides([*given, *hydra["overrides"]["task"]]):
        swept = override.is_sweep_override()
        if swept and place and "${" not in place:
            raise ConfigError(
                f"trainer.checkpoint_dir={place} is that of all jobs; append '/${{hydra:job.num}}'."
            )
        if not override.is_interval_sweep():
            each = (
                override.sweep_string_iterator() if swept else [override.get_value_element_as_str()]
            )
            values[override.get_key_element()] = list(islice(each, 50))
    first = {key: each[0] for key, each in values.items()}
    for job in [
        first,
        *(first | {key: value} for key, each in values.items() for value in each[1:]),
    ]:
        overrides = [f"{key}={value}" for key, value in job.items()]
        with translate_hydra_errors(command_of("train")):
            composed = compose(config.hydra.job.config_name, overrides)
        if "${hydra:" not in OmegaConf.to_yaml(composed):
            typed(composed, "train", overrides)


def write_sweep_report(folder: Path, out: Path | None = None) -> Path:
    """Write the table of the jobs, and a bar for each job and measure, to `out`, by default `folder`/report.html."""
    rows = rows_of(folder)
    best = best_of(rows)
    columns, *lines = _cells(rows, "{:.4g}".format)
    labels = [f"{Path(row['folder']).name}  {row['settings']}" for row in rows]
    colors = [COLORS[1 if best and row is best[0] else 0] for row in rows]
    charts = []
    for title, key in (
        (_monitor(rows), "best"),
        ("last training loss", LOSS),
        ("images/s", "images_per_s"),
    ):
        values = [row.get(key) if row["status"] == "ok" else None for row in rows]
        bars = {
            "type": "bar",
            "orientation": "h",
            "y": labels,
            "x": values,
            "marker": {"color": colors},
        }
        charts.append(
            Chart(title, [bars], {"yaxis": {"autorange": "reversed"}}, 120 + 26 * len(rows))
        )
    return write_page(
        out or folder / REPORT, f"Sweep {folder}", {"Jobs": charts}, columns=columns, rows=lines
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Each job's result.json with its `folder`, and `swept`: the settings in which the jobs differ, as text `settings`."""
    jobs = sorted(folder.rglob(RESULT), key=lambda path: (len(path.parent.name), path.parent.name))
    rows = [read_result(path.parent) | {"folder": str(path.parent)} for path in jobs]
    given = [
        dict(o.lstrip("+").split("=", 1) for o in row.get("overrides", ()) if "=" in o)
        for row in rows
    ]
    keys = dict.fromkeys(key for settings in given for key in settings)
    swept = [
        key for key in keys if len(rows) == 1 or len({settings.get(key) for settings in given}) > 1
    ]
    for row, settings in zip(rows, given, strict=True):
        row["swept"] = {key: settings.get(key, "") for key in swept}
        row["settings"] = " ".join(f"{key}={value}" for key, value in row["swept"].items())
    return rows


def best_of(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str, float] | None:
    """The best job that did not fail, by the monitored metric or, where nothing was validated, by its loss."""
    done = [row for row in rows if row["status"] == "ok"]
    for key, name in (("best", _monitor(done)), (LOSS, LOSS)):
        if ranked := [row for row in done if row.get(key) is not None]:
            highest = key == "best" and ranked[0]["monitor_mode"] == "max"
            row = (max if highest else min)(ranked, key=lambda row: row[key])
            return row, f"{'best' if key == 'best' else 'lowest'} {name}", row[key]
    return None


def compare_with_best(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Each job's 95 % interval of the monitored metric, and whether the interval of its difference to the best job holds 0.

    "" where a job has no resamples of its best validation: it failed, was resumed after it, or monitors a loss.
    """
    from retina_dist.reporting.intervals import Resampled

    name, best = _monitor(rows), best_of(rows)
    known = []
    for row in rows:
        each = Resampled.load(Path(row["folder"])) if row["status"] == "ok" else None
        known.append(each if each and each.values.get(name, math.nan) == row.get("best") else None)
    top = known[rows.index(best[0])] if best else None
    cells = []
    for each in known:
        verdict = ""
        if each and top and each.images == top.images:
            same = each.difference(top, name).holds_zero
            verdict = (
                "best" if each is top else "not distinguishable from the best" if same else "worse"
            )
        cells.append((str(each.interval(name)) if each else "", verdict))
    return cells


def _cells(rows: list[dict[str, Any]], form: Callable[[float], str] = repr) -> list[list[str]]:
    """The table of the jobs, by default with every digit; its first line has the names of the columns."""
    columns = ["job", *rows[0]["swept"], "status", _monitor(rows), "95 % interval", "comparison"]
    columns += [LOSS, "images_per_s", "seconds", "folder", "error"]
    lines = []
    for row, bars in zip(rows, compare_with_best(rows), strict=True):
        values = [row.get(key) for key in ("best", LOSS, "images_per_s", "seconds")]
        best, *numbers = ("" if value is None else form(value) for value in values)
        settings = [Path(row["folder"]).name, *row["swept"].values(), row["status"]]
        lines.append([*settings, best, *bars, *numbers, row["folder"], row["error"] or ""])
    return [columns, *lines]


def _monitor(rows: list[dict[str, Any]]) -> str:
    return str(next((row["monitor"] for row in rows if row.get("monitor")), "best"))
