"""Settings of the optimizer and of the learning rate's schedule: what all of them have, then each
one's own.
"""

from dataclasses import dataclass
from typing import ClassVar

from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import Entry
from retina_dist.base.settings import MISSING, entry_name, setting


@dataclass
class OptimizerConfig(Entry):
    """Settings of every optimizer; calling it with a `name` makes those of that entry, which are
    below it.
    """

    family: ClassVar[str] = "optimizer"
    default_entry: ClassVar[str] = "sgd"

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


OptimizerSettings = OptimizerConfig  # the name that a class from outside extends


@dataclass
class SGDSettings(OptimizerSettings):
    """torch's SGD."""

    name: str = entry_name("sgd")
    momentum: float = setting(0.9, at_least=0, below=1)
    nesterov: bool = False

    def check(self) -> None:
        """Raise ConfigError for Nesterov's form without a momentum."""
        if self.nesterov and self.momentum == 0:
            raise ConfigError(
                "optimizer.nesterov=true needs a momentum; give optimizer.momentum=0.9."
            )


@dataclass
class AdamSettings(OptimizerSettings):
    """torch's Adam."""

    name: str = entry_name("adam")
    betas: list[float] = setting(
        [0.9, 0.999], "two", at_least=0, below=1, remedy="write two, as [0.9,0.999]"
    )
    eps: float = setting(1e-8, above=0, at_most=1)

    def check(self) -> None:
        """Raise ConfigError unless the betas are a pair."""
        if len(self.betas) != 2:
            raise ConfigError(
                f"optimizer.betas={self.betas} is not a pair of numbers from 0 to below 1."
            )


@dataclass
class AdamWSettings(AdamSettings):
    """torch's AdamW."""

    name: str = entry_name("adamw")


@dataclass
class ScheduleConfig(Entry):
    """Settings of every schedule; calling it with a `name` makes those of that entry, which are
    below it.
    """

    family: ClassVar[str] = "schedule"
    default_entry: ClassVar[str] = "cosine"

    name: str = setting(MISSING, "the group entry's name")
    warmup: str = setting(
        "0steps",
        "a duration; auto: 50 steps, or a tenth of the training if that is shorter; "
        "100steps or auto: auto where 100 steps would fill the training",
        remedy="write a duration, such as 500steps",
    )
    warmup_factor: float = setting(
        0.001, "share of the learning rate at which the warm-up starts", fraction=True
    )


ScheduleSettings = ScheduleConfig  # the name that a class from outside extends


@dataclass
class ConstantSettings(ScheduleSettings):
    """The same rate after the warm-up."""

    name: str = entry_name("constant")


@dataclass
class CosineSettings(ScheduleSettings):
    """Half a cosine."""

    name: str = entry_name("cosine")
    final_factor: float = setting(0.0, "share of the learning rate at the end", fraction=True)


@dataclass
class MultiStepSettings(ScheduleSettings):
    """A lower rate from each milestone on."""

    name: str = entry_name("multistep")
    milestones: list[str] = setting(
        [],
        "durations after which gamma multiplies the rate, such as [16epochs,22epochs]",
        remedy="write durations, such as 8epochs",
    )
    gamma: float = setting(0.1, "the factor at each milestone", above=0, below=1)

    def check(self) -> None:
        """Raise ConfigError without a milestone."""
        if not self.milestones:
            raise ConfigError(
                "schedule=multistep has no milestones; "
                "give schedule.milestones=[16epochs,22epochs]."
            )
