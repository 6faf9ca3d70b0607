"""The training loop, for any model that returns a dict of losses.

Layer 3. It takes objects, not a configuration; it knows a `DistributedStrategy` but no backend, and nothing of detection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from retina_dist.engine.checkpoint import CheckpointStore
from retina_dist.engine.meters import StepMeter
from retina_dist.engine.plan import Plan
from retina_dist.engine.replicas import average_statistics, check_replicas
from retina_dist.engine.state import TrainState
from retina_dist.errors import ConfigError, UserError
from retina_dist.optim.clipping import ClipKind, clip_gradients
from retina_dist.strategies.base import DistributedStrategy

Precision = Literal["fp32", "bf16", "fp16"]
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TrainBatch(Protocol):
    """What the loop asks of a micro-batch; `weight` is its share in the step's mean loss."""

    @property
    def weight(self) -> float: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...
    def to(self, device: torch.device, non_blocking: bool = False) -> Any: ...


class TrainData(Protocol):
    """Where the micro-batches of each optimizer step come from, a pure function of the step."""

    def train_steps(self, start: int, stop: int) -> Iterator[Sequence[TrainBatch]]: ...
    def position(self, step: int) -> tuple[int, int]: ...


class Sink(Protocol):
    """Where metrics go."""

    def log(self, metrics: dict[str, float], step: int) -> None: ...


class Divergence(UserError):
    """The loss is no longer a number, on all ranks: it is their mean."""

    everywhere = True


def autocast(device: torch.device, precision: Precision) -> Callable[[], AbstractContextManager[Any]]:
    """A factory of contexts in which matrix work runs in `precision`."""
    if precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=AUTOCAST[precision])


