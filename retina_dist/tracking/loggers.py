"""Metric loggers: the trainer calls `log(metrics, step)` with metrics by `group/name` and the
optimizer step.
"""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image

from retina_dist.base.errors import DataError
from retina_dist.base.files import write_csv
from retina_dist.base.text import NUMBER
from retina_dist.tracking.callbacks import Callback

STEP = "step"


@runtime_checkable
class MetricLogger(Protocol):
    """Logs metrics, on the main rank.

    An entry of the group `logging` may name a class of this kind, which is called as
    CLASS(settings, folder, resume_step): its `settings` are below `LoggingConfig`, `folder` is the
    run's, `resume_step` is None in a fresh run.
    """

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None:
        """Called at the end; a subclass that keeps nothing open inherits this."""
        return


class LoggerCollection(Callback):
    """The callback that passes metrics to all `loggers`, in order.

    Undefined ones (NaN) are left out. All are closed even if closing one fails.
    """

    def __init__(self, *loggers: MetricLogger) -> None:
        self.loggers = loggers

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log a row of training metrics."""
        defined = {name: value for name, value in metrics.items() if not math.isnan(value)}
        try:
            for logger in self.loggers:
                logger.log(defined, step)
        except OSError as error:
            raise DataError(
                f"metrics cannot be written ({error}); correct the cause, "
                "and add resume=auto to the command."
            ) from error

    def on_validation(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of a validation."""
        self.on_log(metrics, step)

    def on_end(self) -> None:
        """Close the loggers."""
        with contextlib.ExitStack() as stack:
            for logger in reversed(self.loggers):  # the stack closes the last one first
                stack.callback(logger.close)


class CsvLogger(MetricLogger):
    """A CSV file with one row per `log`: the step in the first column, an empty cell where a metric
    was not logged.

    Each row is in the file when `log` returns, so a killed run loses none. With `resume_step` the
    file is continued without rows of later steps, which the resumed run logs again, and without a
    half-written last row; else an existing file is replaced.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self.path = path
        columns = [STEP]
        rows: list[dict[str, str]] = []
        if resume_step is not None and path.exists():
            columns, rows = _read_rows(path)
            rows = [row for row in rows if int(row[STEP]) <= resume_step]
        self._rewrite(columns, rows)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        new = [name for name in metrics if name not in self._columns]
        if new:
            columns, rows = _read_rows(self.path)
            self._rewrite(columns + new, rows)
        # repr gives every digit: the values read back are exact
        values = {name: repr(float(value)) for name, value in metrics.items()}
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, restval="", lineterminator="\n").writerow(
                {STEP: step, **values}
            )

    def _rewrite(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        filled = [[row.get(name, "") for name in columns] for row in rows]
        write_csv(self.path, [columns, *filled])
        self._columns = columns


class TensorBoardLogger:
    """Scalars for TensorBoard; with `resume_step`, the later steps of the earlier run
    are purged.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(folder, purge_step=purge_step, flush_secs=30)

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

        values: dict[str, str | float] = {}
        for key, text in settings.items():
            values[key] = float(text) if NUMBER.fullmatch(text) else text
        for summary in hparams(values, dict.fromkeys(metrics)):
            self._writer._get_file_writer().add_summary(summary)
        for path in images:
            with Image.open(path) as image:
                self._writer.add_image(
                    path.name, np.asarray(image.convert("RGB")), step, dataformats="HWC"
                )

    def close(self) -> None:
        self._writer.close()


def read_metrics(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Metric name -> (steps, values) in the order logged. Raises DataError unless a CsvLogger wrote
    the file.
    """
    series: dict[str, tuple[list[int], list[float]]] = {}
    for row in _read_rows(path)[1]:
        step = int(row.pop(STEP))
        for name, text in row.items():
            if text:
                steps, values = series.setdefault(name, ([], []))
                steps.append(step)
                values.append(float(text))
    return series


def _read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and the complete rows, without one cut short by a killed run or a full disk."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot read the metrics ({error}); give a run's metrics.csv."
        ) from error
    complete = text[: text.rfind("\n") + 1]
    header, *lines = list(csv.reader(complete.splitlines())) or [[STEP]]
    if header[:1] != [STEP]:
        raise DataError(
            f"{path}: the first column is not '{STEP}'; "
            "give a run's metrics.csv or move this file away."
        )
    rows = [
        dict(zip(header, line, strict=True))
        for line in lines
        if len(line) == len(header) and line[0].isdecimal()
    ]
    return header, rows
