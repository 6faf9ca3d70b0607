"""Exponential moving average of a model's weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d


class ExponentialMovingAverage:
    """A second model whose weights follow the first: w' = d w' + (1 - d) w after every optimizer step.

    The decay is d = min(decay, (1 + updates) / (10 + updates)), so that the random start does not dominate early averages
    (TensorFlow's ExponentialMovingAverage with `num_updates`). Running statistics are copied; frozen values stay.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay = decay
        self.updates = 0
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the current weights of `model`."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        weights = zip(self.model.parameters(), model.parameters(), strict=True)
        mine, theirs = zip(*((a, b) for a, b in weights if b.requires_grad), strict=True)
        torch._foreach_lerp_(mine, theirs, 1 - decay)
        by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}  # one kernel launch per type
        for pair in zip(_running_statistics(self.model), _running_statistics(model), strict=True):
            by_type.setdefault(pair[0].dtype, []).append(pair)
        for pairs in by_type.values():
            mine, theirs = zip(*pairs, strict=True)
            torch._foreach_copy_(mine, theirs)

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights and the number of updates."""
        return {"model": self.model.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self.model.load_state_dict(state["model"])
        self.updates = state["updates"]


def _running_statistics(model: nn.Module) -> Iterator[Tensor]:
    """The buffers that training changes."""
    for module in model.modules():
        if not isinstance(module, FrozenBatchNorm2d):
            yield from module.buffers(recurse=False)
