"""The losses of the box regression, a row each: choices, arithmetic and tests follow from
`BOX_LOSSES`.

A row's function must work on any shape without reading a value on the host (no `.item()`, no
selection by a mask), so that it compiles and never waits for a GPU. Settings import this table, so
torch is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class BoxLoss:
    """A loss of one predicted box against its true one, both [..., 4] -> [...].

    Args:
        of: what both tensors are: "offsets" from the anchor, or "boxes" xyxy in pixels.
        function: (predicted, true, beta) -> loss; `beta` is `model.smooth_l1_beta`.
    """

    of: Literal["offsets", "boxes"]
    function: Callable[[Tensor, Tensor, float], Tensor]


def l1_loss(predicted: Tensor, target: Tensor, beta: float) -> Tensor:
    """Sum of absolute differences of the four offsets."""
    return (predicted - target).abs().sum(dim=-1)


def smooth_l1_loss(predicted: Tensor, target: Tensor, beta: float) -> Tensor:
    """Quadratic below `beta`, then linear, summed over the four offsets.

    Girshick 2015, equation 3, https://arxiv.org/abs/1504.08083.
    """
    from torch.nn import functional

    return functional.smooth_l1_loss(predicted, target, reduction="none", beta=beta).sum(dim=-1)


def giou_loss(predicted: Tensor, boxes: Tensor, beta: float = 0.0, eps: float = 1e-7) -> Tensor:
    """1 - generalised IoU, in 0..2.

    Rezatofighi et al. 2019, https://arxiv.org/abs/1902.09630; `eps` as in
    `torchvision.ops.generalized_box_iou_loss`.
    """
    inner = predicted[..., 2:].minimum(boxes[..., 2:]) - predicted[..., :2].maximum(boxes[..., :2])
    intersection = _area(inner).where((inner > 0).all(dim=-1), 0.0)
    union = _box_area(predicted) + _box_area(boxes) - intersection
    hull = _area(
        predicted[..., 2:].maximum(boxes[..., 2:]) - predicted[..., :2].minimum(boxes[..., :2])
    )
    return 1 - intersection / (union + eps) + (hull - union) / (hull + eps)


def _box_area(boxes: Tensor) -> Tensor:
    return _area(boxes[..., 2:] - boxes[..., :2])


def _area(sides: Tensor) -> Tensor:
    width, height = sides.unbind(-1)
    return width * height  # the gradient of `prod` waits for a GPU, to look for zeros


# by the value of `model.box_loss`, as torchvision calls it where torchvision has it
BOX_LOSSES = {
    "l1": BoxLoss("offsets", l1_loss),
    "smooth_l1": BoxLoss("offsets", smooth_l1_loss),
    "giou": BoxLoss("boxes", giou_loss),
}
