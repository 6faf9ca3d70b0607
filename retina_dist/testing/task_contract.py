"""What every `Task` promises, as a function that checks a task of your own in one process.

docs/extending.md shows how.
"""

import contextlib
import copy
import dataclasses
import io
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from retina_dist.base.errors import ConfigError
from retina_dist.base.seeding import seed_everything
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.store import sealed
from retina_dist.engine.replicas import digest_of, leaves_of
from retina_dist.engine.task import Task
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.testing.thread_ranks import Job, ThreadRank, on_ranks

STEPS = 3
TOLERANCE = 1e-4  # relative, in float32: what several ranks compute, to one
LOSS = "the loss"
Tensors = dict[str, Tensor]
# Of the norm of all gradients: rounding, where a parameter's own gradient is nearly 0.
OF_ALL = 1e-5


def task_contract(kind: type[Task], config: RunConfig, other: RunConfig | None = None) -> None:
    """Check `kind` on the CPU. Raises AssertionError for a broken promise.

    The model must not depend on which examples share a batch: give a batch norm frozen statistics.

    Args:
        kind: the class of the task.
        config: the settings to check it with.
        other: settings with other data, whose fingerprint must differ.
    """
    kind.prepare(config)
    planned = kind.planned_images(config)
    task = kind(config, SingleDeviceStrategy("cpu"))
    assert planned in (None, task.num_images), (
        f"planned_images gives {planned}, num_images {task.num_images}"
    )
    check_settings(task, config)
    check_data(task, config)
    if other is not None:
        kind.prepare(other)
        changed = kind(other, task.strategy).fingerprint()
        assert task.fingerprint() != changed, "fingerprint is the same for other data"

    model = check_model(task, config)
    check_ranks(kind, config, model, [0])
    shared, last = _with_short_step(config, task.num_images)
    with contextlib.suppress(ConfigError):  # the task may refuse fewer examples than ranks
        check_ranks(kind, shared, model, [0, last])
    check_evaluator(kind, config, model)


def check_settings(task: Task, config: RunConfig) -> None:
    """`locked_settings` are keys of the configuration.

    A section of a class from outside has other keys and is left out.
    """
    kinds = get_type_hints(task.settings)
    for key in task.locked_settings:
        section, *rest = key.split(".")
        value: object = vars(config).get(section, ...)
        if type(value) is kinds.get(section):
            for part in rest:
                value = vars(value).get(part, ...)
        assert value is not ..., f"locked_settings has {key}, which is not a setting"


