"""A sweep: a training for each combination of values, one table and one plot of them all.

Jobs run one after another, in this process or, with `launcher`, each in separate processes. In one of several
processes, which all go through the same jobs in the same order, rank 0 names the folders and writes.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import re
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from retina_dist.config.overrides import SweepJob
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.owner import Owner
from retina_dist.engine.checkpoint.resume import CHECKPOINTS, make_next_folder, next_folder
from retina_dist.engine.early_stopping import default_mode
from retina_dist.errors import ConfigError, Preempted, UserError
from retina_dist.files import write_atomically
from retina_dist.redaction import redacted
from retina_dist.reporting.console import configure_logging, print_redacted
from retina_dist.run.build import monitor_of
from retina_dist.run.result import LOSS, RESULT, read_result, sentence
from retina_dist.run.tracking import as_child, tracked_sweep
from retina_dist.strategies.launch_environment import Launch, detect_launch

TABLE, PLOT = "sweep.csv", "sweep.png"
MAX_NAME = 120  # characters of a job's folder
INTERRUPTED_S = 30  # how long a job's processes have to end


# the sweep


@dataclass
class Row:
    """A job that was begun, and what became of it."""

    number: int
    swept: dict[str, str]
    folder: str
    error: str | None = None
    seconds: float = 0.0
    metric: float | None = None
    loss: float | None = None
    images_per_s: float | None = None


def run_sweep(jobs: list[SweepJob], train: Callable[[RunConfig], Any]) -> int:
    """Train every job, tell how each went, and return the exit code: 0 if one of them was trained to its end, else 2.

    A job that fails is marked and the next one begins. Of several processes, one that fails alone raises its error: the
    others may be waiting for it. sweep.csv is written anew after each job, so an interrupted sweep leaves those it did.
    """
    launch = detect_launch()
    with (
        configure_logging(launch.rank),
        Owner() as locks,
        (sweep := Sweep(jobs, launch, locks)).tracked as tracked,
    ):
        try:
            for number, job in enumerate(jobs):
                sweep.say(f"\njob {number + 1} of {len(jobs)}: {settings_of(job.swept)}")
                sweep.run(number, job, train)
        finally:
            sweep.report()
        trained = any(row.error is None for row in sweep.rows)
        tracked.end("FINISHED" if trained else "FAILED")
    # The other processes leave the verdict to rank 0: a launcher ends them all as soon as one says that it failed.
    return 0 if launch.rank or trained else 2


class Sweep:
    """The jobs' folders and the rows of the table. Raises ConfigError where a sweep cannot be written."""

    def __init__(self, jobs: list[SweepJob], launch: Launch, locks: Owner) -> None:
        self.launch = launch
        config = _first_config(jobs)
        if config.launcher and launch.world_size > 1:
            raise ConfigError(
                f"launcher={config.launcher} starts each job's processes itself, but this is {launch}; start the sweep by python.",
                collective=True,
            )
        if any("output_dir" in job.swept for job in jobs):
            raise ConfigError(
                "output_dir cannot be swept; give one folder, and each job gets its own in it.", collective=True
            )
        self.writes = launch.rank == 0 and not config.dry_run
        # the other ranks' runs are told by rank 0
        self.folder = _sweep_folder(config, locks if self.writes else None) if launch.rank == 0 else Path()
        self.monitor = monitor_of(config)
        self.mode = config.trainer.monitor_mode or default_mode(self.monitor)
        self.keys = list(jobs[0].swept)
        self.rows: list[Row] = []
        self._write()
        self.tracked, self.parent = tracked_sweep(config if self.writes else None, self.folder, self.keys)

    def say(self, text: str) -> None:
        """Words for the user, from one process."""
        if self.launch.rank == 0:
            print_redacted(text)

    def run(self, number: int, job: SweepJob, train: Callable[[RunConfig], Any]) -> None:
        """Train one job and add its row, also when it ends the sweep."""
        folder = self.folder / job_name(number, job.swept)
        row = Row(number, job.swept, str(folder))
        self.rows.append(row)
        started = time.perf_counter()
        try:
            row.error = self._attempt(job, folder, train)
        except BaseException as ending:
            row.error = sentence(ending)
            raise
        finally:
            row.seconds = time.perf_counter() - started
            if self.writes:
                self._take_result(row, folder)
                self._write()
        gc.collect()  # what is left of one job must not lack in the next
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _attempt(self, job: SweepJob, folder: Path, train: Callable[[RunConfig], Any]) -> str | None:
        """Why the job failed, None if it did not."""
        try:
            config = job.load()
        except ConfigError as error:  # all processes read the same settings
            return self._failed(error)
        if config.launcher:
            failure = start(command(config.launcher, job, folder, self.parent))
            if not (failure or config.dry_run or read_result(folder)):
                failure = f"launcher={config.launcher} started no training: it ended well, but left no {RESULT}"
            if failure:
                print_redacted(f"the job failed: {read_result(folder).get('error') or failure}", sys.stderr)
            return failure
        try:
            train(as_child(replace(config, output_dir=str(folder)), self.parent))
        except Preempted:
            raise
        except UserError as error:
            if self.launch.world_size > 1 and not error.collective:
                raise
            return self._failed(error, config.debug)
        except Exception as error:
            if self.launch.world_size > 1:
                raise
            return self._failed(error, show=True)
        return None

    def _failed(self, error: Exception, show: bool = False) -> str:
        text, rank = sentence(error), self.launch.rank
        if show:
            print_redacted(traceback.format_exc(), sys.stderr)
        if rank == 0:
            print(f"the job failed: {text}", file=sys.stderr, flush=True)
        elif rank == getattr(error, "reporter", 0):
            print(f"[rank {rank}] error: {text}", file=sys.stderr, flush=True)
        return text

    def _take_result(self, row: Row, folder: Path) -> None:
        result = read_result(folder)
        row.metric, row.loss, row.images_per_s = (result.get(key) for key in ("best", LOSS, "images_per_s"))
        if row.error and result.get("error"):
            row.error = result["error"]

    def report(self) -> None:
        """The table and the best job in words, and the plot."""
        if self.launch.rank or not self.rows:
            return
        print("\n" + aligned(self._columns(), [self._cells(row, rounded) for row in self.rows]))
        if self.writes:
            self._draw()
            print(f"\n{self.folder / TABLE}, {self.folder / PLOT}")
        if best := self.best():
            row, name, value = best
            print(f"{name} {value:.3f}: {settings_of(row.swept)}, {row.folder}", flush=True)

    def best(self) -> tuple[Row, str, float] | None:
        """The best job that did not fail, by the monitored metric or, where nothing was validated, by its loss."""
        done = [row for row in self.rows if row.error is None]
        if by_metric := [(row.metric, row) for row in done if row.metric is not None]:
            pick = max if self.mode == "max" else min
            value, row = pick(by_metric, key=lambda pair: pair[0])
            return row, f"best {self.monitor}", value
        if by_loss := [(row.loss, row) for row in done if row.loss is not None]:
            value, row = min(by_loss, key=lambda pair: pair[0])
            return row, f"lowest {LOSS}", value
        return None

    def _columns(self) -> list[str]:
        return ["job", *self.keys, "status", self.monitor, LOSS, "images_per_s", "seconds", "folder", "error"]

    def _cells(self, row: Row, form: Callable[[float | None], str]) -> list[str]:
        numbers = [form(value) for value in (row.metric, row.loss, row.images_per_s, row.seconds)]
        status = "ok" if row.error is None else "failed"
        return [str(row.number), *(row.swept[key] for key in self.keys), status, *numbers, row.folder, row.error or ""]

    def _write(self) -> None:
        """sweep.csv with every digit."""
        if not self.writes:
            return
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(self._columns())
        table.writerows(self._cells(row, lambda value: "" if value is None else repr(value)) for row in self.rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / TABLE, lambda temporary: temporary.write_text(text.getvalue(), encoding="utf-8"))

    def _draw(self) -> None:
        from retina_dist.reporting.plots import plot_sweep

        best = self.best()
        plot_sweep(
            [row.swept for row in self.rows],
            {
                self.monitor: [row.metric for row in self.rows],
                "last training loss": [row.loss for row in self.rows],
                "images/s": [row.images_per_s for row in self.rows],
            },
            failed=[row.error is not None for row in self.rows],
            best=self.rows.index(best[0]) if best else None,
            out=self.folder / PLOT,
        )


