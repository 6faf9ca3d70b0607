"""Plans for tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from retina_dist.engine.plan import Plan, TrainerConfig, resolve_plan
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig


def plan_of(
    *,
    num_images: int,
    batch_size: int,
    world_size: int = 1,
    schedule: str = "constant",
    **settings: Any,
) -> Plan:
    """`resolve_plan` with each setting by its own name; checkpoints and checks of the replicas only
    where they are asked for.
    """
    settings = {"checkpoint_every": "0steps", "check_replicas_every": "0steps", **settings}

    def section(kind: Any) -> Any:
        return kind(**{f.name: settings.pop(f.name) for f in fields(kind) if f.name in settings})

    plan = resolve_plan(
        num_images=num_images,
        batch_size=batch_size,
        trainer=section(TrainerConfig),
        optimizer=section(OptimizerConfig),
        schedule=section(type(ScheduleConfig(name=schedule))),
        world_size=world_size,
    )
    assert not settings, settings
    return plan
