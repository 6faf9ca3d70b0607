"""The all-reduce in 16 bits: `compression` of both backends.

bf16 keeps the range and 8 bits of mantissa. fp16 keeps 11 bits in a narrow range: gradients are
multiplied by a fixed power of two first, and a step in which one of them leaves the range is sent
again in full. A sum over ranks could leave fp16's range where no summand does, so each rank sends
its share of the mean.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

WIRE_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


def to_wire(gradient: Tensor, compression: str, scale: float, world_size: int) -> Tensor:
    """This rank's share of the mean [*], in 16 bits."""
    factor = (scale if compression == "fp16" else 1.0) / world_size
    return gradient.mul(factor).to(WIRE_DTYPE[compression])


def take_fp16(
    sent: Sequence[tuple[Tensor, Tensor]], scale: float, mean: Callable[[Tensor], Tensor]
) -> bool:
    """Put the means into the gradients, pairs of this rank's own [*] and the sum of all shares.

    Whether fp16 overflowed.

    If any sum left fp16's range, all gradients become their `mean` over ranks, sent in full.
    """
    if all_finite(wire for _, wire in sent):
        for own, wire in sent:
            own.copy_(wire).div_(scale)
        return False
    for own, _ in sent:
        own.copy_(mean(own))
    # gradients that were infinite before compression are left to the loss scale
    return all_finite(own for own, _ in sent)


def all_finite(gradients: Iterable[Tensor]) -> bool:
    """Whether no gradient holds an infinity or NaN; waits for the device."""
    filled = [gradient for gradient in gradients if gradient.numel()]
    if not filled:
        return True
    norms = torch._foreach_norm(filled, float("inf"))
    return bool(torch.stack(list(map(torch.isfinite, norms))).all())
