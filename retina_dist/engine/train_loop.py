"""The training loop, for any model that returns a dict of losses.

It knows neither backend, task nor configuration.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import torch
from torch.optim.optimizer import StateDict

from retina_dist.base.errors import Preempted, set_status
from retina_dist.engine.checkpoint.store import CheckpointStore
from retina_dist.engine.preemption import StopAction, StopConsensus
from retina_dist.engine.replicas import check_metrics, check_replicas
from retina_dist.engine.task import Metrics, MicroBatches, TakeStep, TaskData, Validator
from retina_dist.engine.train_step import WEIGHT, TrainStep
from retina_dist.tracking.callbacks import Callback

logger = logging.getLogger(__name__)


class TrainLoop:
    """Repeats `train_step` until the end of its plan, logging, validating and saving on the way.

    Every rank makes a TrainLoop and calls `fit`.

    Args:
        train_step: Takes one optimizer step; has state, plan and strategy.
        data: The micro-batches of each step.
        callbacks: Told of each step, row of metrics and validation.
        validate: Takes a model and returns metrics of all validation data. Rank 0's are broadcast,
            so that all ranks agree on `state.best` and on early stopping.
        store: Where the main rank writes checkpoints: by the plan, when all ranks stop, and
            `trainer.checkpoint_minutes` after the last one.
        metadata: Gives plain values of a checkpoint beside the state and the place in the data.
            Every rank calls it.
        stop_reason: Says why this process should end, or None. One step after any rank has a
            reason, all save and raise Preempted.
        resume_with: What continues the run, for the messages of errors.
    """

    def __init__(
        self,
        train_step: TrainStep,
        data: TaskData,
        callbacks: Callback,
        *,
        validate: Validator | None = None,
        store: CheckpointStore | None = None,
        metadata: Callable[[], StateDict] = dict,
        stop_reason: Callable[[], str | None] = lambda: None,
        resume_with: str = "resume=RUN",
    ) -> None:
        self.train_step: TakeStep = train_step
        self.state = train_step.state
        self.plan = train_step.plan
        self.strategy = train_step.strategy
        self.net = train_step.net
        self.timer = train_step.timer
        self.data = data
        self.callbacks = callbacks
        self.validate = validate
        self.store = store
        self.metadata = metadata
        self.checkpoint_minutes = train_step.settings.checkpoint_minutes
        self.stop_reason = stop_reason
        self.resume_with = resume_with
        self.state.meter.mean_over_ranks = train_step.mean_over_ranks
        self.last_loss = math.nan
        self.speeds: list[float] = []  # of each log line, in images per second
        self.stop = StopConsensus(self.strategy)
        self.saved_step = self.state.step
        self._saved_at = 0.0
        self.num_images = 0  # of the steps of this start, over all ranks
        self._metrics_checked = self.strategy.world_size == 1

    def fit(self) -> Metrics:
        """Train to the plan's last step and return the metrics of the last validation.

        Every checkpoint is on the disk when it returns or raises; a failed write raises on all
        ranks. If a validation fails, the steps before it are saved, and a resume starts with this
        validation.
        """
        self.timer.start()
        try:
            self.strategy.broadcast_state(self.state)
            metrics = self._run()
            self.timer.stop()
            return metrics
        except BaseException:
            try:
                if self.store:  # without the other ranks
                    self._save_unvalidated(self.store)
                    self.store.wait()
            except Exception as error:  # it must not hide the error that ended the run
                logger.warning(error)
            raise

    def _run(self) -> Metrics:
        """Run the loop; validate first if the previous run stopped before a due validation."""
        state = self.state
        self.net.train()
        self.saved_step = state.step
        self._saved_at = time.monotonic()
        metrics: Metrics = {}
        if self.plan.validates_at(state.step) and state.last_eval_step < state.step:
            metrics = self._validate()
            self._save(metrics)
        if not self._stops_early():
            metrics = self._loop(metrics)
        self._finish()
        self.timer.mark("checkpoint")
        return metrics

    def _loop(self, metrics: Metrics) -> Metrics:
        state = self.state
        plan = self.plan
        steps = self.data.train_steps(state.step, plan.stop_step)
        with closing(prefetched(steps, self.strategy.device)) as steps:
            for micro_batches in self.timer.iterate(steps):
                set_status(f"step {state.step + 1}")
                self.strategy.commit(self.checkpoint)
                values = self.train_step(micro_batches)
                del micro_batches  # before the next ones are fetched
                _, begin = self.data.position(state.step)
                # of all ranks; an epoch's last step may have fewer
                images = min(plan.batch_size, plan.num_images - begin)
                self.num_images += images
                state.meter.update(values, images)
                state.step += 1
                self.callbacks.on_step(state.step, values)
                action = self._agreed_action()
                # a request for SAVE is one step old: a checkpoint written meanwhile answers it
                timed = action is StopAction.SAVE and self.saved_step < state.step - 1
                due = plan.due(state.step, stopping=action is StopAction.STOP, timed=timed)
                if due.check:
                    check_replicas(state.replicated(), self.strategy, state.step, self.resume_with)
                if due.log:
                    # before saving, since a checkpoint holds what is not logged yet
                    self._log()
                if due.validate:
                    metrics = self._validate()
                if due.save:
                    self._save(metrics if due.validate else {})
                if action is StopAction.STOP:
                    self._preempt()
                if due.last or (due.validate and self._stops_early()):
                    break
        return metrics

    def _agreed_action(self) -> StopAction:
        """The action that the ranks agreed on, one step after any of them asked for it."""
        request = StopAction.NONE
        if self.stop_reason() is not None:
            request = StopAction.STOP
        elif self.strategy.is_main and self.checkpoint_minutes:
            now = time.monotonic()
            if now - self._saved_at >= 60 * self.checkpoint_minutes:
                request = StopAction.SAVE
                self._saved_at = now
        return self.stop.poll(request)

    def _log(self) -> None:
        """Log the means of the steps since the last call. Every rank must call it."""
        state = self.state
        metrics = state.meter.compute()
        if not metrics:
            return
        weight = metrics.pop(WEIGHT, 1.0)
        if weight < 1 - 1e-9:  # bad images were left out
            for name, value in metrics.items():
                if name.startswith("train/loss"):
                    metrics[name] = value / weight if weight else math.nan
        self.last_loss = metrics["train/loss"]
        self.speeds.append(metrics["time/images_per_s"])
        if state.skipped_steps:
            metrics["train/skipped_steps"] = state.skipped_steps
        if self.strategy.fp16_overflows:
            metrics["comm/fp16_overflows"] = self.strategy.fp16_overflows
        metrics["train/lr"] = self.plan.lr_at(state.step - 1)
        metrics["train/epoch"] = self.plan.epoch_at(state.step)
        self.callbacks.on_log(metrics, state.step)

    def _validate(self) -> Metrics:
        state = self.state
        state.last_eval_step = state.step
        if self.validate is None:
            return {}
        set_status("validation")
        with self.state.meter.paused(), self.timer.phase("evaluation"):
            computed = self.validate(state.evaluated_model)
            metrics = {name: float(value) for name, value in computed.items()}
            if not self._metrics_checked:
                check_metrics(metrics, self.strategy)
                self._metrics_checked = True
            metrics = self.strategy.broadcast_object(metrics)
            self.net.train()
            self.callbacks.on_validation(metrics, state.step)
            state.best.update(metrics)
        return metrics

    def _save(self, metrics: Metrics) -> None:
        """Start to write a checkpoint. Raises CheckpointError if the one before was not written."""
        store = self.store
        step = self.state.step
        metric = metrics.get(self.state.best.name or "")
        with self.state.meter.paused(), self.timer.phase("checkpoint"):
            self._saved_at = time.monotonic()
            self.saved_step = step
            content = self.checkpoint(metrics)
            if store:
                self.strategy.on_main(lambda: store.save(content, step, metric))

    def _save_unvalidated(self, store: CheckpointStore) -> None:
        state = self.state
        if self.strategy.is_main and state.last_eval_step == state.step > self.saved_step:
            state.last_eval_step = self.saved_step  # a resume validates first
            store.save(self.checkpoint(), state.step)

    def checkpoint(self, metrics: Metrics | None = None) -> StateDict:
        """The content of a checkpoint now; `metrics` are of this step's validation. Collective."""
        epoch, cursor = self.data.position(self.state.step)
        place = {"sampler": {"epoch": epoch, "cursor": cursor}, "metrics": metrics or {}}
        return {**self.state.state_dict(), **self.metadata(), **place}

    def _finish(self) -> None:
        """Leave no collective in flight, and every checkpoint written, on all ranks.

        Raises CheckpointError if one was not.
        """
        assert self.saved_step == self.state.step, "a run ends with a checkpoint"
        self.stop.close()
        if self.store:
            self.strategy.on_main(self.store.wait)

    def _stops_early(self) -> bool:
        if self.state.best.exhausted:
            logger.info(self.state.best.describe_stop())
        return self.state.best.exhausted

    def _preempt(self) -> None:
        self._finish()
        why = self.stop_reason() or "another rank was asked to"
        step = self.state.step
        raise Preempted(
            f"stopped at step {step} ({why}) with a checkpoint; continue with {self.resume_with}."
        )


