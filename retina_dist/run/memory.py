"""Memory of a training step before it runs: whether it fits, and the fewest micro-batches with
which it does.

The real `TrainStep` runs on tensors without memory (`torch._subclasses.FakeTensorMode`). Its live
storages are counted in step two, when the optimizer has its state. docs/planning.md compares
predicted with measured peaks and lists the gaps.
"""

import copy
import logging
import math
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from retina_dist.base.errors import UserError, describe_error
from retina_dist.base.registry import target_of
from retina_dist.base.text import format_bytes
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.nonfinite import NonFiniteGuard
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import resolve_precision
from retina_dist.engine.replicas import trained_parameters
from retina_dist.engine.state import TrainState
from retina_dist.engine.task import Task
from retina_dist.engine.train_step import TrainStep
from retina_dist.run.build import build_state, build_train_step
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import Memory, find_gpu, memory_of
from retina_dist.strategies.settings import HorovodSettings
from retina_dist.strategies.single_device import SingleDeviceStrategy

logger = logging.getLogger(__name__)

# of the rest that a plan may fill: cuDNN's workspaces and the fragmentation of the allocator are
# not known
SHARE = 0.9
BLOCK = 512  # bytes: the CUDA caching allocator rounds each storage up to a multiple
PREFETCHED = 2  # the steps whose batches are on a GPU at a time, see `engine.train_loop.prefetched`
# What autocast computes in float32 on CUDA but not on a CPU, of what models here call:
# https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
_COMPUTED = attrgetter("group_norm", "layer_norm", "softmax", "log_softmax")
FLOAT32_ON_CUDA = {*_COMPUTED(torch), *_COMPUTED(torch.nn.functional)}
PARTS = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer",
    "ema",
    "batches",
    "activations",
    "communication",
)
Function = Callable[..., object]
PlanOf = Callable[[int], Plan]  # by the number of micro-batches


class MemoryEstimate(NamedTuple):
    """Bytes of each part at the moment when their sum is largest; `images` is the size of the
    micro-batch.

    "activations" are all that the passes hold at that moment, for the backward pass or for an
    operator.
    """

    images: int
    parts: dict[str, int]

    @property
    def peak(self) -> int:
        """The sum of all parts."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = []
        for part in PARTS:
            size = self.parts[part]
            if size >= 2**19:
                parts.append(f"{part} {format_bytes(size)}")
        peak = f"peak {format_bytes(self.peak)} at micro-batches of {self.images}"
        return f"{peak}: {', '.join(parts)}"


class NotEstimated(UserError):
    """The step does not run on fake tensors, or the task does not say what its batches are like."""


class StepMemory:
    """Call it with a plan and the images of its micro-batches: the peak of a step on one process,
    for the largest shape.

    `device` is where the step would run. It does not communicate and does not change `task`; it
    seeds random generators. Raises NotEstimated, and any UserError of the task.
    """

    def __init__(self, config: RunConfig, task: Task, device: torch.device) -> None:
        self.on_gpu = device.type != "cpu"
        self.device = device
        self.strategy = SingleDeviceStrategy("cpu")
        self.backend = task.strategy.backend
        self.world_size = task.strategy.world_size
        self.task = copy.copy(task)
        self.task.strategy = self.strategy
        precision = config.trainer.precision
        if precision == "auto" and self.on_gpu:
            precision = "bf16"  # of a GPU that is not here; fp16 takes as much
        precision = resolve_precision(device, precision)
        trainer = replace(config.trainer, compile=False, precision=precision)
        self.config = replace(config, trainer=trainer)
        # a custom task may need what `build_data` leaves
        with (
            _attempt("the model cannot be built before its data"),
            torch.random.fork_rng(devices=[]),
        ):
            model = self.task.build_model(resumed=True)
            self.state = build_state(self.config, model, self.strategy)
        # a scaler in use would wait for values
        self.state.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def __call__(self, plan: Plan, images: int) -> MemoryEstimate:
        with _attempt("the step does not run without data"), warnings.catch_warnings():
            # the key of a folded norm
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            parts = self._traced_step(plan, images)
        parts["batches"] *= plan.accumulate
        if self.on_gpu:
            parts["batches"] *= PREFETCHED
        settings = self.config.strategy
        gradients = sum(p.nbytes for p in trained_parameters(self.state.model))
        if plan.virtual_ranks:  # sums of 1, 2, 4 ... shards
            parts["gradients"] += gradients * (plan.accumulate.bit_length() - 1)
        if self.world_size > 1 and not target_of(settings):  # of which nothing is known
            if isinstance(settings, HorovodSettings) and self.backend.startswith("Horovod"):
                fused = int(settings.fusion_mb * 2**20)
                parts["communication"] += min(gradients, fused)
            if settings.compression != "none":
                parts["communication"] += gradients // 2
        return MemoryEstimate(images, {part: parts[part] for part in PARTS})

    def _traced_step(self, plan: Plan, images: int) -> Counter[str]:
        """Bytes of each part at the peak of a step of one micro-batch."""
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with FakeCopyMode(fake):
            state = copy.deepcopy(self.state)
        with fake, _CudaAutocast() if self.on_gpu else nullcontext():
            batch = self.task.largest_batch(images, self.device)
            if batch is None:
                kind = type(self.task).__name__
                raise NotEstimated(f"{kind}.largest_batch does not say what batches are like")
            if self.on_gpu:  # as the copy to the device makes it
                batch = batch.to(torch.device("cpu"))
            plan = replace(plan, virtual_ranks=None)  # a shard is a micro-batch
            guard = _Applied(state, plan, self.strategy)
            step = build_train_step(self.config, state, plan, self.strategy, guard)
            # DDP's gradients are views of its buckets, and stay
            buckets = self.world_size > 1 and self.backend.startswith("DDP")
            return _traced(state, step, batch, keeps_gradients=buckets or plan.accumulate > 1)


@contextmanager
def _attempt(problem: str) -> Iterator[None]:
    """Raise NotEstimated with the `problem` for any error within it, as code from outside may
    raise, but a UserError.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise NotEstimated(f"{problem} ({describe_error(error)})") from error


