"""One live line on a terminal; plain lines in a log file."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from retina_dist.base.text import format_duration
from retina_dist.tracking.console import note_output, print_redacted

TRAINING_GROUPS = ("train", "time", "memory", "comm")  # of metrics that no validation gives
SHOWN = {"train/loss": "loss {:.4f}", "train/lr": "lr {:.3g}", "time/images_per_s": "{:.1f} img/s"}
VAL_LOSS = "val/loss"
BAR = 20  # characters
ERASE = "\r\x1b[K"  # the line of a terminal


class Progress:
    """A metric logger for the console: a progress bar on a terminal, elsewhere a plain line per `log` of training metrics.

    Metrics of other groups are validation results, on a separate line that shows those in `headline`. The time left includes
    evaluations and checkpoints. `initial` is the step that a resumed run starts after, `step` tells the steps done so far.
    """

    def __init__(
        self,
        total_steps: int,
        initial: int = 0,
        step: Callable[[], int] | None = None,
        *,
        steps_per_epoch: int,
        headline: Sequence[str] = (),
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps, self.initial, self._shown = total_steps, initial, initial
        self.step = step or (lambda: self._shown)
        self.steps_per_epoch, self.headline = steps_per_epoch, headline
        # one stream where output is piped, so that a file has every line
        self.file = file or (
            sys.stderr if _columns(sys.stdout) and _columns(sys.stderr) else sys.stdout
        )
        self._clock, self._start = clock, clock()
        self._metrics: dict[str, float] = {}
        self._has_bar = _columns(self.file) > 0
        self._lock = threading.Lock()  # `beat` comes from another thread
        self._draw()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        training = {
            name: value for name, value in metrics.items() if name.split("/")[0] in TRAINING_GROUPS
        }
        results = {name: value for name, value in metrics.items() if name not in training}
        if training:
            self._metrics.update(training)
            self._show(step)
        if results:
            self.write(f"{self._where(step)}  {format_results(results, self.headline)}")

    def beat(self, text: str, seconds: float, silent: bool) -> None:
        """For `heartbeat`: move the bar, or print a line after the first step and whenever `silent`: `text` if no step ended."""
        step = self.step()
        if step > self._shown and (self._has_bar or silent or self._shown == self.initial):
            self._show(step)
        elif silent:
            self.write(f"{text}: {format_duration(seconds)} so far")

    def write(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        with self._lock:
            print_redacted(ERASE + text if self._has_bar else text, self.file)
        self._draw()

    def close(self) -> None:
        if self._has_bar:
            print_redacted("", self.file)  # leaves the bar
            self._has_bar = False

    def _show(self, step: int) -> None:
        self._shown = step
        if self._has_bar:
            self._draw()
        else:
            self.write(f"{self._where(step)}  {self._how(step)}")

    def _draw(self) -> None:
        if self._has_bar:
            note_output()
            bar = "#" * (BAR * self._shown // self.total_steps)
            line = f"{self._where(self._shown)} |{bar:<{BAR}}| {self._how(self._shown)}"
            with self._lock, contextlib.suppress(BrokenPipeError):
                self.file.write(ERASE + line[: _columns(self.file) - 1])
                self.file.flush()

    def _where(self, step: int) -> str:
        """`step  50/1000  epoch 0.50`, of constant width, so that lines align."""
        text = f"step {step:>{len(str(self.total_steps))}}/{self.total_steps}"
        width = len(f"{self.total_steps / self.steps_per_epoch:.2f}")
        return f"{text}  epoch {step / self.steps_per_epoch:>{width}.2f}"

    def _how(self, step: int) -> str:
        """`loss 0.5123  lr 0.01  57.3 img/s  ETA 1:02:03`, without unknown parts."""
        steps_per_s = (step - self.initial) / max(self._clock() - self._start, 1e-9)
        parts = [
            form.format(self._metrics[name])
            for name, form in SHOWN.items()
            if name in self._metrics
        ]
        if steps_per_s > 0:
            parts.append(f"ETA {format_duration((self.total_steps - step) / steps_per_s)}")
        return "  ".join(parts)


def format_results(metrics: Mapping[str, float], headline: Sequence[str] = ()) -> str:
    """Validation results as one line: those in `headline`, in its order, or else all, and the loss without its parts.

    >>> format_results({"val/loss": 0.5, "val/top5": math.nan, "val/top1": 0.4125, "val/kappa": 0.3}, ["val/top1", "val/top5"])
    'validation: top1 0.412  top5 -  loss 0.5000'
    """
    shown = [n for n in headline if n in metrics] or [
        n for n in metrics if not n.startswith(VAL_LOSS)
    ]
    shown += [VAL_LOSS] * (VAL_LOSS in metrics and VAL_LOSS not in shown)
    numbers = [
        "-" if math.isnan(metrics[n]) else f"{metrics[n]:.{4 if n == VAL_LOSS else 3}f}"
        for n in shown
    ]
    return "validation: " + "  ".join(
        f"{n.split('/', 1)[-1]} {text}" for n, text in zip(shown, numbers, strict=True)
    )


def _columns(file: TextIO) -> int:
    """The width of a terminal; 0 for another file and for a terminal without a size, as a container may have."""
    try:
        return (
            min(os.get_terminal_size(file.fileno())) and os.get_terminal_size(file.fileno()).columns
        )
    except (OSError, ValueError):
        return 0
