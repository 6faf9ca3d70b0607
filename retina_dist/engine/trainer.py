"""The training loop, for any model that returns a dict of losses.

Layer 3. It takes objects, not a configuration; it knows a `DistributedStrategy` but no backend, and nothing of detection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from retina_dist.engine.checkpoints import CheckpointStore
from retina_dist.engine.cuda_graphs import CapturedSteps
from retina_dist.engine.duration import Alarm
from retina_dist.engine.meters import StepMeter
from retina_dist.engine.nonfinite import Divergence, Inspect, NonFiniteGuard, spread
from retina_dist.engine.phase_timer import Ledger
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import Precision, autocast
from retina_dist.engine.preemption import Agreement, Wish
from retina_dist.engine.prefetch import prefetched
from retina_dist.engine.replicas import average_statistics, check_replicas
from retina_dist.engine.state import TrainState
from retina_dist.errors import Preempted
from retina_dist.optim.clipping import ClipKind, clip_gradients
from retina_dist.optim.optimizer import check_layouts
from retina_dist.strategies.base import DistributedStrategy


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


class MetricLogger(Protocol):
    """Where metrics go."""

    def log(self, metrics: dict[str, float], step: int) -> None: ...


class Trainer:
    """Trains `state.model` by `plan`, validating and saving on the way.

    `evaluate` takes a model and returns metrics, from which `state.best` is updated. `metadata` is stored in every checkpoint
    beside the state (plain Python values only). `checkpoint_minutes` by the main rank's clock are the longest without one.
    `stop_reason` says why this process should end, or None; soon after any rank has a reason, all save and
    raise Preempted. Up to `max_nonfinite_steps` steps in a row are left out for an infinite or NaN loss or gradient on any
    rank, each described in the folder `events` with what `inspect` says of a batch. `cuda_graphs` captures forward and backward
    pass, one graph for each shape of a batch; gradients are then averaged after them. Every rank makes one and calls `fit`;
    `report` takes words for the user on the main rank, `warn` those of any rank.
    """

    def __init__(
        self,
        *,
        state: TrainState,
        plan: Plan,
        data: TrainData,
        strategy: DistributedStrategy,
        logger: MetricLogger,
        evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
        checkpoints: CheckpointStore | None = None,
        checkpoint_minutes: float | None = None,
        metadata: dict[str, Any] | None = None,
        precision: Precision = "fp32",
        gradient_clip: float | None = None,
        gradient_clip_algorithm: ClipKind = "global_norm",
        stop_reason: Callable[[], str | None] = lambda: None,
        max_nonfinite_steps: int = 5,
        cuda_graphs: bool = False,
        events: Path | None = None,
        inspect: Inspect | None = None,
        report: Callable[[str], None] = print,
        warn: Callable[[str], None] = print,
    ) -> None:
        self.state, self.plan, self.data, self.strategy, self.logger = state, plan, data, strategy, logger
        self.evaluate, self.checkpoints = evaluate, checkpoints
        self.metadata, self.report, self.warn = metadata or {}, report, warn
        self.autocast = autocast(strategy.device, precision)
        self.gradient_clip, self.gradient_clip_algorithm = gradient_clip, gradient_clip_algorithm
        self.net = strategy.prepare(state.model, state.optimizer, plan.accumulate, hooks=not cuda_graphs)
        self.meter = StepMeter(strategy)
        self.ledger = Ledger(strategy.device)
        if strategy.world_size > 1 and not cuda_graphs:  # no event may be recorded while a graph is captured
            self.ledger.watch(state.model.parameters())
        self.stop_reason, self.wishes = stop_reason, Agreement(strategy)
        self.alarm = Alarm(checkpoint_minutes)
        self.guard = NonFiniteGuard(
            state,
            plan,
            strategy,
            limit=max_nonfinite_steps,
            folder=events,
            inspect=inspect,
            autocast=self.autocast,
            checkpoint=lambda: self._content({}),
            report=report,
        )
        self._spread_by = min((p for p in state.model.parameters() if p.requires_grad), key=lambda p: p.numel())
        self._layouts_checked = False
        self.captured = CapturedSteps(state.model, self._passes, strategy.device, warn) if cuda_graphs else None

    def fit(self) -> dict[str, float]:
        """Train from the state's step to the plan's last and return the metrics of the last validation.

        Every checkpoint is on the disk when it returns or raises; one that could not be written is an error on all ranks.
        """
        self.ledger.start()
        try:
            metrics = self.strategy.run(self._loop, self.state)
            self.ledger.stop()
            return metrics
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
        if plan.validates_at(state.step) and state.validated < state.step:  # the run was stopped before it
            metrics = self._validate()
            self.ledger.mark("evaluation")
            self._save(metrics)
            if self._out_of_patience():
                self.strategy.on_main(self._wait_for_checkpoint)
                return metrics
        self.meter.load(state.unlogged)
        state.unlogged = {}
        steps = prefetched(self.data.train_steps(state.step, plan.stop_step), self.strategy.device)
        waited_for = "first_batch"
        for micro_batches in steps:
            self.ledger.mark(waited_for)
            waited_for = "data"
            self.strategy.phase = f"step {state.step + 1}"
            values = self.train_step(micro_batches)
            self.ledger.end_step()
            self.meter.update(values, self._images_of(state.step))
            state.step += 1
            wish = self.wishes.ask(self._wish())
            stopping = wish is Wish.STOP
            timed = wish is Wish.SAVE and saved_step < state.step - 1  # rung while another was being saved
            # A run that stops early validates no more than one that goes on, so that both know the same best.
            validating = plan.validates_at(state.step) and not stopping
            last = state.step == plan.stop_step
            saving = validating or stopping or timed or last or _due(state.step, plan.checkpoint_every)

            if _due(state.step, plan.check_every):
                check_replicas(state.replicated(), self.strategy, state.step)
            if validating or last or _due(state.step, plan.checkpoint_every) or _due(state.step, plan.log_every):
                self._log()  # before saving, so that no checkpoint holds weights that are not numbers
            elif stopping or timed:  # the line is written where an undisturbed run writes it
                state.unlogged = self.meter.state()
            if saving:
                self.meter.pause()
                self.ledger.mark("other")
                if validating:
                    metrics = self._validate()
                    self.ledger.mark("evaluation")
                self._save(metrics if validating else {})
                state.unlogged, saved_step = {}, state.step
                self.ledger.mark("checkpoint")
                self.meter.resume()
            if stopping:
                self._end_early()
            if last or (validating and self._out_of_patience()):
                break
            self.strategy.commit(self._committed)
            self.ledger.mark("other")
        steps.close()
        self.wishes.close()
        self.strategy.on_main(self._wait_for_checkpoint)
        self.ledger.mark("checkpoint")
        assert saved_step == state.step, "a run ends with a checkpoint"
        return metrics

    def _wish(self) -> Wish:
        if self.stop_reason() is not None:
            return Wish.STOP
        return Wish.SAVE if self.strategy.is_main and self.alarm.rings() else Wish.NOTHING

    def _out_of_patience(self) -> bool:
        best = self.state.best
        if best.exhausted:
            self.report(f"stopped early: {best.name} has not improved in {best.evals_since_best} validations.")
        return best.exhausted

    def _end_early(self) -> None:
        self.strategy.on_main(self._wait_for_checkpoint)
        self.wishes.close()
        why = self.stop_reason() or "another rank was asked to"
        raise Preempted(f"stopped at step {self.state.step} ({why}) with a checkpoint; go on with resume=auto.")

    def train_step(self, micro_batches: Sequence[TrainBatch]) -> dict[str, Tensor]:
        """One optimizer step over this rank's micro-batches; its losses and gradient norm, none of a step left out."""
        state, device, mark = self.state, self.strategy.device, self.ledger.mark
        lr = self.plan.lr_at(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.guard.begin()
        total: dict[str, Tensor] = {}
        for i, batch in enumerate(micro_batches):
            for warning in batch.warnings:
                self.warn(f"warning: {warning}")
            batch = batch.to(device, non_blocking=True)
            mark("copy")
            with self.strategy.gradient_sync(self.net, enabled=i == len(micro_batches) - 1):
                # The weights of all micro-batches of all ranks have the mean 1/accumulate, so this is the step's mean loss.
                passes = self.captured or partial(self._passes, forward_done=lambda: mark("forward"))
                losses = passes(batch, batch.weight)
            self.ledger.mark_backward()
            for name, value in losses.items():
                total[name] = total.get(name, 0.0) + value.detach() * batch.weight
        self.strategy.reduce_gradients()  # 1. the mean over ranks
        mark("communication")
        state.scaler.unscale_(state.optimizer)  # 2. at true size
        norm = clip_gradients(
            state.model.parameters(), self.gradient_clip, self.gradient_clip_algorithm
        )  # 3. what will be applied
        taken = self.guard.accept(norm)
        if not self._layouts_checked:
            check_layouts(state.optimizer)
            self._layouts_checked = True
        if taken:
            state.scaler.step(state.optimizer)  # 4. on every rank or on none
        state.scaler.update()
        state.optimizer.zero_grad(set_to_none=self.captured is None)
        if not taken:
            self.guard.record(micro_batches, total, norm)
            mark("other")
            return {}
        average_statistics(state.model, self.strategy, sum(batch.weight for batch in micro_batches))
        if state.ema:
            state.ema.update(state.model)
        mark("optimizer")
        parts = {f"train/loss_{name}": value for name, value in total.items()}
        return {"train/loss": torch.stack(list(total.values())).sum(), **parts, "train/grad_norm": norm}

    def _passes(
        self, batch: TrainBatch, weight: float | Tensor, forward_done: Callable[[], None] = lambda: None
    ) -> dict[str, Tensor]:
        """Forward and backward pass of a micro-batch."""
        with self.autocast():
            losses: dict[str, Tensor] = self.net(batch)
        loss = torch.stack(list(losses.values())).sum() * weight
        forward_done()
        self.state.scaler.scale(spread(loss, self._spread_by)).backward()
        return losses

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
            raise Divergence(  # each step was finite, their mean is not
                f"train/loss={metrics['train/loss']} by step {step} at lr={self.plan.lr_at(step - 1):g}; "
                "lower optimizer.lr, lengthen schedule.warmup or set trainer.gradient_clip."
            )
        if self.state.skipped:
            metrics["train/skipped_steps"] = self.state.skipped
        metrics |= {f"comm/{name}": value for name, value in self.strategy.counters().items()}
        metrics["train/lr"] = self.plan.lr_at(step - 1)
        metrics["train/epoch"] = self.plan.epoch_at(step)
        self.logger.log(metrics, step)

    def _validate(self) -> dict[str, float]:
        state = self.state
        state.validated = state.step
        if self.evaluate is None:
            return {}
        self.strategy.phase = f"the validation after step {state.step}"
        metrics = self.evaluate(state.evaluated_model)
        self.net.train()
        self.logger.log(metrics, state.step)
        state.best.update(metrics)
        return metrics

    def _save(self, metrics: dict[str, float]) -> None:
        self.alarm.reset()

        def save() -> None:
            if self.checkpoints:
                value = metrics.get(self.state.best.name) if self.state.best.name else None
                self.checkpoints.save(self._content(metrics), self.state.step, value)

        self.strategy.on_main(save)

    def _wait_for_checkpoint(self) -> None:
        if self.checkpoints:
            self.checkpoints.wait()

    def _committed(self) -> dict[str, Any]:
        """`_content` with what has not been logged yet; every rank must call it."""
        self.state.unlogged = self.meter.state()
        content = self._content({})
        self.state.unlogged = {}
        return content

    def _content(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What a checkpoint of this moment holds."""
        epoch, cursor = self.data.position(self.state.step)
        place = {"sampler": {"epoch": epoch, "cursor": cursor}, "metrics": metrics}
        return {**self.state.state_dict(), **self.metadata, **place}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