def check_data(task: Task, config: RunConfig) -> None:
    """The same batches from each start, and a position that counts images and epochs."""
    again = type(task)(config, task.strategy)
    data = task.build_data()
    other = again.build_data()
    steps = list(data.train_steps(0, STEPS))
    assert len(steps) == STEPS, f"train_steps(0, {STEPS}) gives {len(steps)} steps"
    for micro_batches, expected in zip(other.train_steps(1, STEPS), steps[1:], strict=True):
        assert digest_of(micro_batches) == digest_of(expected), (
            "the batches of a step depend on where train_steps starts"
        )
        for batch in micro_batches:
            batch.to(torch.device("cpu"), non_blocking=True)
        assert digest_of(micro_batches) == digest_of(expected), (
            "`to` alters the batch, which must stay as it is"
        )

    batch_size = config.data.batch_size
    per_epoch = math.ceil(task.num_images / batch_size)
    for step in (0, 1, per_epoch - 1, per_epoch, per_epoch + 1):
        position = data.position(step)
        right = (step // per_epoch, step % per_epoch * batch_size)
        assert position == right, f"position({step}) is {position}, not {right}"

    assert task.fingerprint() == again.fingerprint(), "fingerprint changes by itself"
    state = task.checkpoint_state(_saved(task.metadata(task.build_model())))
    task.load_checkpoint_state(_saved(state), "a checkpoint")


def check_model(task: Task, config: RunConfig) -> nn.Module:
    """A dict of finite scalar losses that train, the same for the same seed.

    Returns the model, without dropout.
    """
    models = []
    for _ in range(2):
        seed_everything(config.seed)
        models.append(task.build_model())
    for name, value in models[0].state_dict().items():
        assert torch.equal(value, models[1].state_dict()[name]), (
            f"two models of one seed differ in {name}"
        )
    model = models[0].train()
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
    losses = model(next(iter(task.build_data().train_steps(0, 1)))[0])
    assert isinstance(losses, dict), (
        f"the model in training mode gives {type(losses).__name__}, not a dict of losses"
    )
    for name, loss in losses.items():
        right = loss.dim() == 0 and bool(loss.isfinite())
        assert right, f"the loss {name} is {loss.tolist()}, not a finite scalar"
    assert any(p.requires_grad for p in model.parameters()), "the model has nothing to train"
    return model


def check_ranks(
    kind: type[Task], config: RunConfig, model: nn.Module, steps: Sequence[int]
) -> None:
    """The mean over two and three ranks is what one rank computes: weighted losses, gradients."""
    for step in steps:
        whole = _micro_batches(kind, config, step, 1)
        (expected,) = _losses_and_gradients(model, whole)
        for world_size in (2, 3):
            where = (
                f"step {step}, batch_size={config.data.batch_size}, "
                f"accumulate={config.trainer.accumulate}, {world_size} ranks"
            )
            ranks = _micro_batches(kind, config, step, world_size)
            _check_shares(ranks, whole[0], where, shared=config.data.batch_size > 1)
            _check_mean(_losses_and_gradients(model, ranks), expected, where)


def _check_shares(
    ranks: Sequence[Sequence[Any]], whole: Sequence[object], where: str, shared: bool
) -> None:
    """Equally many micro-batches of mean weight 1; of a `shared` batch no rank holds all."""
    counts = list(map(len, ranks))
    assert len(set(counts)) == 1, (
        f"{where}: {counts} micro-batches; a rank without examples has a padding batch"
    )
    weights = [sum(batch.weight for batch in micro_batches) for micro_batches in ranks]
    assert math.isclose(sum(weights), len(ranks), rel_tol=1e-6), (
        f"{where}: the mean of {weights} is not 1"
    )
    largest = max(map(_elements, ranks))
    assert not shared or largest < _elements(whole), (
        f"{where}: a rank holds as much as one rank alone, not its share"
    )


def _check_mean(results: list[Tensors], expected: Tensors, where: str) -> None:
    """The mean of each loss and gradient over the ranks, within rounding of one rank's."""
    total = math.hypot(*(float(x.norm()) for name, x in expected.items() if name != LOSS))
    for name in dict.fromkeys(chain.from_iterable(results)):
        lacks = [rank for rank, result in enumerate(results) if name not in result]
        assert not lacks, (
            f"{where}: rank {lacks[0]} lacks {name}; all ranks must use the same parameters"
        )
        mean = sum(result[name] for result in results) / len(results)
        error = float((mean - expected[name]).norm())
        bound = TOLERANCE * float(expected[name].norm())
        if name != LOSS:
            bound += OF_ALL * total
        assert error <= bound, (
            f"{where}: {name} differs from one rank's by {error:.1e}, more than {bound:.1e}"
        )


def check_evaluator(kind: type[Task], config: RunConfig, model: nn.Module) -> None:
    """Metrics by the stated names, equal on two ranks and one, and in both modes of the model."""
    task = kind(config, SingleDeviceStrategy("cpu"))
    assert task.default_monitor in task.metric_names, (
        f"default_monitor {task.default_monitor} is not in metric_names"
    )
    evaluate = task.build_evaluator(task.build_data())
    assert (evaluate is not None) == task.validates, (
        "an evaluator is there where `validates` is true, and only there"
    )
    if evaluate is None:
        return

    metrics = evaluate(model.train())
    assert set(task.metric_names) <= set(metrics), (
        f"the metrics {sorted(metrics)} lack some of metric_names"
    )
    assert not any(map(math.isinf, metrics.values())), f"a metric of {metrics} is infinite"
    assert math.isfinite(metrics[task.default_monitor]), (
        f"{task.default_monitor} is {metrics[task.default_monitor]}"
    )
    _same_metrics(evaluate(model.eval()), metrics, "a model in evaluation mode")

    def on_rank(strategy: ThreadRank) -> dict[str, float]:
        part = kind(config, strategy)
        validator = part.build_evaluator(part.build_data())
        assert validator is not None
        return validator(copy.deepcopy(model).train())

    for rank, result in enumerate(on_ranks(2, on_rank)):
        _same_metrics(
            result, metrics, f"rank {rank} of two (does the evaluator reduce over ranks?)"
        )


def _same_metrics(metrics: dict[str, float], expected: dict[str, float], where: str) -> None:
    message = f"{where} has the metrics {metrics}, not {expected}"
    torch.testing.assert_close(
        metrics, expected, rtol=TOLERANCE, atol=1e-9, equal_nan=True, msg=message
    )


def _with_short_step(config: RunConfig, num_images: int) -> tuple[RunConfig, int]:
    """The settings with two micro-batches a step, and the last step of their epoch.

    That step is short where so few images allow it.
    """
    fitting = [size for size in (5, 4, 3) if num_images % size]
    batch_size = next(iter(fitting), min(5, num_images))
    data = dataclasses.replace(config.data, batch_size=batch_size)
    trainer = dataclasses.replace(config.trainer, accumulate=min(2, batch_size))
    shared = dataclasses.replace(config, data=data, trainer=trainer)
    return shared, math.ceil(num_images / batch_size) - 1


def _micro_batches(
    kind: type[Task], config: RunConfig, step: int, world_size: int
) -> list[Sequence[Any]]:
    """Those of each rank. A rank must not communicate: nobody would answer."""
    ranks = []
    for rank in range(world_size):
        data = kind(config, ThreadRank(rank, Job(world_size))).build_data()
        ranks.append(next(iter(data.train_steps(step, step + 1))))
    return ranks


def _losses_and_gradients(model: nn.Module, ranks: Sequence[Sequence[Any]]) -> list[Tensors]:
    """Each rank's loss and gradients; as in a training, a loss at weight 0 counts as 0."""
    results = []
    for micro_batches in ranks:
        model.train().zero_grad(set_to_none=True)
        total = torch.zeros(())
        for batch in micro_batches:
            losses = model(batch.to(torch.device("cpu"), non_blocking=True))
            loss = torch.stack(list(losses.values())).sum()
            if not batch.weight:
                loss = loss.nan_to_num(0.0, 0.0, 0.0)
            loss = loss * batch.weight
            loss.backward()
            total = total + loss.detach()
        result = {LOSS: total}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                result[f"the gradient of {name}"] = parameter.grad
        results.append(result)
    return results


def _saved(content: dict[str, object]) -> dict[str, Any]:
    """`content` after a checkpoint, which holds tensors and plain values only."""
    return torch.load(io.BytesIO(sealed(content)), map_location="cpu", weights_only=True)


def _elements(value: object) -> int:
    """Numbers in the tensors and arrays of batches."""
    return sum(leaf.numel() for _, leaf in leaves_of(value) if isinstance(leaf, Tensor))
