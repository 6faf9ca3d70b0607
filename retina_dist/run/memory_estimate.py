"""Peak memory of a training step before it runs: the real `TrainStep` on fake tensors, whose live storages are counted.

Tensors are of the CPU and hold no memory (`torch._subclasses.FakeTensorMode`); the second step is counted, in which the
optimizer has its state. docs/planning.md has it against measured peaks, and says what is not modelled.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.nonfinite import NonFiniteGuard
from retina_dist.engine.plan import Plan
from retina_dist.engine.state import TrainState
from retina_dist.engine.train_step import TrainStep
from retina_dist.errors import UserError
from retina_dist.files import first_line
from retina_dist.model.assumed_device import assume_cuda
from retina_dist.model.sync_batch_norm import SyncBatchNorm2d
from retina_dist.run.build import build_state, build_train_step
from retina_dist.strategies.settings import StrategyConfig
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task import Task
from retina_dist.text import format_bytes

BLOCK = 512  # bytes: the CUDA caching allocator rounds each storage up to a multiple
PREFETCHED = 2  # the steps whose batches are on a GPU at a time, see `engine.prefetch`


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of each part at the moment when their sum is largest; `images` are those of the micro-batch.

    `activations` are kept for the backward pass, `temporaries` are all else that lives at that moment.
    """

    images: int
    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer: int = 0
    ema: int = 0
    batches: int = 0
    activations: int = 0
    temporaries: int = 0
    communication: int = 0

    @property
    def peak(self) -> int:
        """The sum of all parts."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Bytes by name, without the parts that are empty."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "images"}
        return {name: size for name, size in named.items() if size}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.parts().items() if size >= 2**19)
        return f"peak {format_bytes(self.peak)} at micro-batches of {self.images}: {parts}"


class NotEstimated(UserError):
    """The step does not run on fake tensors, or the task does not say what its batches are like."""


class StepMemory:
    """Call it with a plan and the images of its micro-batches: the peak of a step on one process, for the largest shape.

    `device` is where the step would run; if it is a GPU, the batches of `prefetched` steps are there at a time. It does not
    communicate, and changes no state of the process or of `task`. Raises NotEstimated, also where the model cannot be built before
    `Task.build_data`, and any UserError of the task.

    `batch_norm` is "bn" or "sync_bn" where the model has such norms, else "".
    """

    def __init__(self, config: RunConfig, task: Task, device: torch.device, prefetched: int = PREFETCHED) -> None:
        self.prefetched = prefetched
        self.task, self.device, self.strategy = copy.copy(task), device, SingleDeviceStrategy("cpu")
        self.backend, self.world_size = task.strategy.backend, task.strategy.world_size
        self.task.strategy = self.strategy
        self.config = replace(config, trainer=replace(config.trainer, compile=False))
        try:
            with torch.random.fork_rng(devices=[]):
                self.state = build_state(self.config, self.task.build_model(resumed=True), self.strategy)
        except UserError:
            raise
        except Exception as error:  # a task from outside may need what `build_data` leaves
            raise NotEstimated(f"the model cannot be built before its data ({first_line(error)})") from error
        norms = [m for m in self.state.model.modules() if isinstance(m, _BatchNorm)]
        synchronized = any(isinstance(m, (SyncBatchNorm2d, torch.nn.SyncBatchNorm)) for m in norms)
        self.batch_norm = "sync_bn" if synchronized else "bn" if norms else ""
        self.state.scaler = torch.amp.GradScaler("cpu", enabled=False)  # which would wait for values

    def __call__(self, plan: Plan, images: int) -> MemoryEstimate:
        on_gpu = self.device.type != "cpu"
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with FakeCopyMode(fake):
                state = copy.deepcopy(self.state)
            with fake, assume_cuda() if on_gpu else nullcontext(), warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "Accessing the data pointer of FakeTensor"
                )  # the key of a folded norm
                batch = self.task.largest_batch(images, self.device)
                if batch is None:
                    raise NotEstimated(f"{type(self.task).__name__}.largest_batch does not say what batches are like")
                batch, making = _on_device(batch) if on_gpu else (batch, 0)
                guard = _Applied(state, plan, self.strategy)
                step = build_train_step(self.config, state, plan, self.strategy, guard)
                parts = _traced(state, step, batch, self._keeps_gradients() or plan.accumulate > 1)
        except UserError:
            raise
        except Exception as error:  # a model from outside may do what fake tensors cannot
            raise NotEstimated(f"the step does not run without data ({first_line(error)})") from error
        parts["batches"] = making + parts["batches"] * plan.accumulate * (self.prefetched if on_gpu else 1)
        gradients = sum(p.numel() * p.element_size() for p in self.state.model.parameters() if p.requires_grad)
        return MemoryEstimate(images, communication=self._sending_bytes(gradients), **parts)

    def _keeps_gradients(self) -> bool:
        """Whether gradients stay allocated between steps: DDP's are views of its buckets."""
        return self.world_size > 1 and self.backend.startswith("DDP")

    def _sending_bytes(self, gradients: int) -> int:
        """Memory that sending gradients of so many bytes takes beside them, at most; of an outside strategy nothing is known."""
        if self.world_size == 1 or not isinstance(self.config.strategy, StrategyConfig):
            return 0
        wire = 0 if self.config.strategy.compression == "none" else gradients // 2
        fused = int(self.config.strategy.fusion_mb * 2**20) if self.backend.startswith("Horovod") else 0
        return min(gradients, fused) + wire


