"""Whether a step fits into the GPU's memory, and the fewest micro-batches with which it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache

import torch

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.plan import Plan
from retina_dist.errors import ConfigError
from retina_dist.gpus import Gpu, find_gpu, gpu_of
from retina_dist.run.memory_estimate import NotEstimated, StepMemory
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task import Task
from retina_dist.text import format_bytes

# What the CUDA context and the loaded kernels take beside torch's tensors: an assumption. Processes of torch 2 that hold no tensor
# take 0.5 to 0.7 GiB by nvidia-smi.
CONTEXT_GIB = 0.6
SAME_GIB = 0.5  # by less than this GPUs of one kind differ, with their drivers
SHARE = 0.9  # of the rest that a plan may fill: cuDNN's workspaces and the fragmentation of the allocator are not known


@dataclass(frozen=True)
class MemoryPlan:
    """The micro-batches of a step, what it takes in lines of the log, warnings, and why it cannot run, "" if it can."""

    accumulate: int
    lines: list[str] = field(default_factory=list)
    problem: str = ""
    warnings: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise ConfigError where the step cannot run."""
        if self.problem:
            raise ConfigError(self.problem)


def plan_memory(
    config: RunConfig, task: Task, strategy: DistributedStrategy, plan_of: Callable[[int], Plan]
) -> MemoryPlan:
    """Settle `trainer.accumulate` and compare the step with the GPU, alike on all ranks; `plan_of(accumulate)` is the plan.

    The GPU is the one that `gpu` names, else the smallest that a rank has. Without any nothing is compared, and auto is 1.
    Nothing is estimated without a GPU but in a dry run. A step that is too large for the GPU in use is a warning, as an estimate
    may be wrong; it is a problem in a dry run, for a GPU that `gpu` names, and where auto finds no number.
    """
    named, found = find_gpu(config.gpu) if config.gpu else None, _smallest_gpu(strategy)
    gpu, chosen, auto = named or found, config.trainer.micro_batches, config.trainer.accumulate == "auto"
    if gpu is None and not config.dry_run:
        return MemoryPlan(chosen)
    device = torch.device("cuda") if gpu else strategy.device

    def settle() -> MemoryPlan:
        try:
            fit = _Fit(config, strategy.world_size, StepMemory(config, task, device), plan_of)
            plan = fit.settle(gpu) if gpu else MemoryPlan(chosen, [str(fit.estimate(chosen))])
        except NotEstimated as error:
            problem = f"trainer.accumulate=auto cannot be settled: {error}; give a number." if gpu and auto else ""
            return MemoryPlan(chosen, [f"not estimated: {error}"], problem)
        if config.trainer.compile:
            plan.lines.append("estimated for the eager step: trainer.compile may take more or less")
        if auto and gpu is None:
            plan.lines.append("trainer.accumulate=auto is 1 without a GPU; gpu=NAME settles it")
        if plan.problem and not (config.dry_run or named or auto):
            return replace(plan, problem="", warnings=[f"may run out of memory: {plan.problem}"])
        if named and found and named.memory_gib > found.memory_gib + SAME_GIB and not config.dry_run:
            plan.warnings.append(
                f"gpu={config.gpu} has {named.memory_gib:.1f} GiB, but {found.name} {found.memory_gib:.1f} GiB: a step that fits "
                "into the first may not fit into the second."
            )
        return plan

    return MemoryPlan(**strategy.on_main(lambda: asdict(settle())))


def _smallest_gpu(strategy: DistributedStrategy) -> Gpu | None:
    if strategy.device.type != "cuda":
        return None
    own = gpu_of(strategy.device)
    memory = torch.tensor([own.memory_gib], dtype=torch.float64, device=strategy.device)
    smallest = float(strategy.all_reduce(memory, "min"))
    return replace(
        own, memory_gib=smallest, name=own.name if own.memory_gib == smallest else "the smallest GPU of the job"
    )


