"""Clipping of gradients."""

from collections.abc import Iterable

from torch import Tensor, nn


def clip_gradients(
    parameters: Iterable[nn.Parameter], limit: float | None, kind: str = "global_norm"
) -> Tensor:
    """Clip all gradients in place and return their total 2-norm before clipping, a scalar on their
    device.

    "global_norm" scales all gradients by one factor (`torch.nn.utils.clip_grad_norm_`),
    "tensor_norm" scales each tensor separately (`clipnorm` in Keras), "value" clamps each element
    to [-limit, limit]. `limit=None` only measures.
    """
    parameters = list(parameters)
    if limit is not None and kind == "global_norm":
        return nn.utils.clip_grad_norm_(parameters, limit)
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if limit is None:
        return norm
    if kind == "value":
        nn.utils.clip_grad_value_(parameters, limit)
    else:
        for gradient in gradients:
            gradient.mul_((limit / (gradient.norm() + 1e-6)).clamp(max=1.0))
    return norm
