"""Which strategy a job uses. Layer 1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Literal

from retina_dist.errors import ConfigError
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.compression import DEFAULT_FP16_SCALE, Compression
from retina_dist.strategies.launch_environment import BY_LAUNCHER, Launch, StrategyName, detect_launch
from retina_dist.strategies.settings import StrategySettings
from retina_dist.strategies.single_device import SingleDeviceStrategy


def choose_strategy(name: Literal["auto"] | StrategyName, launch: Launch) -> StrategyName:
    """`name`, or what fits the launcher if that is "auto". Raises ConfigError when the two do not go together."""
    if name == "auto":
        return BY_LAUNCHER[launch.launcher]
    if name == "single" and launch.world_size > 1:
        raise ConfigError(
            f"strategy=single under {launch} would train the same model {launch.world_size} times; use strategy=auto, or start it "
            "by python."
        )
    if name == "horovod" and launch.launcher in ("torchrun", "variables"):
        raise ConfigError(
            f"strategy=horovod cannot run under {launch}; start it by horovodrun or mpirun, or use strategy=ddp."
        )
    if name == "ddp" and launch.launcher == "horovodrun":
        raise ConfigError(f"strategy=ddp cannot run under {launch}; start it by torchrun, or use strategy=horovod.")
    return name


def why_alone(name: str, launch: Launch, environment: Mapping[str, str] = os.environ) -> str | None:
    """Why a job that seems to be meant for several processes has this one only; None where nothing speaks for several."""
    tasks = environment.get("SLURM_NTASKS", "1")
    if launch.launcher in ("python", "srun") and launch.world_size == 1 and tasks != "1":
        return (
            f"note: Slurm's job has {tasks} tasks, but this process was not started by srun and trains alone; write srun before "
            "python for all of them"
        )
    if launch.launcher == "python" and name in ("ddp", "horovod"):
        start = "torchrun --nproc-per-node N -m" if name == "ddp" else "horovodrun -np N python -m"
        return (
            f"note: strategy={name} trains on this process alone, as no launcher started it; for N processes: {start} …"
        )
    return None


def strategy_of(
    settings: StrategySettings, *, loss_is_scaled: bool = False, deterministic: bool = False
) -> DistributedStrategy:
    """The strategy of a configuration, not entered yet: a built-in one, or the class that the group's entry names.

    `loss_is_scaled` makes 1 of an open fp16_scale. Raises ConfigError when it cannot run under this job's launcher.
    """
    if settings.fp16_scale is None:
        settings = replace(settings, fp16_scale=1.0 if loss_is_scaled else DEFAULT_FP16_SCALE)
    outside: type[DistributedStrategy] | None = getattr(settings, "implementation", None)
    if outside is None:
        return make_strategy(**asdict(settings), deterministic=deterministic)
    launch = detect_launch()
    if not outside.supports(launch):
        raise ConfigError(
            f"strategy={settings.name} cannot run under {launch}; use another launcher, or strategy=auto."
        )
    return outside(settings, launch)  # type: ignore[call-arg]


def make_strategy(
    name: Literal["auto"] | StrategyName = "auto",
    *,
    device: str = "auto",
    compression: Compression = "none",
    fp16_scale: float = DEFAULT_FP16_SCALE,
    timeout_s: float = 600.0,
    bucket_mb: float = 25.0,
    static_graph: bool = False,
    fusion_mb: float = 32.0,
    cycle_time_ms: float | None = None,
    hierarchical: bool = False,
    reduction: Literal["average", "adasum"] = "average",
    commit_every: int = 10,
    deterministic: bool = False,
    launch: Launch | None = None,
) -> DistributedStrategy:
    """A strategy for this process, not entered yet; the arguments are those of the strategies' classes.

    "auto" is single for a plain python, horovod under horovodrun and mpirun, ddp under the others. Raises ConfigError.
    """
    launch = launch or detect_launch()
    name = choose_strategy(name, launch)
    if reduction != "average" and name != "horovod":
        raise ConfigError(f"strategy.reduction={reduction} is Horovod's; use strategy=horovod, or reduction=average.")
    if name == "single":
        return SingleDeviceStrategy(device)
    if name == "ddp":
        from retina_dist.strategies.ddp import DDPStrategy

        return DDPStrategy(
            launch,
            device=device,
            compression=compression,
            fp16_scale=fp16_scale,
            bucket_mb=bucket_mb,
            static_graph=static_graph,
            timeout_s=timeout_s,
            deterministic=deterministic,
        )
    from retina_dist.strategies.horovod import HorovodStrategy

    return HorovodStrategy(
        launch,
        device=device,
        compression=compression,
        fp16_scale=fp16_scale,
        fusion_mb=fusion_mb,
        cycle_time_ms=cycle_time_ms,
        hierarchical=hierarchical,
        reduction=reduction,
        timeout_s=timeout_s,
        commit_every=commit_every,
        deterministic=deterministic,
    )