class _Fit:
    """Estimates by `accumulate`, and what follows for it."""

    def __init__(self, config: RunConfig, world_size: int, memory: StepMemory, plan_of: Callable[[int], Plan]) -> None:
        self.config, self.total, self.world_size, self.memory = config, config.data.batch_size, world_size, memory
        self.is_auto = config.trainer.accumulate == "auto"
        self.most = self.total  # micro-batches of a step; random data have none without an image
        if getattr(config.data, "synthetic", None):
            self.most = max(1, self.total // world_size)
        self.estimate = cache(lambda accumulate: memory(plan_of(accumulate), self.size_of(accumulate)))

    def size_of(self, accumulate: int) -> int:
        """Images of the largest micro-batch of a process."""
        return -(-self.total // (self.world_size * accumulate))

    def fewest(self, most_images: int) -> int:
        """The fewest micro-batches of at most so many images, but no more than the data allow."""
        return min(self.most, -(-self.total // (self.world_size * most_images)))

    def settle(self, gpu: Gpu) -> MemoryPlan:
        """The plan for a GPU of which `SHARE` may be filled."""
        chosen = self.config.trainer.micro_batches
        room = int((gpu.memory_gib - CONTEXT_GIB) * 2**30)
        found, remedy = self.estimate(chosen), ""
        if found.peak > SHARE * room:
            images = largest_fitting(lambda n: self.estimate(self.fewest(n)).peak, found.images, int(SHARE * room))
            enough = self.fewest(images or 1)
            least = self.estimate(enough)
            if self.is_auto:
                chosen, found = enough, least
            elif enough > chosen and least.peak <= room:
                remedy = f"use trainer.accumulate={enough}, with {format_bytes(least.peak)}"
                remedy += ", which may still run out" if least.peak > SHARE * room else ""
        share = (
            f"{100 * found.peak / room:.0f} % of the {format_bytes(room)} that {gpu.name} has beside the CUDA context"
        )
        lines = [str(found), share]
        if self.is_auto and chosen > 1:
            lines += self._statistics(found.images)
        elif remedy:
            lines += [f"with trainer.accumulate={enough}, {line}" for line in self._statistics(least.images)]
        if SHARE * room < found.peak <= room:
            lines.append(f"close to what there is; {remedy or 'it may run out'}")
        if found.peak <= room:
            return MemoryPlan(chosen, lines)
        half = "" if self.config.trainer.precision in ("bf16", "fp16") else "trainer.precision=bf16, "
        problem = (
            f"data.batch_size={self.total} at trainer.accumulate={chosen} needs {format_bytes(found.peak)} on each GPU, of which "
            f"{gpu.name} has {format_bytes(room)} beside the CUDA context; "
            f"{remedy or f'a single image is too much: use {half}smaller images or a larger GPU'}."
        )
        return MemoryPlan(chosen, lines, problem)

    def _statistics(self, images: int) -> list[str]:
        """What micro-batches of so many images change, as lines of the log."""
        if self.memory.batch_norm == "sync_bn" and self.world_size > 1:
            return [
                f"synchronized batch norms see {self.world_size} micro-batches of {images} at a time, one of each process"
            ]
        return [f"batch norms see each micro-batch of {images} by itself"] if self.memory.batch_norm else []


def largest_fitting(peak: Callable[[int], int], too_large: int, room: int) -> int:
    """The largest size below `too_large` whose peak is at most `room`, 0 if none is; `peak` must rise with the size.

    A straight line through the two nearest sizes chooses the next one: peaks are nearly straight, so a few calls are enough.
    """
    low, high = 1, too_large
    if too_large == 1 or peak(1) > room:
        return 0
    while high - low > 1:
        below, above = peak(low), peak(high)
        guess = low + int((room - below) * (high - low) / max(1, above - below))
        size = min(max(guess, low + 1), high - 1)
        low, high = (size, high) if peak(size) <= room else (low, size)
    return low
