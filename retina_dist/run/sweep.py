"""The jobs of a sweep, which Hydra runs, and what becomes of a failed one.

Each job's result.json states how it ended, wherever its launcher ran it; rank 0 writes sweep.csv
from these after each job. `sweep_table` is imported by sweeps only, this file by each training.
"""

import contextlib
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

from retina_dist.base.console import print_redacted
from retina_dist.base.errors import (
    ConfigError,
    DataError,
    Preempted,
    UserError,
    describe_error,
    is_collective,
)
from retina_dist.base.files import write_json, write_text
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.text import pluralize
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.compose import command_of, translate_hydra_errors, typed
from retina_dist.config.entry_point import reported_errors
from retina_dist.config.run_config import RunConfig
from retina_dist.reporting.run_files import RESULT, read_result, read_typed
from retina_dist.run.resume import CHECKPOINTS
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.tracking.settings import MLFLOW_PARENT

MAX_TRIED = 50  # values of a setting that are checked before the first job


def run_sweep_job(
    get_settings: Callable[[], RunConfig], train: Callable[[RunConfig], object], folder: Path
) -> float:
    """Train one job of a sweep into `folder` and return its best monitored metric, for a sweeper
    that optimizes.

    A job that fails is reported, recorded, and gives NaN: the next one begins. Of several
    processes, one that fails alone ends the sweep, because the others may be waiting for it. With
    resume=auto a job that was trained to its end has nothing to do.
    """
    from retina_dist.reporting.sweep_table import write_table

    launch = detect_launch()
    started = time.perf_counter()
    failure: BaseException | None = None
    records = launch.rank == 0
    sweep = Path(HydraConfig.get().sweep.dir)
    if records:
        _begin_job(sweep)
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
                write_table(sweep)
            gc.collect()  # the next job needs this one's memory
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()

    if failure is not None:
        return math.nan
    best = read_result(folder).best
    return math.nan if best is None else best


def _begin_job(sweep: Path) -> None:
    """Print the job's settings, and mask secrets in those of the sweep."""
    hydra = HydraConfig.get()
    print_redacted(f"\njob {hydra.job.num}: {' '.join(hydra.overrides.task)}")
    settings = sweep / "multirun.yaml"
    if settings.is_file():  # Hydra has written it as it was given
        content = redacted_tree(load_yaml(settings))
        write_text(settings, OmegaConf.to_yaml(OmegaConf.create(content)))


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
                earlier = list(folder.rglob(RESULT))
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
        from retina_dist.reporting.sweep_table import print_table, rows_of

        folder = Path(str(config.hydra.sweep.dir))
        rows = rows_of(folder)
        if detect_launch().rank or config.dry_run or not rows:
            return

        print_table(rows, folder)
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
            if not values[key]:
                raise ConfigError(
                    f"{override.input_line} has no value; write them, as {key}=1,2, or "
                    "range(START,STOP,STEP), from START up to below STOP."
                )
        else:
            values[key] = [override.get_value_element_as_str()]
    return values
