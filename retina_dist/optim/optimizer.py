"""Plain `torch.optim` optimizers with parameter groups, whose `lr` the trainer sets in each step,
and gradient clipping.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import StateDict

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.base.registry import class_of
from retina_dist.optim.settings import AdamSettings, AdamWSettings, OptimizerSettings, SGDSettings

Group = dict[str, Any]  # parameters and their settings


def parameter_groups(model: nn.Module, settings: OptimizerSettings) -> list[Group]:
    """The trainable parameters in groups of equal weight decay and `lr_scale`.

    In each group they have the model's order. `norm_weight_decay` is for normalisation layers,
    `bias_weight_decay` for other parameters whose names end in "bias"; None means `weight_decay`.
    `backbone_lr_scale` is for `model.backbone_parameters()`; raises ConfigError for a model
    without that method.
    """
    backbone = set()
    if settings.backbone_lr_scale != 1:
        named: Callable[[], Iterable[nn.Parameter]] | None = getattr(
            model, "backbone_parameters", None
        )
        if named is None:
            raise ConfigError(
                f"optimizer.backbone_lr_scale={settings.backbone_lr_scale:g} needs a method "
                f"{type(model).__name__}.backbone_parameters; define it, or set 1."
            )
        backbone = set(named())

    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
    groups: dict[tuple[float, float], Group] = {}
    seen = set()  # tied weights are one parameter of two modules
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or parameter in seen:
                continue
            seen.add(parameter)

            decay = None
            if isinstance(module, norms):
                decay = settings.norm_weight_decay
            elif name.endswith("bias"):
                decay = settings.bias_weight_decay
            if decay is None:
                decay = settings.weight_decay
            scale = settings.backbone_lr_scale if parameter in backbone else 1.0
            empty = {"params": [], "weight_decay": decay, "lr_scale": scale}
            groups.setdefault((decay, scale), empty)["params"].append(parameter)
    return list(groups.values())


class SGD(torch.optim.SGD):
    """torch's SGD, fused."""

    settings = SGDSettings

    def __init__(self, groups: list[Group], settings: SGDSettings) -> None:
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

    def __init__(self, groups: list[Group], settings: AdamSettings) -> None:
        super().__init__(groups, **_options(settings))


class AdamW(torch.optim.AdamW):
    """torch's AdamW, fused."""

    settings = AdamWSettings

    def __init__(self, groups: list[Group], settings: AdamWSettings) -> None:
        super().__init__(groups, **_options(settings))


def _options(settings: AdamSettings) -> Group:
    betas = tuple(settings.betas)
    return {"lr": settings.lr, "betas": betas, "eps": settings.eps, "fused": True}


def build_optimizer(groups: list[Group], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of the settings' entry over `parameter_groups`. Raises ConfigError when nothing
    is trainable.
    """
    if not groups:
        raise ConfigError("the model has no trainable parameter; raise model.trainable_layers.")
    return class_of(settings)(groups, settings)


def describe_groups(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Group]:
    """The settings that each parameter group was made with, and its parameters' names
    as "names".
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    described = []
    for group in optimizer.param_groups:
        settings = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        described.append({**settings, "names": [names[p] for p in group["params"]]})
    return described


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    state: StateDict,
    groups: list[Group],
    saved_groups: list[Group],
) -> None:
    """Load what an optimizer keeps for each parameter; settings that were changed stay
    `optimizer`'s.

    Parameters are matched by name, so their grouping may change. A group's value is loaded where
    its setting is the same, because an optimizer such as Prodigy keeps estimates there. The memory
    format is the parameter's.

    Args:
        optimizer: the one of this run.
        state: the saved optimizer's `state_dict`.
        groups: what `describe_groups` returned for this run.
        saved_groups: what it returned for the saved one.

    Raises CheckpointError where the parameters differ.
    """
    names = _names(groups)
    saved_names = _names(saved_groups)
    if set(saved_names) != set(names):
        number = sum(len(group["params"]) for group in state["param_groups"])
        raise CheckpointError(
            f"the checkpoint's optimizer has {number} parameters in other groups than the "
            f"{len(names)} of this run; resume with its settings of the model, or start a new run "
            "with model.weights=FILE."
        )

    merged = optimizer.state_dict()["param_groups"]
    for group, made in zip(merged, groups, strict=True):
        for saved_made, saved in zip(saved_groups, state["param_groups"], strict=True):
            if made["names"] == saved_made["names"]:
                group |= _unchanged(made, saved_made, saved)

    number_of = {name: number for number, name in enumerate(names)}
    values = {number_of[saved_names[number]]: kept for number, kept in state["state"].items()}
    optimizer.load_state_dict({"state": values, "param_groups": merged})
    # copies in the parameter's memory format; later steps change them
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if torch.is_tensor(value):
                like = parameter if value.shape == parameter.shape else value
                copied = torch.empty_like(like, dtype=value.dtype, device=value.device)
                kept[name] = copied.copy_(value)


def _unchanged(made: Group, saved_made: Group, saved: Group) -> Group:
    """The values of a saved group whose settings are those of this run."""
    values = {}
    none = object()  # where a group lacks the setting
    for key, value in saved.items():
        if key != "params" and saved_made.get(key, none) == made.get(key, none):
            values[key] = value
    return values


def _names(groups: list[Group]) -> list[str]:
    return [name for group in groups for name in group["names"]]


def check_layouts(optimizer: torch.optim.Optimizer) -> None:
    """Raise RuntimeError if a gradient, or its optimizer state, has another memory format than its
    parameter.

    Fused optimizers read both in memory order without a check: the step would be silently wrong
    (torch 2.15).
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            kept = list(optimizer.state.get(parameter, {}).values())
            for tensor in (parameter.grad, *kept):
                if not torch.is_tensor(tensor) or tensor.shape != parameter.shape:
                    continue
                if not _same_order(parameter, tensor):
                    raise RuntimeError(
                        f"a gradient of shape {tuple(parameter.shape)} has strides "
                        f"{tensor.stride()}, not {parameter.stride()}"
                    )


def _same_order(a: Tensor, b: Tensor) -> bool:
    """Whether the strides differ only in dimensions of one element."""
    sizes = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(size == 1 or stride == other for size, stride, other in sizes)
