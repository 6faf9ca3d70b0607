"""torch.compile: the training pass as one graph for each shape of a batch."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

logger = logging.getLogger(__name__)


MOST_SHAPES = 2000  # far above what the batches of a data set have


def compile_model(model: nn.Module, num_shapes: int = MOST_SHAPES, **options: Any) -> None:
    """Compile the passes of `model` that train it, a graph for each shape; warns once when there are more than `num_shapes`.

    Further shapes, and passes in evaluation mode or without gradients, run eagerly. `options` are torch.compile's.
    """
    # The graphs of all models of one class count together, each limit in its own way.
    torch._dynamo.config.recompile_limit += num_shapes
    torch._dynamo.config.accumulated_recompile_limit += num_shapes
    model.compile(fullgraph=True, dynamic=False, **options)
    model._compiled_call_impl = _Limited(model)  # type: ignore[assignment]


class _Limited:
    """A compiled model that runs eagerly past Dynamo's limit, where torch.compile with `fullgraph` raises an error."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.full = model, False
        self.compiled: Any = model._compiled_call_impl

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if not (self.model.training and torch.is_grad_enabled()):
            return self.model._call_impl(*inputs, **named)
        try:
            with torch.compiler.set_stance("eager_on_recompile") if self.full else nullcontext():
                return self.compiled(*inputs, **named)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            self.full = True
            limit = torch._dynamo.config.recompile_limit
            logger.warning(
                f"trainer.compile has compiled {limit} shapes, its limit; other shapes run uncompiled from now on"
            )
            return self(*inputs, **named)
