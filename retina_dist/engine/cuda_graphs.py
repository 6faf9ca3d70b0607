"""Forward and backward pass as one CUDA graph for each shape of a batch: one launch instead of a thousand.

Batches come in few shapes, since they are padded. Gradient reduction and optimizer stay outside of the graphs, so
that every strategy can use them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from retina_dist.errors import UserError

logger = logging.getLogger(__name__)

WARM_UP = 3  # runs before a capture: libraries choose their algorithms in them
# The first torch whose allocator leaves capture mode when the end of a capture fails (https://github.com/pytorch/pytorch/pull/180395).
ENDS_CAPTURE = "2.13"

Losses = dict[str, Tensor]


class Captured(Protocol):
    """What runs the same work again on the same memory."""

    def replay(self) -> None: ...


@dataclass
class _Slot:
    """One graph with its inputs and outputs."""

    batch: Any
    weight: Tensor
    graph: Captured
    losses: Losses


class CUDAGraphRunner:
    """Call it with a batch and its weight: it adds gradients to each `p.grad` and returns the losses, as `work` would.

    `work` is the forward and the backward pass. The first batch of a shape is captured; buffers and gradients of `model` are then
    as if the warm-up had not been. Gradients stay where they are: zero them, do not drop them. Losses are overwritten by the next
    call. When a capture fails, it warns and calls `work` without graphs; raises UserError where torch cannot run on.
    All shapes share the memory of their inputs, since only one graph runs at a time: it holds the largest batch, at most four
    times, where an input for each canvas of a training at several scales would take gigabytes.
    """

    def __init__(
        self,
        model: nn.Module,
        work: Callable[[Any, Any], Losses],
        device: torch.device,
        capture: Callable[[Callable[[], Losses]], tuple[Captured, Losses]] | None = None,
    ) -> None:
        self.model, self.work, self.device = model, work, device
        self.capture = capture or _CudaCapture()
        self.failed = False
        self._inputs: dict[
            tuple[str, torch.dtype], Tensor
        ] = {}  # flat; graphs captured before it grew keep the older one
        self._slots: dict[tuple[Any, ...], _Slot] = {}
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def __call__(self, batch: Any, weight: float) -> Losses:
        key = tuple((tuple(x.shape), x.dtype, x.stride()) for x in _tensors(batch).values())
        if key not in self._slots and not self.failed:
            self._capture_slot(key, batch)
        if key not in self._slots:
            return self.work(batch, weight)
        slot = self._slots[key]
        for name, tensor in _tensors(batch).items():
            getattr(slot.batch, name).copy_(tensor, non_blocking=True)
        slot.weight.fill_(weight)
        slot.graph.replay()
        return slot.losses

    def _capture_slot(self, key: tuple[Any, ...], batch: Any) -> None:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        batch = replace(batch, **{name: self._input(name, x) for name, x in _tensors(batch).items()})
        weight = torch.ones((), device=self.device, dtype=parameters[0].dtype)
        held = [(x, x.clone()) for x in [*self.model.buffers(), *(p.grad for p in parameters)] if x is not None]
        try:
            self._slots[key] = _Slot(batch, weight, *self.capture(lambda: self.work(batch, weight)))
        except RuntimeError as error:  # out of memory, or something that cannot be captured
            self.failed = True
            logger.warning(f"no further CUDA graphs are captured, because one could not be ({_first_line(error)})")
        for tensor, before in held:
            tensor.copy_(before)

    def _input(self, name: str, like: Tensor) -> Tensor:
        """A copy of `like` in the memory that graphs read this input from."""
        key, count = (name, like.dtype), like.numel()
        held = self._inputs.get(key)
        # doubled at least, so that the older ones add up to no more than this one
        if held is None or len(held) < count:
            self._inputs[key] = held = like.new_empty(count if held is None else max(count, 2 * len(held)))
        layout = torch.empty_like(like, device="meta").stride()
        return held[:count].as_strided(like.shape, layout).copy_(like)


class _CudaCapture:
    """Warm-up and capture on a side stream; all graphs share one memory pool, since only one of them runs at a time."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Losses]) -> tuple[Captured, Losses]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        losses: Losses = {}
        failure: RuntimeError | None = None
        try:
            # other threads may use CUDA meanwhile, for example to pin memory for the next batch
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                try:
                    losses = {name: value.detach() for name, value in work().items()}
                except RuntimeError as error:  # raised once the capture has ended
                    failure = error
        except RuntimeError as error:
            failure = failure or error
            if torch.__version__ < ENDS_CAPTURE:
                raise UserError(
                    f"a CUDA graph could not be captured ({_first_line(failure)}), and torch {torch.__version__} cannot run on "
                    f"after that, as {ENDS_CAPTURE} can; set trainer.cuda_graphs=false."
                ) from failure
        if failure:
            raise failure
        return graph, losses


def _first_line(error: RuntimeError) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _tensors(batch: Any) -> dict[str, Tensor]:
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
