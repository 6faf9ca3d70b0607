"""Classes that a trained detector learns beside those it knows, which stay as they are to the bit.

Only the added classes' rows of the class layer are trained. Each group of classes has its own
convolution. If one convolution computed all classes, its larger number of outputs could select
another kernel, whose results differ in the last digits.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.detection.readers.categories import Categories
from retina_dist.engine.checkpoint.store import load_checkpoint

PRIOR = 0.01  # the score that a new class starts with; Lin et al. 2017, section 4.1


class GroupedClassLayer(nn.Conv2d):
    """RetinaNet's `cls_logits` of several groups of classes: [B, C, H, W] -> [B, A * K, H, W].

    The first group has the names of torchvision's layer, so that its weights fit.

    Args:
        channels: C.
        anchors: A, of a position.
        sizes: the number of classes of each group, K in all.
    """

    def __init__(self, channels: int, anchors: int, sizes: Sequence[int]) -> None:
        first, *others = [anchors * size for size in sizes]
        super().__init__(channels, first, 3, padding=1)
        self.anchors = anchors
        self.added = nn.ModuleList(nn.Conv2d(channels, rows, 3, padding=1) for rows in others)
        for conv in (self, *self.added):
            nn.init.normal_(conv.weight, std=0.01)
            nn.init.constant_(conv.bias, -math.log((1 - PRIOR) / PRIOR))

    def forward(self, x: Tensor) -> Tensor:
        parts = [super().forward(x), *(conv(x) for conv in self.added)]
        return side_by_side(parts, 1, self.anchors)

    def merged(self) -> nn.Conv2d:
        """One convolution that computes the same, but for rounding."""
        one = nn.Conv2d(self.in_channels, 1, 3, padding=1)
        for name in ("weight", "bias"):
            parts = [conv.get_parameter(name).detach() for conv in (self, *self.added)]
            setattr(one, name, nn.Parameter(side_by_side(parts, 0, self.anchors)))
        one.out_channels = len(one.weight)
        return one


def side_by_side(parts: Sequence[Tensor], dim: int, anchors: int) -> Tensor:
    """Parts with A * K_i values along `dim` as one with A * K, by anchor and then by class."""
    by_anchor = [part.unflatten(dim, (anchors, -1)) for part in parts]
    return torch.cat(by_anchor, dim + 1).flatten(dim, dim + 1)


def merged_state(state: Mapping[str, Tensor], num_classes: int) -> dict[str, Tensor]:
    """`state` with the tensors of one class layer in place of those of a `GroupedClassLayer`."""
    parts: dict[str, list[Tensor]] = {}
    for name, value in state.items():
        parts.setdefault(re.sub(r"(cls_logits\.)added\.\d+\.", r"\1", name), []).append(value)
    merged = {}
    for name, values in parts.items():
        merged[name] = values[0]
        if len(values) > 1:
            anchors = sum(map(len, values)) // num_classes
            merged[name] = side_by_side(values, 0, anchors)
    return merged


def known_network(weights: str | None) -> Mapping[str, object]:
    """The settings of the detector `weights`, with its classes as those that are known.

    Raises ConfigError without weights, CheckpointError for what is not a RetinaNet of a run.
    """
    if not weights:
        raise ConfigError(
            "model.add_classes=true needs model.weights, which is not given; "
            "give model.weights=RUN."
        )
    if re.fullmatch(r"(\w+_Weights\.)?[A-Z][A-Z0-9_]*", weights) and not os.path.exists(weights):
        raise ConfigError(
            f"model.add_classes=true needs a detector of a run, and {weights} is torchvision's; "
            "give model.weights=RUN, or leave model.add_classes out to train all its classes."
        )
    content = load_checkpoint(weights)
    arguments = content.get("model_arguments")
    if not isinstance(arguments, dict):
        raise CheckpointError(
            f"model.add_classes=true needs the checkpoint of a RetinaNet, which {weights} is not; "
            "give model.weights=RUN."
        )
    names = Categories.from_state(content.get("categories", {})).names
    known = list(arguments.get("known_classes") or ())
    learnt = names[len(list(chain.from_iterable(known))) :]
    return {**arguments, "known_classes": [*known, list(learnt)], "num_classes": None}


def differences(weights: str, size: Mapping[str, int]) -> Iterator[str]:
    """Warnings of what makes known classes be detected otherwise than by the detector `weights`.

    `size` is what the run's checkpoints have as "input".
    """
    content = load_checkpoint(weights)
    before = content.get("input", size)
    if before != size:
        changed = [f"{key} {before.get(key)} px, not {now}" for key, now in size.items()]
        yield (
            f"{weights} resizes images to {' and '.join(changed)}; give its data.min_sizes and "
            "data.max_size, or known classes are found in another way"
        )
    if "calibration" in content:
        yield f"the temperature of {weights} is not taken over; evaluate calibrate=true fits one"
