"""One live line on a terminal; plain lines in a log file."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TextIO

import torch
from torch import Tensor

from retina_dist.base.console import note_output, print_redacted
from retina_dist.base.text import format_duration
from retina_dist.tracking.callbacks import Callback

TRAINING_GROUPS = ("train", "time", "memory", "comm")  # of metrics that no validation gives
LOSS = "train/loss"
OWN_LOSS = "the loss of this process alone"
VAL_LOSS = "val/loss"
BAR = 20  # characters
ERASE = "\r\x1b[K"  # the line of a terminal
ESTIMATE_AFTER = 1.0  # seconds of steps, the first one not among them
ETA_AFTER = 10  # steps; the first ones start data workers and choose kernels


def _console() -> TextIO:
    """Where to print: one stream where output is piped, so that a file has every line."""
    if _columns(sys.stdout) and _columns(sys.stderr):
        return sys.stderr
    return sys.stdout


class LatestLoss:
    """The loss of the newest step that is known without waiting for the device.

    On a GPU each loss is copied behind its step and read one step later.
    """

    def __init__(self) -> None:
        self.value = math.nan
        self._copy: Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def update(self, loss: Tensor) -> None:
        """Take the loss of the newest step, a scalar."""
        if not loss.is_cuda:
            self.value = float(loss)
            return
        if self._copy is not None and self._copied is not None and self._copied.query():
            self.value = float(self._copy)
        self._copy = loss.to("cpu", non_blocking=True)
        self._copied = torch.cuda.current_stream(loss.device).record_event()


@dataclass(eq=False)
class Progress(Callback):
    """Shows a training on the console: a live line on a terminal, plain lines elsewhere.

    An early line says how long an epoch takes, by the first steps. A line comes with each row of
    metrics; `beat` adds lines between them, with the loss of the last step. Validation results get
    a line that shows those in `headline`.

    Args:
        total_steps: The step after which the run ends.
        initial: The step that a resumed run starts after.
        steps_per_epoch: Optimizer steps of an epoch.
        images_per_step: Images of an optimizer step, over all processes.
        processes: How many train; the loss that each step has is that of this one.
        headline: The metrics of a validation to show; () means all.
        peak_gib: Tells the most memory so far in GiB.
        file: Where to print.
        clock: Tells the time in seconds.
    """

    total_steps: int
    initial: int = 0
    _: KW_ONLY
    steps_per_epoch: int
    images_per_step: int = 0
    processes: int = 1
    headline: Sequence[str] = ()
    peak_gib: Callable[[], float] | None = None
    file: TextIO = field(default_factory=_console)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._start = self.clock()
        self._step = self.initial  # the last one that has ended
        self._shown = self.initial
        self._loss = LatestLoss()
        self._first: tuple[int, float] | None = None  # the first step to end here, and when
        self._is_estimated = False
        self._window = (self.initial, self._start)  # step and time since which the rate is measured
        self._text = ""  # what follows the bar
        self._has_bar = _columns(self.file) > 0
        self._lock = threading.Lock()  # `beat` comes from another thread
        self._draw()

    def on_step(self, step: int, values: Mapping[str, Tensor]) -> None:
        self._step = step
        if self._first is None:
            self._first = (step, self.clock())
        elif not self._is_estimated and step < self.total_steps:
            self._estimate(step, *self._first)
        if LOSS in values:
            self._loss.update(values[LOSS])

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        self._show(step, metrics)
        self._window = (step, self.clock())

    def on_validation(self, metrics: Mapping[str, float], step: int) -> None:
        self.write(f"{self._where(step)}  {format_results(metrics, self.headline)}")
        self._window = (step, self.clock())
        # after a first step it is too late: the time since then has this in it
        self._is_estimated = self._first is not None

    def beat(self, text: str, seconds: float, silent: bool) -> None:
        """For `heartbeat`: move the bar, or print a line after a first step and when `silent`.

        The line has `text`, what the process does since `seconds`, if no step has ended.
        """
        step = self._step
        is_first = self._shown == self.initial
        if step > self._shown and (self._has_bar or silent or is_first):
            self._show(step, self._since_log(step))
        elif silent:
            self.write(f"{text}: {format_duration(seconds)} so far")

    def write(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        with self._lock:
            print_redacted(ERASE + text if self._has_bar else text, self.file)
        self._draw()

    def on_end(self) -> None:
        """Leave the bar as it is."""
        if self._has_bar:
            print_redacted("", self.file)
            self._has_bar = False

    def _estimate(self, step: int, first: int, when: float) -> None:
        """Say once how long an epoch and the steps that are left take."""
        seconds = self.clock() - when
        if seconds < ESTIMATE_AFTER:
            return
        self._is_estimated = True
        each = seconds / (step - first)
        epoch = format_duration(each * self.steps_per_epoch)
        left = format_duration(each * (self.total_steps - step))
        self.write(
            f"about {epoch} an epoch by the first {step - self.initial} steps, "
            f"{left} to step {self.total_steps}, validations not counted"
        )

    def _show(self, step: int, metrics: Mapping[str, float]) -> None:
        self._shown = step
        self._text = self._describe(step, metrics)
        if self._has_bar:
            self._draw()
        else:
            self.write(f"{self._where(step)}  {self._text}")

    def _draw(self) -> None:
        if self._has_bar:
            note_output()
            bar = "#" * (BAR * self._shown // self.total_steps)
            line = f"{self._where(self._shown)} |{bar:<{BAR}}| {self._text}"
            with self._lock, contextlib.suppress(BrokenPipeError):
                self.file.write(ERASE + line[: _columns(self.file) - 1])
                self.file.flush()

    def _where(self, step: int) -> str:
        """`step  50/1000  epoch 0.50`, of constant width, so that lines align."""
        total = str(self.total_steps)
        epochs = f"{self.total_steps / self.steps_per_epoch:.2f}"
        epoch = f"{step / self.steps_per_epoch:.2f}"
        return f"step {step:>{len(total)}}/{total}  epoch {epoch:>{len(epochs)}}"

    def _since_log(self, step: int) -> dict[str, float]:
        """Metrics between two rows: the last step's loss, and the rate since the last row."""
        metrics = {}
        if math.isfinite(self._loss.value):
            metrics[LOSS if self.processes == 1 else OWN_LOSS] = self._loss.value
        since, when = self._window
        seconds = self.clock() - when
        if self.images_per_step and step > since and seconds > 0:
            metrics["time/images_per_s"] = (step - since) * self.images_per_step / seconds
        return metrics

    def _describe(self, step: int, metrics: Mapping[str, float]) -> str:
        """`loss 0.5123  lr 0.01  57.3 img/s  1.2 GiB  0:25 elapsed  ETA 1:02:03`, what is known."""
        forms = {
            LOSS: "loss {:.4f}",
            OWN_LOSS: "loss of rank 0 {:.4f}",
            "train/lr": "lr {:.3g}",
            "time/images_per_s": "{:.1f} img/s",
        }
        parts = [form.format(metrics[name]) for name, form in forms.items() if name in metrics]
        if self.peak_gib:
            parts.append(f"{self.peak_gib():.1f} GiB")
        now = self.clock()
        parts.append(f"{format_duration(now - self._start)} elapsed")
        first, when = self._first or (step, now)
        if step - self.initial >= ETA_AFTER and step > first:
            # evaluations and checkpoints included
            left = (self.total_steps - step) * (now - when) / (step - first)
            parts.append(f"ETA {format_duration(left)}")
        return "  ".join(parts)


def format_results(metrics: Mapping[str, float], headline: Sequence[str]) -> str:
    """Validation results as one line.

    Those in `headline`, in its order, or else all, and the loss without its parts.

    >>> metrics = {"val/loss": 0.5, "val/top5": math.nan, "val/top1": 0.4125, "val/kappa": 0.3}
    >>> format_results(metrics, ["val/top1", "val/top5"])
    'validation: top1 0.412  top5 -  loss 0.5000'
    """
    shown = [name for name in headline if name in metrics]
    shown = shown or [name for name in metrics if not name.startswith(VAL_LOSS)]
    if VAL_LOSS in metrics and VAL_LOSS not in shown:
        shown.append(VAL_LOSS)
    parts = []
    for name in shown:
        digits = 4 if name == VAL_LOSS else 3
        value = f"{metrics[name]:.{digits}f}".replace("nan", "-")
        parts.append(f"{name.split('/', 1)[-1]} {value}")
    return f"validation: {'  '.join(parts)}"


def _columns(file: TextIO) -> int:
    """The width of a terminal.

    0 for another file, and for a terminal without a size, as a container may have.
    """
    try:
        size = os.get_terminal_size(file.fileno())
    except (OSError, ValueError):
        return 0
    return size.columns if size.lines else 0
