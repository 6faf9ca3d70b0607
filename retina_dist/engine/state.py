"""Everything about a run that must survive a restart; learning rate, place in the data and random
numbers follow from `step`.
"""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.optimizer import StateDict

from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.meter import StepMeter
from retina_dist.engine.replicas import copy_each, settings_of
from retina_dist.optim.optimizer import describe_groups, load_optimizer


class ExponentialMovingAverage:
    """A second model whose weights follow the first: w' = d w' + (1 - d) w after every optimizer
    step.

    The decay is d = min(decay, (1 + updates) / (10 + updates)), so that the random start does not
    dominate early averages (TensorFlow's ExponentialMovingAverage with `num_updates`). Running
    statistics are copied; frozen values stay.
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
        copy_each(_statistics(self.model), _statistics(model))

    def state_dict(self) -> StateDict:
        """The averaged weights and the number of updates."""
        return {"model": self.model.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: StateDict) -> None:
        """Load the result of `state_dict`."""
        self.model.load_state_dict(state["model"])
        self.updates = state["updates"]


def _statistics(model: nn.Module) -> list[Tensor]:
    """The buffers that training changes."""
    from torchvision.ops import (
        FrozenBatchNorm2d,
    )  # takes seconds, since it imports torch's compiler

    live = (module for module in model.modules() if not isinstance(module, FrozenBatchNorm2d))
    return [x for module in live for x in module.buffers(recurse=False)]


@dataclass(eq=False)
class TrainState:
    """Model, optimizer, scaler and average, with the counters that belong to them.

    `step` counts finished optimizer steps, `skipped_steps` those skipped for a loss or gradient of
    inf or NaN, `consecutive_skips` those since the last applied one. `last_eval_step`: step of the
    last validation. `meter` gathers metrics between log lines.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: ExponentialMovingAverage | None = None
    best: BestMetric = field(default_factory=BestMetric)
    step: int = 0
    last_eval_step: int = 0
    skipped_steps: int = 0
    consecutive_skips: int = 0

    def __post_init__(self) -> None:
        self._groups = describe_groups(self.model, self.optimizer)
        self.meter = StepMeter()

    @property
    def evaluated_model(self) -> nn.Module:
        """The weights to judge and to ship: the average if there is one."""
        return self.ema.model if self.ema else self.model

    def state_dict(self) -> StateDict:
        """Tensors and plain Python values only, so that it loads with `weights_only=True`. Every
        rank must call it.
        """
        return {
            "step": self.step,
            "best": self.best.state_dict(),
            "last_eval_step": self.last_eval_step,
            "skipped_steps": self.skipped_steps,
            "consecutive_skips": self.consecutive_skips,
            "pending_metrics": self.meter.state_dict(),
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "optimizer": self.optimizer.state_dict(),
            "parameter_groups": self._groups,
            "scaler": self.scaler.state_dict(),
        }

    def replicated(self) -> StateDict:
        """The values that are equal on all ranks, by name: tensors, and the settings of modules and
        parameter groups.
        """
        names: dict[Tensor, str] = {p: name for name, p in self.model.named_parameters()}
        optimizer = {names[p]: values for p, values in self.optimizer.state.items()}
        parts: StateDict = {
            "model": self.model.state_dict(),
            "optimizer": dict(sorted(optimizer.items())),
        }
        if self.ema:
            parts["ema"] = self.ema.model.state_dict()
        groups = list(map(dict, self.optimizer.param_groups))
        for group in groups:
            del group["params"]
        parts["settings"] = settings_of(self.model)
        parts["groups"] = groups
        return parts

    def load_state_dict(self, state: StateDict) -> None:
        """Put back what `state_dict` returned; an average that the state does not hold starts from
        its weights.
        """
        self.step = state["step"]
        self.best.load_state_dict(state["best"])
        self.last_eval_step = state["last_eval_step"]
        self.skipped_steps = state["skipped_steps"]
        self.consecutive_skips = state["consecutive_skips"]
        self.meter.load_state_dict(state["pending_metrics"])
        self.model.load_state_dict(state["model"])
        if self.ema:
            self.ema.load_state_dict(state["ema"] or {"model": state["model"], "updates": 0})
        load_optimizer(
            self.optimizer, state["optimizer"], self._groups, state.get("parameter_groups") or []
        )
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
