"""Which strategy a job uses."""

import os
from typing import Any

from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import class_of, lookup
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import Launch, detect_launch
from retina_dist.strategies.launchers import LAUNCHERS, Environment, launcher_named
from retina_dist.strategies.settings import AutoSettings, StrategySettings


class AutoStrategy:
    """The strategy that fits the launcher: calling the class makes one of that kind."""

    settings = AutoSettings

    def __new__(cls, settings: StrategySettings, launch: Launch) -> Any:
        return lookup("strategy", launcher_named(launch.launcher).strategies[0])(settings, launch)

    @classmethod
    def refusal(cls, launch: Launch) -> str:
        """Nothing, since the strategy is chosen to fit."""
        return ""


def why_alone(name: str, launch: Launch, environment: Environment = os.environ) -> str | None:
    """Why a job that seems meant for several processes has one; None if nothing suggests it."""
    tasks = environment.get("SLURM_NTASKS", "1")
    if launch.launcher in ("python", "srun") and launch.world_size == 1 and tasks != "1":
        return (
            f"note: Slurm's job has {tasks} tasks, but this process trains alone; "
            "write srun before python for all"
        )
    pair = {"RANK", "WORLD_SIZE"}
    given = pair & environment.keys()
    is_meant = environment.get("WORLD_SIZE") == "1"
    if launch.launcher == "python" and len(given) == 1 and not is_meant:
        (name,) = given
        (absent,) = pair - given
        return (
            f"note: {name}={environment[name]} is set without {absent}, so this process trains "
            f"alone; unset {name}, or start by torchrun"
        )
    for row in LAUNCHERS:
        if launch.launcher == "python" and row.hint and name in row.strategies:
            return (
                f"note: strategy={name} trains on this process alone, as no launcher started it; "
                f"for N: {row.hint} …"
            )
    return None


def strategy_of(
    settings: StrategySettings, *, launch: Launch | None = None, deterministic: bool = False
) -> DistributedStrategy:
    """The strategy of the settings' entry, not entered yet.

    `deterministic` keeps the order of each sum over ranks in a run that is resumed. Raises
    ConfigError when the strategy cannot run under this job's launcher.
    """
    launch = launch or detect_launch()
    kind = class_of(settings)
    reason = kind.refusal(launch)
    if reason:
        raise ConfigError(f"strategy={settings.name} {reason}.")
    strategy: DistributedStrategy = kind(settings, launch)
    strategy.deterministic = deterministic
    return strategy


def make_strategy(
    name: str = "auto",
    *,
    launch: Launch | None = None,
    deterministic: bool = False,
    **settings: Any,
) -> DistributedStrategy:
    """`strategy_of` the entry `name`; `settings` are those of its dataclass."""
    chosen = StrategySettings(name=name, **settings)
    return strategy_of(chosen, launch=launch, deterministic=deterministic)