class _Applied(NonFiniteGuard):
    """Takes every step for finite, as nothing can be read."""

    def accept(self, norm: Tensor) -> bool:
        return True


class _CudaAutocast(TorchFunctionMode):
    """Autocast to the types of CUDA, as far as they differ from a CPU's."""

    def __torch_function__(
        self, func: Function, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if func in FLOAT32_ON_CUDA and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(Tensor, _as_float32, (args, kwargs))
        return func(*args, **kwargs)


def _as_float32(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() else x


def _traced(state: TrainState, step: TrainStep, batch: Any, keeps_gradients: bool) -> Counter[str]:
    """The parts of the peak of one step of one micro-batch, on fake tensors; kept gradients are
    there before it.
    """
    model = state.model
    trained = trained_parameters(model)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    state.optimizer.step()  # makes its state
    if not keeps_gradients:
        state.optimizer.zero_grad()
    tracker = StorageTracker()
    tracker.add(model.parameters(), "parameters")
    tracker.add(model.buffers(), "buffers")
    if state.ema:
        tracker.add(state.ema.model.state_dict().values(), "ema")
    for values in state.optimizer.state.values():
        tracker.add(values.values(), "optimizer")
    tracker.add((p.grad for p in trained), "gradients")
    fields = vars(batch).values() if hasattr(batch, "__dict__") else batch
    tracker.add(tree_leaves(list(fields)), "batches")
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(lambda p: tracker.add([p.grad], "gradients"))
    with tracker:
        step([batch])
    return tracker.at_peak()


class StorageTracker(TorchDispatchMode):
    """Follows every storage from the operator that returns it to its end; `at_peak` are the bytes
    of each part at the peak.

    torch.distributed._tools.mem_tracker does the same by module, which costs more and knows no EMA.
    """

    def __init__(self) -> None:
        super().__init__()
        # [part, bytes] of the live storages, by their address
        self._live: dict[int, list[object]] = {}
        # (storage, 1 when it comes, -1 when it goes)
        self._events: list[tuple[list[Any], int]] = []

    def __torch_dispatch__(
        self, func: Function, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        self.add(tree_leaves(out), "")
        return out

    def add(self, values: Iterable[object], part: str) -> None:
        """Count the storages of the tensors among `values` as `part`; "" is "activations", or what
        they were.
        """
        for value in values:
            if not isinstance(value, Tensor):
                continue
            storage = value.untyped_storage()
            known = self._live.get(storage._cdata)
            if known is None:
                blocks = math.ceil(storage.nbytes() / BLOCK)
                known = ["activations", blocks * BLOCK]
                self._live[storage._cdata] = known
                self._events.append((known, 1))
                weakref.finalize(storage, self._drop, storage._cdata).atexit = False
            known[0] = part or known[0]

    def _drop(self, address: int) -> None:
        self._events.append((self._live.pop(address), -1))

    def at_peak(self) -> Counter[str]:
        """Bytes of each part when their sum was largest."""
        now: Counter[str] = Counter()
        largest = now.copy()
        for (part, size), sign in self._events:
            now[part] += sign * size
            if now.total() > largest.total():
                largest = now.copy()
        return largest


@dataclass(frozen=True)
class MemoryPlan:
    """The micro-batches of a step, its memory in lines of the log, and why it cannot run, "" if it
    can.
    """

    accumulate: int
    lines: list[str]
    problem: str = ""


def plan_memory(
    config: RunConfig, task: Task, strategy: DistributedStrategy, plan_of: PlanOf
) -> MemoryPlan:
    """Settle `trainer.accumulate` and compare the step with the memory of `config.gpu` or the
    smallest GPU, alike on all ranks.

    A step too large for the GPU in use is a warning, as an estimate may be wrong; it is a problem
    in a dry run, for a GPU that `gpu` names, and where auto finds no number.
    """
    memory = find_gpu(config.gpu) if config.gpu else _smallest_gpu(strategy)
    auto = config.trainer.accumulate == "auto"

    def settle() -> MemoryPlan:
        try:
            step = StepMemory(config, task, torch.device("cuda"))
            plan = _fitted(config, strategy.world_size, step, plan_of, memory)
        except NotEstimated as error:
            problem = f"trainer.accumulate=auto cannot be settled: {error}; give a number."
            lines = [f"not estimated: {error}"]
            return MemoryPlan(config.trainer.micro_batches, lines, problem if auto else "")
        if config.trainer.compile:
            plan.lines.append("estimated for the eager step: trainer.compile may take more or less")
        if plan.problem and not (config.gpu or config.dry_run or auto):
            logger.warning(f"may run out of memory: {plan.problem}")
            return replace(plan, problem="")
        return plan

    return MemoryPlan(**strategy.on_main(lambda: asdict(settle())))


def _smallest_gpu(strategy: DistributedStrategy) -> Memory:
    own = torch.cuda.get_device_properties(strategy.device)
    gib = torch.tensor([own.total_memory / 2**30], dtype=torch.float64, device=strategy.device)
    smallest = float(strategy.all_reduce(gib, "min"))
    name = own.name if float(gib) == smallest else "the smallest GPU of the job"
    return memory_of(name, smallest)


def _fewest_within(estimate: Callable[[int], MemoryEstimate], limit: float, most: int) -> int:
    """The fewest micro-batches whose step fits `limit`, or `most` if none does."""
    fewest = 1
    while fewest < most:
        middle = (fewest + most) // 2
        if estimate(middle).peak <= limit:
            most = middle
        else:
            fewest = middle + 1
    return fewest


def _smaller_shards(virtual_ranks: int | None, batch_size: int) -> str:
    """The remedy of smaller shards, of one image at least; empty if they have one."""
    if not virtual_ranks or virtual_ranks == batch_size:
        return ""
    if 2 * virtual_ranks <= batch_size:
        return f"use trainer.virtual_ranks={2 * virtual_ranks}"
    return f"use data.batch_size={virtual_ranks}"


def _last_remedy(config: RunConfig) -> str:
    """The remedy where no smaller micro-batch fits."""
    has_16_bits = config.trainer.precision in ("auto", "bf16", "fp16")
    half = "" if has_16_bits or config.trainer.virtual_ranks else "trainer.precision=bf16, "
    return f"a single image is too much: use {half}smaller images or more memory"


def _fitted(
    config: RunConfig, ranks: int, step: StepMemory, plan_of: PlanOf, memory: Memory
) -> MemoryPlan:
    """The plan that fills at most `SHARE` of the memory, if there is one."""
    total = config.data.batch_size
    chosen = config.trainer.micro_batches
    limit = SHARE * memory.room

    @cache
    def estimate(accumulate: int) -> MemoryEstimate:
        plan = plan_of(accumulate)
        return step(plan, max(plan.micro_batches))

    virtual_ranks = config.trainer.virtual_ranks
    remedy = _smaller_shards(virtual_ranks, total)
    if not virtual_ranks and estimate(chosen).peak > limit:
        enough = _fewest_within(estimate, limit, most=math.ceil(total / ranks))
        least = estimate(enough).peak
        if config.trainer.accumulate == "auto":
            chosen = enough
        elif enough > chosen and least <= memory.room:
            risk = ", which may still run out" if least > limit else ""
            remedy = f"use trainer.accumulate={enough}, with {format_bytes(least)}{risk}"

    peak = estimate(chosen).peak
    lines = [str(estimate(chosen)), f"{100 * peak / memory.room:.0f} % of the {memory.words}"]
    if peak <= memory.room:
        if peak > limit:
            lines.append(f"above {100 * SHARE:.0f} %; {remedy or 'it may run out'}")
        return MemoryPlan(chosen, lines)
    needs = f"needs {format_bytes(peak)}, more than the {memory.words}"
    problem = (
        f"data.batch_size={total} at trainer.accumulate={chosen} {needs}; "
        f"{remedy or _last_remedy(config)}."
    )
    return MemoryPlan(chosen, lines, problem)