def prefetched(
    steps: Iterator[MicroBatches], device: torch.device
) -> Generator[MicroBatches, None, None]:
    """The same steps in the same order; on CUDA their batches are copied one step ahead.

    The copies go to `device` on a side stream; from pinned memory the host does not wait for them.
    An error of `steps` is raised at its step; closing the generator closes `steps`.
    """
    try:
        if device.type == "cuda":
            yield from _one_ahead(steps, device)
        else:
            yield from steps
    finally:
        if hasattr(steps, "close"):
            steps.close()


def _one_ahead(steps: Iterator[MicroBatches], device: torch.device) -> Iterator[MicroBatches]:
    side = torch.cuda.Stream(device)

    def fetch() -> tuple[MicroBatches, torch.cuda.Event] | Exception | None:
        try:
            batches = next(steps, None)
        except Exception as error:
            return error
        if batches is None:
            return None
        # Memory of earlier batches, all that the host has let go of, may be used again once the
        # work queued with it is done.
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            return [batch.to(device, non_blocking=True) for batch in batches], side.record_event()

    coming = fetch()
    while coming is not None:
        if isinstance(coming, Exception):
            raise coming
        batches, arrived = coming
        coming = fetch()
        torch.cuda.current_stream(device).wait_event(arrived)
        yield batches
        del batches  # before the next copy, so that the memory of two steps' batches is enough
