"""Metric loggers: `log(metrics, step)` takes metrics by `group/name`."""

import contextlib
import csv
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from retina_dist.base.errors import DataError
from retina_dist.base.files import PathOrUrl, write_csv
from retina_dist.base.text import NUMBER
from retina_dist.tracking.callbacks import Callback
from retina_dist.tracking.settings import LoggerSettings, LoggingConfig, TensorBoardSettings

STEP = "step"


@runtime_checkable
class MetricLogger(Protocol):
    """Logs metrics, on the main rank.

    A class of this kind is called as CLASS(settings, folder, resume_step): `folder` is the run's,
    `resume_step` is None in a fresh run. The `settings` of one that an entry of the group `logging`
    names are below `LoggingConfig`.
    """

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None:
        """Called at the end; a subclass that keeps nothing open inherits this."""
        return


@dataclass
class TrackedRun:
    """What a tracker is told of a run.

    Args:
        folder: The run folder, whose images, tables and settings are uploaded at the end.
        checkpoints: Where the run keeps its checkpoints and, for a resume, its id there.
        best: The best checkpoint, uploaded with `logging.mlflow_checkpoint`.
        params: Every setting by its dotted key, without secrets.
        data_name: The name of the data set.
        data_source: Its folder or URL.
        digest: A digest of the training data.
        note: The page of the run, as Markdown.
        tags: More facts, such as versions.
        resumes: Whether the run was started before, so that its MLflow run is continued.
    """

    folder: Path
    checkpoints: PathOrUrl
    best: PathOrUrl
    params: Mapping[str, str] = field(default_factory=dict)
    data_name: str = ""
    data_source: str = ""
    digest: str = ""
    note: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    resumes: bool = False


class Tracker(MetricLogger):
    """A logger that outlives the restarts of an elastic job, at each of which `close` is called."""

    def begin(self, run: TrackedRun) -> None:
        """Called once, before the first metrics."""

    def end_with(self, error: BaseException | None, within_s: float = math.inf) -> None:
        """Called at the end of the run, which `error` ended if it is given; return in `within_s`.

        A failed run calls it again when its processes have left; such a call should do nothing.
        """


class RunLoggers(AbstractContextManager["RunLoggers"]):
    """Makes the loggers of a run, a `Tracker` only once, and ends trackers after everything."""

    def __init__(self) -> None:
        self.trackers: dict[type, Tracker] = {}

    def make(
        self,
        kind: type[Any],
        settings: LoggingConfig,
        folder: Path,
        resume_step: int | None,
        describe: Callable[[], TrackedRun],
    ) -> MetricLogger:
        """A logger of that class; `describe` says what a tracker is told."""
        if kind in self.trackers:
            return self.trackers[kind]
        made: MetricLogger = kind(settings, folder, resume_step)
        if isinstance(made, Tracker):
            made.begin(describe())
            self.trackers[kind] = made
        return made

    def end_with(self, error: BaseException | None, within_s: float = math.inf) -> None:
        """End the trackers."""
        for tracker in self.trackers.values():
            tracker.end_with(error, within_s)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end_with(error)


class LoggerCollection(Callback):
    """The callback that passes metrics to all `loggers`, in order.

    Undefined ones (NaN) are left out. All are closed even if closing one fails.
    """

    def __init__(self, *loggers: MetricLogger) -> None:
        self.loggers = loggers

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a row of metrics, of a training or a validation."""
        defined = {name: value for name, value in metrics.items() if not math.isnan(value)}
        try:
            for logger in self.loggers:
                logger.log(defined, step)
        except OSError as error:
            raise DataError(
                f"metrics cannot be written ({error}); correct the cause, "
                "and add resume=auto to the command."
            ) from error

    on_validation = on_log

    def on_end(self) -> None:
        """Close the loggers."""
        with contextlib.ExitStack() as stack:
            for logger in reversed(self.loggers):  # the stack closes the last one first
                stack.callback(logger.close)


class CsvLogger(MetricLogger):
    """metrics.csv, one row per `log`: the step first, an empty cell where nothing was logged.

    Each row is in the file when `log` returns, so a killed run loses none. With `resume_step` the
    file is continued without rows of later steps, which the resumed run logs again, and without a
    half-written last row; else an existing file is replaced.
    """

    settings = LoggerSettings

    def __init__(
        self, settings: LoggerSettings, folder: Path, resume_step: int | None = None
    ) -> None:
        self.path = folder / "metrics.csv"
        self._columns = [STEP]
        rows: list[list[str]] = []
        if resume_step is not None and self.path.exists():
            self._columns, *rows = read_rows(self.path)
            rows = [row for row in rows if int(row[0]) <= resume_step]
        write_csv(self.path, [self._columns, *rows])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        new = [name for name in metrics if name not in self._columns]
        if new:
            header, *rows = read_rows(self.path)
            self._columns = header + new
            write_csv(self.path, [self._columns, *(row + [""] * len(new) for row in rows)])
        # repr gives every digit: the values read back are exact
        values = {name: repr(float(value)) for name, value in metrics.items()}
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, restval="", lineterminator="\n").writerow(
                {STEP: step, **values}
            )


class TensorBoardLogger(MetricLogger):
    """Scalars for TensorBoard; with `resume_step`, later steps of the earlier run are purged."""

    settings = TensorBoardSettings

    def __init__(
        self, settings: TensorBoardSettings, folder: Path, resume_step: int | None = None
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(folder / "tensorboard", purge_step=purge_step, flush_secs=30)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def log_results(
        self, settings: dict[str, str], metrics: dict[str, float], images: list[Path], step: int
    ) -> None:
        """The settings as hyperparameters of the final metrics, and images by file name.

        The metrics are in the file already, so that `add_hparams` would write each twice.
        """
        from torch.utils.tensorboard.summary import hparams

        values: dict[str, str | float] = dict(settings)
        values |= {key: float(text) for key, text in settings.items() if NUMBER.fullmatch(text)}
        for summary in hparams(values, dict.fromkeys(metrics)):
            self._writer._get_file_writer().add_summary(summary)
        for path in images:
            with Image.open(path) as image:
                self._writer.add_image(
                    path.name, np.asarray(image.convert("RGB")), step, dataformats="HWC"
                )

    def close(self) -> None:
        self._writer.close()


def read_metrics(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The step and the values of each row of a metrics.csv, as `read_rows` reads it."""
    rows = read_rows(path)
    _, *names = next(rows)
    for step, *cells in rows:
        yield int(step), {name: float(x) for name, x in zip(names, cells, strict=True) if x}


def read_rows(path: Path) -> Iterator[list[str]]:
    """The columns of metrics.csv or digest.csv, then its rows, without one that was cut short.

    Raises DataError for the file of someone else.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(line for line in file if line.endswith("\n"))
            header = next(rows, [STEP])
            if header[:1] != [STEP]:
                raise DataError(
                    f"{path}: the first column is not '{STEP}'; "
                    f"give a run's {path.name} or move this file away."
                )
            yield header
            for row in rows:
                if len(row) == len(header) and row[0].isdecimal():
                    yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}); give a run's {path.name}.") from error
