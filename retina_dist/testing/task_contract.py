"""What every `Task` promises, as a function that an own task runs in one process.

    from retina_dist.testing.task_contract import task_contract
    task_contract(MyTask, load_config("train", ["hydra.searchpath=[file://my_conf]", "task=mine"]))

A broken promise raises AssertionError.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from retina_dist.seeding import seed_everything
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task import Task, TaskData

STEPS = 3
TOLERANCE = 1e-4  # relative, in float32: what several ranks compute, to one


class RankOf(SingleDeviceStrategy):
    """One rank of `world_size`, alone in its process: for what must not communicate."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__("cpu")
        self._rank, self._world_size = rank, world_size

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size


def task_contract(kind: type[Task], config: Any) -> None:
    """Check `kind` with the settings `config` on the CPU, without other processes.

    Its batches must be a pure function of the step; the losses and gradients of two and three ranks must have the mean of one
    rank's; its metrics must be numbers (NaN: undefined) and have the names that it states; what a checkpoint holds must be
    plain values. The model must not depend on which examples share a batch: give a batch norm frozen statistics.
    """
    kind.prepare(config)
    planned = kind.planned_images(config)
    task = _of_rank(kind, config, 0, 1)
    assert task.num_images >= 1, f"num_images is {task.num_images}"
    assert planned in (None, task.num_images), f"planned_images gives {planned}, num_images {task.num_images}"
    assert isinstance(task.describe(), str), "describe gives text"
    check_settings(task, config)
    check_data(task, config)
    model = check_model(task, config)
    check_ranks(kind, config, model)
    check_evaluator(task, model)


def check_settings(task: Task, config: Any) -> None:
    """`settings` has the sections of the configuration, and `locked_settings` are keys of it."""
    for field in dataclasses.fields(task.settings):
        assert hasattr(config, field.name), f"the configuration has no section {field.name}"
    kinds = get_type_hints(task.settings)
    for key in task.locked_settings:
        section, *rest = key.split(".")
        value: Any = getattr(config, section, ...)
        if type(value) is kinds.get(section):  # and not a section of a class from outside, which has other keys
            for part in rest:
                value = getattr(value, part, ...)
        assert value is not ..., f"locked_settings has {key}, which is no setting"


def check_data(task: Task, config: Any) -> None:
    """The same batches from each start, and a position that counts images and epochs."""
    data, again = task.build_data(), _of_rank(type(task), config, 0, 1).build_data()
    steps = list(data.train_steps(0, STEPS))
    assert len(steps) == STEPS, f"train_steps(0, {STEPS}) gives {len(steps)} steps"
    for micro_batches, expected in zip(again.train_steps(1, STEPS), steps[1:], strict=True):
        assert _plain(micro_batches) == _plain(expected), "the batches of a step depend on where train_steps starts"
    assert data.position(0) == (0, 0), f"position(0) is {data.position(0)}"
    steps_per_epoch = -(-task.num_images // config.data.batch_size)
    assert data.position(steps_per_epoch) == (1, 0), "an epoch has not ceil(num_images / data.batch_size) steps"
    assert task.fingerprint() == _of_rank(type(task), config, 0, 1).fingerprint(), "fingerprint changes by itself"
    state = task.checkpoint_state(_saved(task.metadata(task.build_model())))
    task.load_checkpoint_state(_saved(state), "a checkpoint")


def check_model(task: Task, config: Any) -> nn.Module:
    """A dict of finite scalar losses that train, the same for the same seed; returns the model."""
    models = []
    for _ in range(2):
        seed_everything(config.seed)
        models.append(task.build_model())
    for name, value in models[0].state_dict().items():
        assert torch.equal(value, models[1].state_dict()[name]), f"two models of one seed differ in {name}"
    model = models[0].train()
    losses = model(next(iter(task.build_data().train_steps(0, 1)))[0])
    assert isinstance(losses, dict), f"the model in training mode gives {type(losses).__name__}, not a dict of losses"
    for name, loss in losses.items():
        assert loss.shape == (), f"the loss {name} has shape {tuple(loss.shape)}, not that of a scalar"
        assert bool(loss.isfinite()), f"the loss {name} is {float(loss)}"
    assert any(p.requires_grad for p in model.parameters()), "the model has nothing to train"
    return model


def check_ranks(kind: type[Task], config: Any, model: nn.Module) -> None:
    """The mean over two and three ranks is what one rank computes: weighted losses, and gradients."""
    expected = _step(model, [_of_rank(kind, config, 0, 1).build_data()])
    for world_size in (2, 3):
        ranks = [_of_rank(kind, config, rank, world_size).build_data() for rank in range(world_size)]
        for name, value in _step(model, ranks).items():
            error = float((value - expected[name]).norm() / expected[name].norm().clamp(min=1e-12))
            assert error <= TOLERANCE, f"{name} of {world_size} ranks differs from one rank's by {error:.1e}"


def check_evaluator(task: Task, model: nn.Module) -> None:
    """Finite metrics by the stated names, `default_monitor` among them, that do not depend on the training mode."""
    assert task.default_monitor in task.metric_names, f"default_monitor {task.default_monitor} is not in metric_names"
    evaluate = task.build_evaluator(task.build_data())
    assert (evaluate is not None) == task.validates, "an evaluator is there where `validates` is true, and only there"
    if evaluate:
        metrics = evaluate(model.train())
        assert set(task.metric_names) <= set(metrics), f"the metrics {sorted(metrics)} lack some of metric_names"
        assert not any(map(math.isinf, metrics.values())), f"a metric of {metrics} is infinite"  # NaN: undefined
        assert math.isfinite(metrics[task.default_monitor]), f"{task.default_monitor} is not finite"


def _of_rank(kind: type[Task], config: Any, rank: int, world_size: int) -> Task:
    return kind(config, RankOf(rank, world_size))


def _step(model: nn.Module, ranks: Sequence[TaskData]) -> dict[str, Tensor]:
    """The loss and the gradients of the first step, means over `ranks`."""
    model.train().zero_grad()
    total = torch.zeros(())
    for data in ranks:
        for batch in next(iter(data.train_steps(0, 1))):
            loss = torch.stack(list(model(batch.to(torch.device("cpu"))).values())).sum() * batch.weight / len(ranks)
            loss.backward()
            total = total + loss.detach()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"the loss": total, **{f"the gradient of {name}": g.clone() for name, g in gradients.items()}}


def _saved(content: dict[str, Any]) -> dict[str, Any]:
    """`content` after a checkpoint, which holds tensors and plain values only."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, map_location="cpu", weights_only=True)
    return loaded


def _plain(value: Any) -> Any:
    """Batches as plain values that compare."""
    if isinstance(value, Tensor):
        return value.dtype, value.tolist()
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value