class _Applied(NonFiniteGuard):
    """Takes every step for finite, as nothing can be read."""

    def accept(self, norm: Tensor) -> bool:
        return True


def _on_device(batch: Any) -> tuple[Any, int]:
    """The batch as the step gets it, and the bytes that making it took beside; they are of a stream's own pool, so they stay."""
    tracker = StorageTracker()
    tracker.add(_tensors(batch), "batches")
    with tracker:
        there = batch.to("cpu")
    result = StorageTracker()
    result.add(_tensors(there), "batches")
    return there, sum(tracker.at_peak().values()) - sum(result.at_peak().values())


def _tensors(batch: Any) -> list[Any]:
    return tree_leaves(list(vars(batch).values()) if hasattr(batch, "__dict__") else list(batch))


def _traced(state: TrainState, step: TrainStep, batch: Any, keeps_gradients: bool) -> dict[str, int]:
    """The parts of the peak of one step of one micro-batch, on fake tensors; kept gradients are there before it."""
    model = state.model
    trained = [p for p in model.parameters() if p.requires_grad]
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
    tracker.add((v for values in state.optimizer.state.values() for v in values.values()), "optimizer")
    tracker.add((p.grad for p in trained), "gradients")
    tracker.add(_tensors(batch), "batches")
    hooks = [p.register_post_accumulate_grad_hook(lambda p: tracker.add([p.grad], "gradients")) for p in trained]
    hooks.append(model.register_forward_hook(lambda *_: tracker.rename("temporaries", "activations")))
    with tracker:
        step([batch])
    for hook in hooks:
        hook.remove()
    return tracker.at_peak()


class StorageTracker(TorchDispatchMode):
    """Follows every storage from the operator that returns it to its end; `at_peak` are the bytes of each part at the peak.

    torch.distributed._tools.mem_tracker does the same by module, which costs more and knows no EMA.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[int, int] = {}  # of the live storages, by their address
        self._watched: list[Any] = []  # references that end with them
        self._parts: list[str] = []  # of each number
        self._events: list[tuple[int, int]] = []  # (number, bytes that come or go)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add((x for x in tree_leaves(out)), "")
        return out

    def add(self, values: Iterable[Any], part: str) -> None:
        """Count the storages of the tensors among `values` as `part`; "" is "temporaries", or what they were."""
        for tensor in values:
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            address = storage._cdata
            if address not in self._numbers:
                number = self._numbers[address] = len(self._parts)
                size = -(-storage.nbytes() // BLOCK) * BLOCK
                self._parts.append("temporaries")
                self._events.append((number, size))
                weakref.finalize(storage, self._drop, address, number, size).atexit = False
            if part:
                self._parts[self._numbers[address]] = part

    def _drop(self, address: int, number: int, size: int) -> None:
        del self._numbers[address]
        self._events.append((number, -size))

    def rename(self, old: str, new: str) -> None:
        """Make `new` of the live storages that are `old`."""
        for number in self._numbers.values():
            if self._parts[number] == old:
                self._parts[number] = new

    def at_peak(self) -> dict[str, int]:
        """Bytes of each part when their sum was largest."""
        now: dict[str, int] = defaultdict(int)
        total, peak, found = 0, -1, dict(now)
        for number, change in self._events:
            now[self._parts[number]] += change
            total += change
            if total > peak:
                peak, found = total, dict(now)
        return defaultdict(int, found)