def _first_config(jobs: list[SweepJob]) -> RunConfig:
    """Of the first job whose settings are possible: it tells what concerns the whole sweep."""
    for job in jobs:
        with contextlib.suppress(ConfigError):
            return job.load()
    return jobs[0].load()


def _sweep_folder(config: RunConfig, locks: Owner | None) -> Path:
    """`output_dir`, which must hold neither a sweep nor a run, or the next free runs/NAME-sweep; locked, if that is asked for."""
    if config.output_dir:
        folder = Path(config.output_dir)
    else:
        name = f"{config.data.name}-sweep"
        folder = make_next_folder(name) if locks else next_folder(name)
    if locks:
        locks.lock(folder, "output_dir")
    for path, what in ((folder / TABLE, "sweep"), (folder / CHECKPOINTS, "run")):
        if path.exists():
            raise ConfigError(f"output_dir={folder} already holds a {what}; give another folder.")
    return folder


def settings_of(swept: Mapping[str, str]) -> str:
    """The swept settings as one gives them."""
    return " ".join(f"{key}={value}" for key, value in swept.items())


def job_name(number: int, swept: Mapping[str, str]) -> str:
    """A folder's name that says what is special about the job.

    >>> job_name(0, {"optimizer.lr": "0.001", "data.batch_size": "4"})
    '0_lr=0.001_batch_size=4'
    """
    parts = [f"{short}={value}" for short, value in zip(short_names(swept), swept.values(), strict=True)]
    return re.sub(r"[^\w.,=+-]+", "-", "_".join([str(number), *parts]))[:MAX_NAME].rstrip("-.")


