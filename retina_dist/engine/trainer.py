"""The training loop, for any model that returns a dict of losses; it knows neither backend, task nor configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Protocol

from torch import Tensor, nn

from retina_dist.engine.checkpoint.when import Checkpointer
from retina_dist.engine.preemption import StopAction, StopConsensus
from retina_dist.engine.prefetch import prefetched
from retina_dist.engine.replicas import check_metrics, check_replicas
from retina_dist.engine.train_logger import MetricLogger, TrainLogger
from retina_dist.engine.train_step import TrainBatch, TrainStep
from retina_dist.errors import Preempted, doing

logger = logging.getLogger(__name__)


class TrainData(Protocol):
    """Where the micro-batches of each optimizer step come from, a pure function of the step."""

    def train_steps(self, start: int, stop: int) -> Iterator[Sequence[TrainBatch]]: ...
    def position(self, step: int) -> tuple[int, int]: ...


class Trainer:
    """Repeats `train_step` until the end of its plan, logging, validating and saving on the way.

    `validate` takes a model and returns metrics of the whole validation set. Rank 0's metrics are broadcast, so all ranks agree on
    `state.best` and on early stopping. `stop_reason` says why this process should end, or None; one step after any rank has a
    reason, all ranks save and raise Preempted. Every rank makes a Trainer and calls `fit`.
    """

    def __init__(
        self,
        train_step: TrainStep,
        data: TrainData,
        metric_logger: MetricLogger,
        *,
        validate: Callable[[nn.Module], dict[str, float]] | None = None,
        checkpointer: Checkpointer | None = None,
        stop_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.train_step: Callable[[Sequence[TrainBatch]], dict[str, Tensor]] = train_step
        self.data, self.validate, self.stop_reason = data, validate, stop_reason
        self.state, self.plan, self.strategy = train_step.state, train_step.plan, train_step.strategy
        self.net, self.timer = train_step.net, train_step.timer
        self.checkpointer = checkpointer or Checkpointer(self.state, self.strategy, position=data.position)
        self.train_logger = TrainLogger(self.state, self.plan, self.strategy, metric_logger, data.position)
        self.stop = StopConsensus(self.strategy)
        self._metrics_checked = self.strategy.world_size == 1

    def fit(self) -> dict[str, float]:
        """Train from the state's step to the plan's last and return the metrics of the last validation.

        Every checkpoint is on the disk when it returns or raises; one that could not be written is an error on all ranks.
        """
        self.timer.start()
        try:
            self.strategy.broadcast_state(self.state)
            metrics = self._run()
            self.timer.stop()
            return metrics
        except BaseException:
            try:
                self.checkpointer.wait_here()
            except Exception as error:  # it must not hide the error that ended the run
                logger.warning(error)
            raise

    def _run(self) -> dict[str, float]:
        """Run the loop; validate first if the previous run stopped before a due validation."""
        state = self.state
        self.net.train()
        self.checkpointer.saved_step = state.step
        metrics: dict[str, float] = {}
        if self.plan.validates_at(state.step) and state.last_eval_step < state.step:
            metrics = self._validate()
            self._save(metrics)
        if not self._stops_early():
            metrics = self._loop(metrics)
        self.stop.close()
        self.checkpointer.wait()
        self.timer.mark("checkpoint")
        return metrics

    def _loop(self, metrics: dict[str, float]) -> dict[str, float]:
        state, plan, strategy = self.state, self.plan, self.strategy
        with closing(prefetched(self.data.train_steps(state.step, plan.stop_step), strategy.device)) as steps:
            for micro_batches in self.timer.iterate(steps):
                self.train_logger.update(self.train_step(micro_batches))
                del micro_batches  # before the next ones are fetched
                state.step += 1
                action = self._agreed_action()
                due = plan.due(state.step, stopping=action is StopAction.STOP)
                if due.check:
                    check_replicas(state.replicated(), strategy, state.step)
                if due.log:
                    self.train_logger.flush()  # before saving, so that no checkpoint holds weights that are not finite
                if due.validate:
                    metrics = self._validate()
                if self.checkpointer.is_due(due.save, action):
                    self._save(metrics if due.validate else {})
                if action is StopAction.STOP:
                    self._preempt()
                if due.last or (due.validate and self._stops_early()):
                    break
        assert self.checkpointer.saved_step == state.step, "a run ends with a checkpoint"
        return metrics

    def _agreed_action(self) -> StopAction:
        """What the ranks agreed on, one step after any of them asked for it."""
        stops = self.stop_reason() is not None
        return self.stop.poll(StopAction.STOP if stops else self.checkpointer.request())

    def _validate(self) -> dict[str, float]:
        state = self.state
        state.last_eval_step = state.step
        if self.validate is None:
            return {}
        doing("validation")
        with self.state.meter.paused(), self.timer.phase("evaluation"):
            metrics = {name: float(value) for name, value in self.validate(state.evaluated_model).items()}
            if not self._metrics_checked:
                check_metrics(metrics, self.strategy)
                self._metrics_checked = True
            metrics = self.strategy.broadcast_object(metrics)
            self.net.train()
            self.train_logger.log(metrics)
            state.best.update(metrics)
        return metrics

    def _save(self, metrics: dict[str, float]) -> None:
        with self.state.meter.paused(), self.timer.phase("checkpoint"):
            self.checkpointer.save(metrics)

    def _stops_early(self) -> bool:
        if self.state.best.exhausted:
            logger.info(self.state.best.describe_stop())
        return self.state.best.exhausted

    def _preempt(self) -> None:
        self.checkpointer.wait()
        self.stop.close()
        why = self.stop_reason() or "another rank was asked to"
        raise Preempted(f"stopped at step {self.state.step} ({why}) with a checkpoint; continue with resume=auto.")
