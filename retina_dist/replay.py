"""Repeat a step whose loss or gradient was not finite, from the weights it had.

    python -m retina_dist.replay event=runs/shapes/nonfinite_00000012.json

A single process repeats the batches of all ranks, one after the other, in the precision of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from retina_dist.config.builtin_tasks import task_of_checkpoint
from retina_dist.config.commands import ReplayConfig
from retina_dist.config.compose import settings_of
from retina_dist.config.entry_point import entry_point
from retina_dist.config.fields import validate
from retina_dist.config.train import TrainConfig
from retina_dist.detection.splits import data_of_checkpoint
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.checkpoint_store import load_checkpoint
from retina_dist.engine.nonfinite import inspection
from retina_dist.engine.precision import autocast
from retina_dist.errors import ConfigError
from retina_dist.files import read_bytes
from retina_dist.optim.clipping import clip_gradients
from retina_dist.run.build import build_state
from retina_dist.strategies.select import make_strategy
from retina_dist.torch_files import remedy_of

NUMBER = (int, float)
FIELDS: dict[str, Any] = {
    "step": int,
    "steps_before": int,
    "world_size": int,
    "epoch": NUMBER,
    "lr": NUMBER,
    "ranks": list,
}
FIELDS["checkpoint"] = (str, type(None))


def replay(config: ReplayConfig) -> None:
    """Print each batch's losses, gradient norm and first module whose output is not finite, and each image's losses."""
    path = Path(config.event)
    event = _read(path)
    if not event["checkpoint"]:
        raise ConfigError(
            f"event={path} has no checkpoint (a run keeps those of its first events only); replay an earlier event."
        )
    content = load_checkpoint(path.parent / event["checkpoint"])
    if (name := task_of_checkpoint(content)) != "detection":
        raise ConfigError(f"event={path} is of task={name}; replay repeats steps of task=detection only.")
    settings = settings_of(content.get("config"), TrainConfig, remedy_of(content))
    validate(settings)
    # resize as the run did, whatever the device; an uncompiled model has modules to hook
    data_settings = data_of_checkpoint(settings.data, config.root, event["checkpoint"])
    data_settings = replace(data_settings, num_workers=0, resize=content.get("resize", settings.data.resize))
    settings = replace(settings, data=data_settings, trainer=replace(settings.trainer, compile=False))
    with make_strategy("single", device=config.device) as strategy:
        task = DetectionTask(settings, strategy)
        task.load_checkpoint_state(content.get("categories", {}), event["checkpoint"])
        model = task.build_model(resumed=True, checkpoint=content)
        state = build_state(settings, model, strategy)
        state.load_state_dict(content)
        data = task.build_data()
        inner = autocast(strategy.device, settings.trainer.precision)  # type: ignore[arg-type]
        print(f"step {event['step']}, epoch {event['epoch']:.3f}, lr {event['lr']:g}, {event['world_size']} processes")
        state.model.train()
        for rank in range(event["world_size"]):
            data.reshard(rank, event["world_size"])
            for number, batch in enumerate(next(iter(data.train_steps(event["steps_before"], event["step"])))):
                state.optimizer.zero_grad()
                bad: list[str] = []
                handles = [
                    m.register_forward_hook(_watch(name, bad)) for name, m in state.model.named_modules() if name
                ]
                with inner():
                    losses: dict[str, Tensor] = state.model(batch.to(strategy.device))
                for handle in handles:
                    handle.remove()
                scale = event.get("loss_scale", 1.0)  # without it, gradients in fp16 could underflow
                (torch.stack(list(losses.values())).sum() * scale).backward()
                norm = clip_gradients(state.model.parameters(), None) / scale
                values = {name: loss.detach() for name, loss in losses.items()}
                print(f"rank {rank}, micro-batch {number}: {_words(values)}, gradient norm {float(norm):.6g}")
                print(f"  first module with an output that is not finite: {bad[0] if bad else 'none'}")
                with inspection(state.model, inner):
                    for image in task.inspect(state.model, batch):
                        print(f"  image {image['image_id']}, {image['file_name']}: {_words(image['losses'])}")
                state.load_state_dict(content)  # forward passes change the statistics of norms


def _read(path: Path) -> dict[str, Any]:
    """The event, with its types checked. Raises ConfigError."""
    try:
        event: dict[str, Any] = json.loads(read_bytes(path))
        for key, kind in FIELDS.items():
            if not isinstance(event[key], kind) or isinstance(event[key], bool):
                raise TypeError(f"its {key} is {str(event[key])[:40]}")
        if not (event["step"] >= 0 <= event["steps_before"] and 1 <= event["world_size"] == len(event["ranks"])):
            raise ValueError(f"it has {len(event['ranks'])} ranks and world_size {str(event['world_size'])[:40]}")
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ConfigError(f"event={path} is no nonfinite_STEP.json ({error}); give one from a run folder.") from error
    return event


def _watch(name: str, bad: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not bool(output.isfinite().all()):
            bad.append(name)

    return look


def _words(losses: dict[str, Any]) -> str:
    return ", ".join(f"{name} {float(value):.6g}" for name, value in losses.items())


@entry_point("replay")
def main(config: ReplayConfig) -> None:
    """Repeat the step."""
    replay(config)


if __name__ == "__main__":
    main()