def short_names(keys: Iterable[str]) -> list[str]:
    """The last part of each dotted key, or the whole key where two of them end alike.

    >>> short_names(["optimizer.lr", "optimizer.name", "data.name"])
    ['lr', 'optimizer.name', 'data.name']
    """
    whole = list(keys)
    ends = [key.rpartition(".")[2] for key in whole]
    return [end if ends.count(end) == 1 else key for key, end in zip(whole, ends, strict=True)]


# jobs in processes of their own


def command(launcher: str, job: SweepJob, folder: Path, parent: str | None = None) -> list[str]:
    """What starts the job's processes, its MLflow run a child of `parent`.

    Raises ConfigError when `launcher` is no command line.
    """
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise ConfigError(
            f"launcher={launcher} is no command line ({error}); write such as launcher='mpirun -np 2'."
        ) from error
    if not words or words[0].lower() in ("true", "false"):
        raise ConfigError(
            f"launcher={launcher} is no command; write such as launcher='mpirun -np 2', or launcher=null."
        )
    module = ["-m", "retina_dist.train"]
    if not Path(words[0]).name.startswith("torchrun"):  # which starts a Python by itself
        module.insert(0, sys.executable)
    kept = [o for o in job.overrides if o.lstrip("+").split("=", 1)[0] not in ("launcher", "output_dir")]
    # A file may hold a launcher or a sweep too, and the job is neither.
    own = [f"logging.mlflow_parent={parent}", "logging.run_name=null"] if parent else []
    return [*words, *module, *kept, *own, "launcher=null", "hydra.mode=RUN", f"output_dir={quoted(str(folder))}"]


def quoted(text: str) -> str:
    """A text as the value of a Hydra override."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", text) + "'"


def start(words: list[str]) -> str | None:
    """Run a command and pass its output on; the first error it names, or its exit code, None if it ended well.

    When this process is interrupted the command is ended first.
    """
    print(redacted(shlex.join(words)), flush=True)
    try:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        raise ConfigError(
            f"launcher={words[0]} cannot be started ({error.strerror}); is it installed and on the PATH?"
        ) from error
    said: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            print(redacted(line), end="", flush=True)
            said += error_in(redacted(line))
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    return None if code == 0 else (said or [f"exit code {code}"])[0]


def error_in(line: str) -> list[str]:
    """The sentence of a line that says what went wrong, such as "[1]<stderr>:[rank 1] error: SENTENCE"."""
    found = re.search(r"(?:^|[\]>:]\s*)(?:error: (.+)|(\w*(?:Error|Exception): .+))$", line.rstrip())
    return [found[1] or found[2]] if found else []


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(INTERRUPTED_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# the table in words


def rounded(value: float | None) -> str:
    """Four digits, a dash for what is not known."""
    return "-" if value is None else f"{value:.4g}"


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their columns, each as wide as it needs to be."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
