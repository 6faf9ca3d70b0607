"""Plain `torch.optim` optimizers with parameter groups, whose `lr` the trainer sets in each step, and gradient clipping."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.base.registry import class_of
from retina_dist.optim.settings import (
    AdamSettings,
    AdamWSettings,
    OptimizerSettings,
    SGDSettings,
)


def parameter_groups(model: nn.Module, settings: OptimizerSettings) -> list[dict]:
    """The trainable parameters in groups of equal weight decay and `lr_scale`, in the model's order within each.

    `norm_weight_decay` is for normalisation layers, `bias_weight_decay` for other parameters whose names end in "bias"; None means
    `weight_decay`. `backbone_lr_scale` is for `model.backbone_parameters()`; raises ConfigError for a model without that method.
    """
    body: set[nn.Parameter] = set()
    if settings.backbone_lr_scale != 1:
        named: Any = getattr(model, "backbone_parameters", None)
        if named is None:
            given, method = (
                f"optimizer.backbone_lr_scale={settings.backbone_lr_scale:g}",
                "backbone_parameters",
            )
            raise ConfigError(
                f"{given} needs a method {type(model).__name__}.{method}; define it, or set 1."
            )
        body = set(named())
    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    seen: set[nn.Parameter] = set()  # tied weights are one parameter of two modules
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)
            special = settings.bias_weight_decay if name.endswith("bias") else None
            if isinstance(module, norms):
                special = settings.norm_weight_decay
            decay = settings.weight_decay if special is None else special
            scale = settings.backbone_lr_scale if parameter in body else 1.0
            groups.setdefault((decay, scale), []).append(parameter)
    return [
        {"params": ps, "weight_decay": decay, "lr_scale": scale}
        for (decay, scale), ps in groups.items()
    ]


class SGD(torch.optim.SGD):
    """torch's SGD, fused."""

    settings = SGDSettings

    def __init__(self, groups: list[dict], settings: SGDSettings) -> None:
        super().__init__(
            groups,
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            fused=True,
        )


class Adam(torch.optim.Adam):
    """torch's Adam, fused."""

    settings = AdamSettings

    def __init__(self, groups: list[dict], settings: AdamSettings) -> None:
        first, second = settings.betas
        super().__init__(
            groups, lr=settings.lr, betas=(first, second), eps=settings.eps, fused=True
        )


class AdamW(torch.optim.AdamW):
    """torch's AdamW, fused."""

    settings = AdamWSettings

    def __init__(self, groups: list[dict], settings: AdamWSettings) -> None:
        first, second = settings.betas
        super().__init__(
            groups, lr=settings.lr, betas=(first, second), eps=settings.eps, fused=True
        )


def build_optimizer(groups: list[dict], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of the settings' entry over `parameter_groups`. Raises ConfigError when nothing is trainable."""
    if not groups:
        raise ConfigError("the model has no trainable parameter; raise model.trainable_layers.")
    optimizer: torch.optim.Optimizer = class_of(settings)(groups, settings)
    return optimizer


def describe_groups(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings that each parameter group was made with, and the names of its parameters as "names"."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    described = []
    for group in optimizer.param_groups:
        settings = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        described.append({**settings, "names": [names[p] for p in group["params"]]})
    return described


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    groups: list[dict[str, Any]],
    saved_groups: list[dict[str, Any]] | None,
) -> None:
    """Load the values of each parameter from `state`, an optimizer's `state_dict`; settings that were changed stay `optimizer`'s.

    `groups` and `saved_groups` are what `describe_groups` returned for both: parameters are matched by name, so their grouping may
    change. A group's value is loaded where its setting is the same, because an optimizer such as Prodigy keeps estimates there.
    The memory format is the parameter's. Raises CheckpointError where the parameters differ.
    """
    names = [name for group in groups for name in group["names"]]
    saved_names = [name for group in saved_groups or () for name in group["names"]]
    if set(saved_names) != set(names):
        number = sum(len(group["params"]) for group in state["param_groups"])
        raise CheckpointError(
            f"the checkpoint's optimizer has {number} parameters in other groups than the {len(names)} of this run; resume with "
            "its settings of the model, or start a new run with model.weights=FILE."
        )
    merged = optimizer.state_dict()["param_groups"]
    for group, made in zip(merged, groups, strict=True):
        for then, saved in zip(saved_groups or (), state["param_groups"], strict=True):
            if then["names"] == made["names"]:
                same = [
                    k for k in saved if (k in then) == (k in made) and then.get(k) == made.get(k)
                ]
                group |= {k: saved[k] for k in same if k != "params"}
    index = {name: i for i, name in enumerate(saved_names)}
    values = {
        i: state["state"][index[name]]
        for i, name in enumerate(names)
        if index[name] in state["state"]
    }
    optimizer.load_state_dict({"state": values, "param_groups": merged})
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if torch.is_tensor(value):  # copied, so that later steps do not change `state`
                like = parameter if value.shape == parameter.shape else value
                kept[name] = torch.empty_like(like, dtype=value.dtype, device=value.device).copy_(
                    value
                )


def clip_gradients(
    parameters: Iterable[nn.Parameter], limit: float | None, kind: str = "global_norm"
) -> Tensor:
    """Clip all gradients in place and return their total 2-norm before clipping, a scalar on their device.

    "global_norm" scales all gradients by one factor (`torch.nn.utils.clip_grad_norm_`), "tensor_norm" scales each tensor
    separately (`clipnorm` in Keras), "value" clamps each element to [-limit, limit]. `limit=None` only measures.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    if limit is not None and kind == "global_norm":
        return nn.utils.clip_grad_norm_(with_gradient, limit)
    gradients = [p.grad for p in with_gradient if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if limit is None:
        return norm
    if kind == "value":
        torch._foreach_clamp_max_(gradients, limit)
        torch._foreach_clamp_min_(gradients, -limit)
    else:
        for gradient in gradients:
            gradient.mul_((limit / (gradient.norm() + 1e-6)).clamp(max=1.0))
    return norm


def check_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Raise RuntimeError if a gradient, or its optimizer state, has another memory format than its parameter.

    Fused optimizers read both in memory order without a check: the step would be silently wrong (torch 2.15).
    """
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        kept = (
            [x for x in optimizer.state[p].values() if torch.is_tensor(x)]
            if p in optimizer.state
            else []
        )
        for x in (p.grad, *kept):
            if x is not None and x.shape == p.shape and not _same_order(p, x):
                raise RuntimeError(
                    f"a gradient of shape {tuple(p.shape)} has strides {x.stride()}, not {p.stride()}"
                )


def _same_order(a: Tensor, b: Tensor) -> bool:
    """Whether the strides differ only in dimensions of one element."""
    return all(
        size == 1 or i == j for size, i, j in zip(a.shape, a.stride(), b.stride(), strict=True)
    )
