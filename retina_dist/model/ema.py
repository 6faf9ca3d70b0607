"""Exponential moving average of a model's weights. Layer 1."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class ExponentialMovingAverage:
    """A second model whose weights follow the first: w' = d w' + (1 - d) w after every optimizer step.

    The decay d rises as min(decay, (1 + updates) / (10 + updates)), so that early averages are not held back by the random
    start (TensorFlow's ExponentialMovingAverage with `num_updates`). Buffers (batch norm statistics) are copied.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay = decay
        self.updates = 0
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards the weights that `model` has now."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights and the number of updates."""
        return {"model": self.model.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.updates = state["updates"]
