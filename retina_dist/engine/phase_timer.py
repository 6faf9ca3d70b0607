"""Where the time of a training goes: every moment belongs to one phase, so the phases add up to the
total.

On CUDA the marks are events in the stream: work counts when it runs, and the host waits for them
only when the times are read.
"""

import os
import resource
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from retina_dist.base.text import format_duration, pluralize
from retina_dist.strategies.base import DistributedStrategy

T = TypeVar("T")

# "communication" is what the backward pass does not hide; "first_batch" is the wait for it and for
# the data workers' start.
IN_A_STEP = ("data", "copy", "forward", "backward", "communication", "optimizer")
PARTS = (*IN_A_STEP, "evaluation", "checkpoint", "first_batch", "other")
END = "end of a step"
KEPT = 10_000  # steps whose times are kept for the percentiles; marks before they become seconds
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}


class PhaseTimer:
    """Seconds of each part since `start`, and of each step's parts. `start` again after a pause
    that must not count.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.steps: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.num_steps = 0
        self.wall = 0.0
        self.cpu = 0.0
        self._marks: list[tuple[str, Any]] = []  # part, moment of its end
        self._last: Any = None
        self._gradient: Any = None  # when the last gradient of this backward pass was made
        self._step: defaultdict[str, float] = defaultdict(float)
        self._begun = 0.0

    def start(self) -> None:
        """Start to measure."""
        self._last = self._now()
        self._begun = time.perf_counter()
        self.cpu -= cpu_seconds()

    def stop(self) -> None:
        """Stop; the time since the last mark is "other"."""
        self.settle()  # before the last mark: the time that settling takes belongs to a part too
        self.mark("other")
        self.wall += time.perf_counter() - self._begun
        self.cpu += cpu_seconds()
        self.settle()

    def watch(self, parameters: Iterable[nn.Parameter]) -> None:
        """Note when each gradient of `parameters` is computed: after the last one, the backward
        pass only waits for other ranks.
        """
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_hook(self._gradient_made)

    def mark(self, part: str) -> None:
        """Attribute the time since the last mark to `part`."""
        self._marks.append((part, self._now()))

    @contextmanager
    def phase(self, part: str) -> Iterator[None]:
        """The time within it is `part`, the time since the last mark is "other"."""
        self.mark("other")
        yield
        self.mark(part)

    def iterate(self, steps: Iterable[T]) -> Iterator[T]:
        """The same items; waiting for one is "data" ("first_batch" for the first), what follows the
        step's last mark "other".
        """
        waited_for = "first_batch"
        for step in steps:
            self.mark(waited_for)
            waited_for = "data"
            yield step
            del step  # its memory is free while the next one is fetched
            self.mark("other")

    def mark_backward(self) -> None:
        """`mark("backward")`; the time after the last gradient of the watched parameters is
        "communication".
        """
        if self._gradient is None:
            self.mark("backward")
        else:
            self._marks.append(("backward", self._gradient))
            self._gradient = None
            self.mark("communication")

    def end_step(self) -> None:
        """The marks from now on belong to the next step."""
        self._marks.append((END, self._marks[-1][1]))
        if len(self._marks) > KEPT:
            self.settle()

    def settle(self) -> None:
        """Turn marks into seconds. On CUDA it waits for the last of them."""
        on_cuda = self.device.type == "cuda"
        if self._marks and on_cuda:
            self._marks[-1][1].synchronize()
        for part, moment in self._marks:
            if part == END:
                for name in IN_A_STEP:
                    self.steps[name].append(self._step[name])
                self._step.clear()
                self.num_steps += 1
                continue
            if on_cuda:
                seconds = self._last.elapsed_time(moment) / 1000
            else:
                seconds = moment - self._last
            self._last = moment
            self.seconds[part] += seconds
            self._step[part] += seconds
        self._marks.clear()

    def _gradient_made(self, gradient: Tensor) -> None:
        if self._gradient is not None and self.device.type == "cuda":
            self._gradient.record()  # one event a step will do
        else:
            self._gradient = self._now()

    def _now(self) -> object:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def peak_gib(device: torch.device = torch.device("cpu")) -> float:  # noqa: B008 - immutable
    """The most memory so far in GiB: of tensors on a GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux


def cpu_seconds() -> float:
    """CPU seconds so far of this process, of its children, and of theirs that have ended.

    Data workers are children of the fork server, so they count once they are closed.
    """
    total = sum(os.times()[:4])
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # after its name: state, parent, 9 others, then ticks: own in user and system mode, and
            # those of the children that ended (proc_pid_stat(5))
            facts = file.read_bytes().rpartition(b")")[2].split()
            if int(facts[1]) == os.getpid():
                total += sum(map(int, facts[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def summary(timer: PhaseTimer, strategy: DistributedStrategy) -> dict[str, Any]:
    """Seconds of each part, milliseconds of a step's parts and the most memory in GiB, of every
    rank; every rank must call it.

    `slowest` is the rank with the most time in its "own" work, all but waiting for other ranks, in
    the median step.
    """
    times = {name: np.array(timer.steps[name] or [0.0]) for name in IN_A_STEP}
    step = sum(times.values(), np.zeros(1))
    times |= {"own": step - times["communication"], "step": step}
    on_gpu = peak_gib(timer.device) if timer.device.type == "cuda" else None
    step_ms = {}
    for name, values in times.items():
        percentiles = np.percentile(values, list(PERCENTILES.values())) * 1000
        step_ms[name] = dict(zip(PERCENTILES, percentiles.round(4).tolist(), strict=True))
    mine: dict[str, Any] = {
        "seconds": {name: round(timer.seconds[name], 6) for name in PARTS},
        "wall_s": round(timer.wall, 6),
        "cpu_s": round(timer.cpu, 2),
        "steps": timer.num_steps,
        "peak_gib": {"process": round(peak_gib(), 4), "device": on_gpu},
        "step_ms": step_ms,
    }
    ranks = strategy.gather_objects(mine)
    own = [rank["step_ms"]["own"]["p50"] for rank in ranks]
    return {"slowest": int(np.argmax(own)), "ranks": ranks}


def format_timings(timings: dict[str, Any]) -> str:
    """The main rank's time and its largest parts, and how much slower the slowest rank is than the
    fastest.
    """
    main = timings["ranks"][0]
    seconds = main["seconds"]
    wall = main["wall_s"]
    largest = sorted(PARTS, key=seconds.__getitem__, reverse=True)[:3]
    shares = ", ".join(f"{name} {seconds[name] / max(wall, 1e-9):.0%}" for name in largest)
    text = f"{format_duration(wall)} for {pluralize(main['steps'], 'step')}: {shares}"
    text += f"; {sum(rank['cpu_s'] for rank in timings['ranks']):.4g} CPU seconds"
    own = [rank["step_ms"]["own"]["p50"] for rank in timings["ranks"]]
    if len(own) > 1:
        fastest = min(own)
        times = max(own) / max(fastest, 1e-9)
        slowest = f"rank {timings['slowest']} takes {times:.2f} times"
        text += f"; {slowest} the fastest's {fastest:.0f} ms a step"
    return text
