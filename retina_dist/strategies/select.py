"""Which strategy a job uses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from retina_dist.base.errors import ConfigError
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import Launch, detect_launch
from retina_dist.strategies.launchers import launcher_named
from retina_dist.strategies.settings import StrategyConfig, StrategySettings
from retina_dist.strategies.single_device import SingleDeviceStrategy


def choose_strategy(name: str, launch: Launch) -> str:
    """`name`, or what fits the launcher if that is "auto". Raises ConfigError when the two do not go together."""
    if name == "auto":
        return launcher_named(launch.launcher).strategies[0]
    if name == "single" and launch.world_size > 1:
        raise ConfigError(
            f"strategy=single under {launch} would train the same model in each; use strategy=auto."
        )
    if name == "horovod" and launch.launcher in ("torchrun", "variables"):
        raise ConfigError(
            f"strategy=horovod cannot run under {launch}; use horovodrun, mpirun or strategy=ddp."
        )
    if name == "ddp" and launch.launcher == "horovodrun":
        raise ConfigError(
            f"strategy=ddp cannot run under {launch}; start it by torchrun, or use strategy=horovod."
        )
    return name


def why_alone(name: str, launch: Launch, environment: Mapping[str, str] = os.environ) -> str | None:
    """Why a job that seems to be meant for several processes has one; None if nothing suggests several."""
    tasks = environment.get("SLURM_NTASKS", "1")
    if launch.launcher in ("python", "srun") and launch.world_size == 1 and tasks != "1":
        return f"note: Slurm's job has {tasks} tasks, but this process trains alone; write srun before python for all"
    if launch.launcher == "python" and name in ("ddp", "horovod"):
        start = "torchrun --nproc-per-node N -m" if name == "ddp" else "horovodrun -np N python -m"
        return f"note: strategy={name} trains on this process alone, as no launcher started it; for N: {start} …"
    return None


def strategy_of(
    settings: StrategySettings, *, launch: Launch | None = None, deterministic: bool = False
) -> DistributedStrategy:
    """The strategy of a configuration, not entered yet: a built-in one, or the class that the group's entry names.

    Raises ConfigError when the strategy cannot run under this job's launcher.
    """
    launch = launch or detect_launch()
    outside: type[Any] | None = getattr(settings, "implementation", None)
    if outside is not None:
        if not outside.supports(launch):
            raise ConfigError(
                f"strategy={settings.name} cannot run under {launch}; use another, or strategy=auto."
            )
        return outside(settings, launch)
    assert isinstance(settings, StrategyConfig)
    name = choose_strategy(settings.name, launch)
    if name == "single":
        return SingleDeviceStrategy(settings.device)
    if name == "ddp":
        from retina_dist.strategies.ddp import DDPStrategy

        return DDPStrategy(settings, launch, deterministic=deterministic)
    from retina_dist.strategies.horovod import HorovodStrategy

    return HorovodStrategy(settings, launch, deterministic=deterministic)


def make_strategy(
    name: str = "auto",
    *,
    launch: Launch | None = None,
    deterministic: bool = False,
    **settings: Any,
) -> DistributedStrategy:
    """`strategy_of` for a built-in strategy; `settings` are fields of `StrategyConfig`."""
    return strategy_of(
        StrategyConfig(name=name, **settings), launch=launch, deterministic=deterministic
    )