class Trainer:
    """Trains `state.model` by `plan`, validating and saving on the way.

    `evaluate` takes a model and returns metrics; `monitor` names the one that decides what is best. `metadata` is stored in
    every checkpoint beside the state (plain Python values only). `patience` ends the run after that many validations without
    a better value. Every rank makes one and calls `fit`; `report` takes words for the user on the main rank, `warn` those of
    any rank.
    """

    def __init__(
        self,
        *,
        state: TrainState,
        plan: Plan,
        data: TrainData,
        strategy: DistributedStrategy,
        sink: Sink,
        evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
        checkpoints: CheckpointStore | None = None,
        checkpoint_every: int = 0,
        metadata: dict[str, Any] | None = None,
        precision: Precision = "fp32",
        clip: float | None = None,
        clip_kind: ClipKind = "global_norm",
        monitor: str | None = None,
        monitor_mode: Literal["max", "min"] = "max",
        patience: int | None = None,
        report: Callable[[str], None] = print,
        warn: Callable[[str], None] = print,
    ) -> None:
        self.state, self.plan, self.data, self.strategy, self.sink = state, plan, data, strategy, sink
        self.evaluate, self.checkpoints, self.checkpoint_every = evaluate, checkpoints, checkpoint_every
        self.metadata, self.report, self.warn = metadata or {}, report, warn
        self.autocast = autocast(strategy.device, precision)
        self.clip, self.clip_kind = clip, clip_kind
        self.monitor, self.monitor_mode, self.patience = monitor, monitor_mode, patience
        self.net = strategy.prepare(state.model, state.optimizer, plan.accumulate)
        self.meter = StepMeter(strategy)

    def fit(self) -> dict[str, float]:
        """Train from the state's step to the plan's last and return the metrics of the last validation.

        Every checkpoint is on the disk when it returns or raises; one that could not be written is an error on all ranks.
        """
        try:
            return self.strategy.run(self._loop, self.state)
        except BaseException:
            try:
                self._wait_for_checkpoint()
            except Exception as error:  # the first one is what ended the run
                self.warn(f"warning: {error}")
            raise

    def _loop(self) -> dict[str, float]:
        state, plan = self.state, self.plan
        metrics: dict[str, float] = {}
        saved_step = state.step
        self.net.train()
        self.meter.resume()
        steps = self.data.train_steps(state.step, plan.stop_step)
        for micro_batches in steps:
            values = self.train_step(micro_batches)
            self.meter.update(values, self._images_of(state.step))
            state.step += 1
            # A run that stops early validates no more than one that goes on, so that both know the same best.
            validating = state.step == plan.total_steps or _due(state.step, plan.validate_every)
            saving = validating or state.step == plan.stop_step or _due(state.step, self.checkpoint_every)

            if _due(state.step, plan.check_every):
                check_replicas(state.replicated(), self.strategy, state.step)
            if saving or _due(state.step, plan.log_every):
                self._log()  # before saving, so that no checkpoint holds weights that are not numbers
            if saving:
                self.meter.pause()
                if validating:
                    metrics = self._validate()
                self._save(metrics if validating else {})
                saved_step = state.step
                self.meter.resume()
                if self.patience is not None and state.stale >= self.patience:
                    self.report(f"stopped early: {self.monitor} has not improved in {state.stale} validations.")
                    break
            self.strategy.commit()
        if hasattr(steps, "close"):
            steps.close()
        self.strategy.on_main(self._wait_for_checkpoint)
        assert saved_step == state.step, "a run ends with a checkpoint"
        return metrics

    def train_step(self, micro_batches: Sequence[TrainBatch]) -> dict[str, Tensor]:
        """One optimizer step over this rank's micro-batches; its losses and gradient norm stay on the device."""
        state, device = self.state, self.strategy.device
        lr = self.plan.lr_at(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        total: dict[str, Tensor] = {}
        for i, batch in enumerate(micro_batches):
            for warning in batch.warnings:
                self.warn(f"warning: {warning}")
            batch = batch.to(device, non_blocking=True)
            with self.strategy.gradient_sync(self.net, enabled=i == len(micro_batches) - 1):
                with self.autocast():
                    losses: dict[str, Tensor] = self.net(batch)
                # The weights of all micro-batches of all ranks have the mean 1/accumulate, so this is the step's mean loss.
                loss = torch.stack(list(losses.values())).sum() * batch.weight
                state.scaler.scale(loss).backward()
            for name, value in losses.items():
                total[name] = total.get(name, 0.0) + value.detach() * batch.weight
        self.strategy.reduce_gradients()  # 1. the mean over ranks
        state.scaler.unscale_(state.optimizer)  # 2. at true size
        norm = clip_gradients(state.model.parameters(), self.clip, self.clip_kind)  # 3. what will be applied
        state.scaler.step(state.optimizer)  # 4. skipped on every rank or on none
        state.scaler.update()
        state.optimizer.zero_grad(set_to_none=True)
        average_statistics(state.model, self.strategy)
        if state.ema:
            state.ema.update(state.model)
        parts = {f"train/loss_{name}": value for name, value in total.items()}
        return {"train/loss": torch.stack(list(total.values())).sum(), **parts, "train/grad_norm": norm}

    def _images_of(self, step: int) -> int:
        """Images of one optimizer step over all ranks; the last step of an epoch may be short."""
        _, begin = self.data.position(step)
        return min(self.plan.batch_size, self.plan.num_images - begin)

    def _log(self) -> None:
        metrics = self.meter.compute()
        if not metrics:
            return
        step = self.state.step
        if not math.isfinite(metrics["train/loss"]):
            raise Divergence(
                f"train/loss={metrics['train/loss']} by step {step} at lr={self.plan.lr_at(step - 1):g}; "
                "lower optimizer.lr, lengthen schedule.warmup or set trainer.clip."
            )
        metrics |= {f"comm/{name}": value for name, value in self.strategy.counters().items()}
        metrics["train/lr"] = self.plan.lr_at(step - 1)
        metrics["train/epoch"] = self.plan.epoch_at(step)
        self.sink.log(metrics, step)

    def _validate(self) -> dict[str, float]:
        if self.evaluate is None:
            return {}
        state = self.state
        metrics = self.evaluate(state.evaluated_model)
        self.net.train()
        self.sink.log(metrics, state.step)
        if self.monitor and self.monitor not in metrics:
            error = ConfigError(f"trainer.monitor={self.monitor} is no metric; there are {', '.join(sorted(metrics))}.")
            error.everywhere = True
            raise error
        value = metrics[self.monitor] if self.monitor else None
        if value is not None and math.isfinite(value):
            better = state.best is None or (value > state.best if self.monitor_mode == "max" else value < state.best)
            state.best, state.stale = (value, 0) if better else (state.best, state.stale + 1)
        return metrics

    def _save(self, metrics: dict[str, float]) -> None:
        def save() -> None:
            if self.checkpoints:
                epoch, cursor = self.data.position(self.state.step)
                place = {"sampler": {"epoch": epoch, "cursor": cursor}, "metrics": metrics}
                value = metrics.get(self.monitor) if self.monitor else None
                self.checkpoints.save({**self.state.state_dict(), **self.metadata, **place}, self.state.step, value)

        self.strategy.on_main(save)

    def _wait_for_checkpoint(self) -> None:
        if self.checkpoints:
            self.checkpoints.wait()


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
