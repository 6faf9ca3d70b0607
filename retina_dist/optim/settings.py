"""Settings of the optimizer and of the learning rate's schedule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import MISSING, KnownArguments, setting


@dataclass
class OptimizerSettings(KnownArguments):
    """Settings of every optimizer; a class from outside the package extends them."""

    contract = "torch.optim.Optimizer"

    name: str = setting(MISSING, "the group entry's name")
    lr: float = setting(MISSING, above=0, at_most=1e30)  # far above divergence, and still a float32
    lr_rule: str = setting(
        "none", "scale lr by batch_size / lr_reference_batch", choices=("none", "linear", "sqrt")
    )
    lr_reference_batch: int = setting(16, at_least=1, at_most=10**6)
    weight_decay: float = setting(0.0, at_least=0, at_most=10**3)
    norm_weight_decay: float | None = setting(
        None, "null: as weight_decay", at_least=0, at_most=10**3
    )
    bias_weight_decay: float | None = setting(None, at_least=0, at_most=10**3)
    backbone_lr_scale: float = setting(1.0, at_least=0, at_most=10**4)


@dataclass
class OptimizerConfig(OptimizerSettings):
    """The built-in optimizers: torch's SGD, AdamW and Adam."""

    name: str = setting("sgd", choices=("sgd", "adamw", "adam"))
    momentum: float = setting(0.9, at_least=0, below=1)
    nesterov: bool = False
    betas: list[float] = setting([0.9, 0.999])
    eps: float = setting(1e-8, above=0, at_most=1)

    def check(self, given: Collection[str] = ()) -> None:
        """Raise ConfigError where settings exclude each other; those `given` have a meaning even if they are the defaults."""
        idle, other = (
            (("betas", "eps"), "adamw") if self.name == "sgd" else (("momentum", "nesterov"), "sgd")
        )
        for key in idle:
            if key in given or getattr(self, key) != getattr(OptimizerConfig(), key):
                value = f"optimizer.{key}={getattr(self, key)}"
                raise ConfigError(
                    f"{value} has no effect with optimizer={self.name}; leave it out, or give {other}."
                )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(
                f"optimizer.betas={self.betas} is not a pair of numbers from 0 to below 1."
            )
        if self.nesterov and self.momentum == 0:
            raise ConfigError(
                "optimizer.nesterov=true needs a momentum; give optimizer.momentum=0.9."
            )


@dataclass
class ScheduleSettings(KnownArguments):
    """Settings of every schedule; a class from outside the package extends them."""

    contract = "retina_dist.optim.learning_rate.Decay"

    name: str = setting(MISSING, "the group entry's name")
    warmup: str = setting(
        "0steps", "a duration; auto: 50 steps, or a tenth of the training if that is shorter"
    )
    warmup_factor: float = setting(
        0.001, "share of the learning rate at which the warm-up starts", fraction=True
    )


@dataclass
class ScheduleConfig(ScheduleSettings):
    """The built-in schedules; durations as 16epochs, 1000steps or 5000images."""

    name: str = setting("cosine", choices=("multistep", "cosine", "constant"))
    milestones: list[str] = setting(
        [], "multistep: when gamma multiplies the rate, such as [16epochs,22epochs]"
    )
    gamma: float = setting(0.1, "multistep: the factor at each milestone", fraction=True)
    final_factor: float = setting(
        0.0, "cosine: share of the learning rate at the end", fraction=True
    )

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""
        if self.milestones and self.name != "multistep":
            given = f"schedule.milestones={self.milestones}"
            raise ConfigError(
                f"{given} has no effect with schedule={self.name}; give schedule=multistep, or []."
            )
        if self.name == "multistep" and not self.milestones:
            raise ConfigError(
                "schedule=multistep has no milestones; give schedule.milestones=[16epochs,22epochs]."
            )
        if self.name == "multistep" and not 0 < self.gamma < 1:
            raise ConfigError(
                f"schedule.gamma={self.gamma} does not lower the rate; it must be above 0 and below 1."
            )
