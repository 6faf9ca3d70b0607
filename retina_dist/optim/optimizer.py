"""Plain `torch.optim` optimizers with parameter groups.

Layer 1. The trainer writes the learning rate of each step into the groups: `lr` is the base rate, which the schedule's factor
and a group's `lr_scale` multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from retina_dist.errors import ConfigError
from retina_dist.optim.settings import OptimizerConfig, OptimizerSettings

OptimizerName = Literal["sgd", "adamw", "adam"]


def optimizer_of(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of a configuration: a built-in one, or the class that the group's entry names, made by CLASS(groups, settings).

    Raises ConfigError when nothing is trainable.
    """
    groups = parameter_groups(
        model,
        weight_decay=settings.weight_decay,
        norm_weight_decay=settings.norm_weight_decay,
        bias_weight_decay=settings.bias_weight_decay,
        backbone_lr_scale=settings.backbone_lr_scale,
    )
    outside: Any = getattr(settings, "implementation", None)
    if outside is not None:
        _check_trainable(groups)
        found: torch.optim.Optimizer = outside(groups, settings)
        return found
    assert isinstance(settings, OptimizerConfig)
    return build_optimizer(
        groups,
        name=settings.name,  # type: ignore[arg-type]
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        betas=settings.betas,
        eps=settings.eps,
    )


def parameter_groups(
    model: nn.Module,
    *,
    weight_decay: float,
    norm_weight_decay: float | None = None,
    bias_weight_decay: float | None = None,
    backbone_prefix: str = "backbone.body.",
    backbone_lr_scale: float = 1.0,
) -> list[dict]:
    """The trainable parameters in groups of equal weight decay and `lr_scale`, in the model's order within each.

    `norm_weight_decay` is for the parameters of normalisation layers, `bias_weight_decay` for all other biases; None means
    `weight_decay`, as everywhere else.
    """
    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            special = norm_weight_decay if isinstance(module, norms) else bias_weight_decay if name == "bias" else None
            decay = weight_decay if special is None else special
            scale = backbone_lr_scale if f"{module_name}.".startswith(backbone_prefix) else 1.0
            groups.setdefault((decay, scale), []).append(parameter)
    return [{"params": ps, "weight_decay": decay, "lr_scale": scale} for (decay, scale), ps in groups.items()]


def build_optimizer(
    groups: list[dict],
    *,
    name: OptimizerName,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = False,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> torch.optim.Optimizer:
    """SGD (momentum, nesterov), AdamW (decoupled decay) or Adam (betas, eps) over `parameter_groups`, as one fused operator.

    Raises ConfigError when nothing is trainable.
    """
    _check_trainable(groups)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind(groups, lr=lr, betas=(betas[0], betas[1]), eps=eps, fused=True)


def _check_trainable(groups: list[dict]) -> None:
    if not groups:
        raise ConfigError("the model has no trainable parameter; raise model.trainable_layers.")


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`optimizer.load_state_dict(state)`, except for what depends on this machine.

    That is whether steps are fused, and the memory format of the state, which is its parameter's.
    """
    fused = [group.get("fused") for group in optimizer.param_groups]
    groups = [{**group, "fused": now} for group, now in zip(state["param_groups"], fused, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": groups})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if torch.is_tensor(value):  # copied, so that later steps do not change `state`
                like = parameter if value.shape == parameter.shape else value
                values[name] = torch.empty_like(like, dtype=value.dtype, device=value.device).copy_(value)


def check_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Raise RuntimeError if a gradient, or its optimizer state, has another memory format than its parameter.

    Fused optimizers read both in memory order without a check: the step would be silently wrong (torch 2.15).
    """
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        kept = [x for x in optimizer.state[p].values() if torch.is_tensor(x)] if p in optimizer.state else []
        for x in (p.grad, *kept):
            if x is not None and x.shape == p.shape and not _same_order(p, x):
                raise RuntimeError(f"a gradient of shape {tuple(p.shape)} has strides {x.stride()}, not {p.stride()}")


def _same_order(a: Tensor, b: Tensor) -> bool:
    """Whether the strides differ only in dimensions of one element."""
    return all(size == 1 or i == j for size, i, j in zip(a.shape, a.stride(), b.stride(), strict=True))
