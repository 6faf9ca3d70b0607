"""The training loop, for any model that returns a dict of losses.

It takes objects, not a configuration; it knows a `DistributedStrategy` but no backend, and nothing of detection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol

from torch import Tensor, nn

from retina_dist.engine.checkpointer import Checkpointer
from retina_dist.engine.prefetch import prefetched
from retina_dist.engine.replicas import check_metrics, check_replicas
from retina_dist.engine.stop import StopAction, StopConsensus
from retina_dist.engine.train_logger import MetricLogger, TrainLogger
from retina_dist.engine.train_step import TrainBatch, TrainStep
from retina_dist.errors import Preempted

logger = logging.getLogger(__name__)


class TrainData(Protocol):
    """Where the micro-batches of each optimizer step come from, a pure function of the step."""

    def train_steps(self, start: int, stop: int) -> Iterator[Sequence[TrainBatch]]: ...
    def position(self, step: int) -> tuple[int, int]: ...


class Trainer:
    """Repeats `train_step` until the end of its plan, logging, validating and saving on the way.

    `validate` takes a model and returns metrics of the whole validation set; those of the main rank count on all ranks, which so
    agree on `state.best` and on the validation at which its patience is used up. `stop_reason` says why
    this process should end, or None; one step after any rank has a reason, all ranks save and raise Preempted. Every rank makes
    a Trainer and calls `fit`.
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
        self.metrics = TrainLogger(self.state, self.plan, self.strategy, metric_logger, data.position)
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
        """The loop, after the validation that a run may owe which was stopped before it."""
        state = self.state
        self.net.train()
        self.checkpointer.saved_step = state.step
        metrics: dict[str, float] = {}
        owed = self.plan.validates_at(state.step) and state.last_eval_step < state.step
        if owed:
            metrics = self._validate()
            self._save(metrics)
        if not self._is_exhausted():
            metrics = self._loop(metrics)
        self.stop.close()
        self.checkpointer.wait()
        self.timer.mark("checkpoint")
        return metrics

    def _loop(self, metrics: dict[str, float]) -> dict[str, float]:
        state, plan, strategy = self.state, self.plan, self.strategy
        self.metrics.start()
        with closing(prefetched(self.data.train_steps(state.step, plan.stop_step), strategy.device)) as steps:
            for micro_batches in self.timer.iterate(steps):
                self.metrics.update(self.train_step(micro_batches))
                del micro_batches  # before the next ones are fetched
                state.step += 1
                action = self._poll()
                due = plan.due(state.step, action)
                if due.check:
                    check_replicas(state.replicated(), strategy, state.step)
                if due.log:
                    self.metrics.flush()  # before saving, so that no checkpoint holds weights that are not finite
                elif due.save:
                    state.pending_metrics = self.metrics.pending()
                if due.validate:
                    metrics = self._validate()
                if due.save:
                    self._save(metrics if due.validate else {})
                    state.pending_metrics = {}
                if action is StopAction.STOP:
                    self._preempt()
                if due.last or (due.validate and self._is_exhausted()):
                    break
        assert self.checkpointer.saved_step == state.step, "a run ends with a checkpoint"
        return metrics

    def _poll(self) -> StopAction:
        """What all ranks agreed on; a save that was requested while another one was being written is not repeated."""
        request = StopAction.NONE
        if self.stop_reason() is not None:
            request = StopAction.STOP
        elif self.checkpointer.due:
            request = StopAction.SAVE
        action = self.stop.poll(request)
        repeated = action is StopAction.SAVE and self.checkpointer.saved_step >= self.state.step - 1
        return StopAction.NONE if repeated else action

    def _validate(self) -> dict[str, float]:
        state = self.state
        state.last_eval_step = state.step
        if self.validate is None:
            return {}
        self.strategy.phase = f"the validation after step {state.step}"
        with self.metrics.paused(), self.timer.phase("evaluation"):
            found = self.validate(state.evaluated_model)
            metrics = {name: float(value) for name, value in found.items()}
            if not self._metrics_checked:
                check_metrics(metrics, self.strategy)
                self._metrics_checked = True
            metrics = self.strategy.broadcast_object(metrics)
            self.net.train()
            self.metrics.log(metrics)
            state.best.update(metrics)
        return metrics

    def _save(self, metrics: dict[str, float]) -> None:
        with self.metrics.paused(), self.timer.phase("checkpoint"):
            self.checkpointer.save(metrics)

    def _is_exhausted(self) -> bool:
        best = self.state.best
        if best.exhausted:
            logger.info(best.describe_stop())
        return best.exhausted

    def _preempt(self) -> None:
        self.checkpointer.wait()
        self.stop.close()
        why = self.stop_reason() or "another rank was asked to"
        raise Preempted(f"stopped at step {self.state.step} ({why}) with a checkpoint; go on with resume=auto.")

    def content(self) -> dict[str, Any]:
        """A checkpoint's content with what has not been logged yet; every rank must call it."""
        self.state.pending_metrics = self.metrics.pending()
        content = self.checkpointer.content()
        self.state.pending_metrics = {}
        return content
