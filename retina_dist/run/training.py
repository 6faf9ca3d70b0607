"""A run from its first step to its report."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from retina_dist.base.console import Console, print_redacted
from retina_dist.base.errors import Preempted, UserError, describe_error, is_collective, set_status
from retina_dist.base.files import write_json
from retina_dist.base.text import as_override
from retina_dist.config.run_config import RunConfig, changed_settings
from retina_dist.engine.checkpoint.store import BEST, CheckpointStore
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.nonfinite import Divergence, NonFiniteGuard
from retina_dist.engine.phase_timer import format_timings, peak_gib, summary
from retina_dist.engine.plan import Plan
from retina_dist.engine.preemption import PreemptionWatch
from retina_dist.engine.profile import profiled
from retina_dist.engine.state import TrainState
from retina_dist.engine.task import Facts, Metrics, Task, TaskData
from retina_dist.engine.train_loop import TrainLoop
from retina_dist.reporting.run_files import RESULT
from retina_dist.run.build import build_train_step, monitor_of
from retina_dist.run.records import versions
from retina_dist.run.resume import Run, checkpoint_folder
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.tracking.callbacks import Callback, CallbackList, TrainingStart
from retina_dist.tracking.loggers import LoggerCollection, RunLoggers, TensorBoardLogger, TrackedRun
from retina_dist.tracking.progress import LOSS, Progress

if TYPE_CHECKING:
    from retina_dist.run.digest_recorder import DigestRecorder

logger = logging.getLogger(__name__)


@dataclass
class Training:
    """The objects of a run, its state restored.

    `fit` trains it on every rank, and its main rank writes the result.
    """

    config: RunConfig
    strategy: DistributedStrategy
    task: Task
    plan: Plan
    data: TaskData
    run: Run
    state: TrainState
    checkpoints: CheckpointStore
    logger_kinds: Sequence[type]
    describe: Callable[[], TrackedRun]
    digest: DigestRecorder | None = field(default=None, init=False)

    def fit(
        self, console: Console, loggers: RunLoggers, callbacks: Sequence[Callback] = ()
    ) -> Metrics:
        """Train to the end of the plan and return the metrics of the last validation.

        result.json says how it ended. `callbacks` are called after the loggers.
        """
        started = time.perf_counter()
        watch = PreemptionWatch()
        heard = CallbackList([*self._loggers(console, loggers), *self._begin_digest(), *callbacks])
        loop = self._loop(heard, watch)
        start = TrainingStart(
            self.state.model,
            self.run.folder,
            self.state.step,
            self.plan.stop_step,
            self.strategy.rank,
            self.strategy.world_size,
            loop.train_step,
        )
        traces = self.run.folder / "profile"
        try:
            heard.on_start(start)
            traced = profiled(loop.train_step, self.plan, self.state.step, traces, self.strategy)
            with watch, traced as loop.train_step:
                metrics = loop.fit()
            loss = metrics.get("val/loss", 0.0)
            if not math.isfinite(loss):
                raise Divergence(
                    f"val/loss={loss} after step {self.state.step}; "
                    "lower optimizer.lr or set trainer.gradient_clip."
                )
        except Exception as error:
            self._write_failure(error, time.perf_counter() - started, loop, loggers)
            raise
        finally:
            heard.on_end()

        set_status("writing the results")
        times = summary(loop.timer, self.strategy)
        if self.strategy.is_main:
            write_json(self.run.folder / "timings.json", times)
            cpu_s = sum(rank["cpu_s"] for rank in times["ranks"])
            self._write_result(time.perf_counter() - started, loop, metrics=metrics, cpu_s=cpu_s)
            self._write_report(metrics)
            self._log_results(times)
        return metrics

    def _loggers(self, console: Console, made: RunLoggers) -> list[Callback]:
        """Progress, the package's loggers and a custom one, on the main rank."""
        if not self.strategy.is_main:
            return []
        settings = self.config.logging
        folder = self.run.folder
        step = self.run.resume_step
        progress = Progress(
            self.plan.stop_step,
            step or 0,
            steps_per_epoch=self.plan.steps_per_epoch,
            images_per_step=self.plan.batch_size,
            processes=self.strategy.world_size,
            headline=self.task.headline_metrics,
            peak_gib=partial(peak_gib, self.strategy.device),
        )
        console.write = progress.write
        console.beat = progress.beat
        loggers = []
        for kind in self.logger_kinds:
            loggers.append(made.make(kind, settings, folder, step, self.describe))
        heard = [each for each in loggers if isinstance(each, Callback)]
        return [progress, LoggerCollection(*loggers), *heard]

    def _begin_digest(self) -> Sequence[Callback]:
        """Begin digest.csv where it is wanted; its recorder. Collective."""
        is_virtual = self.plan.virtual_ranks is not None
        wanted = self.config.logging.digest
        if wanted is None:
            wanted = is_virtual
        if not wanted:
            return []
        from retina_dist.run.digest_recorder import DigestRecorder

        self.digest = DigestRecorder(self.state, self.strategy, same_losses=is_virtual)
        self.strategy.on_main(partial(self.digest.begin, self.run, self.task))
        return [self.digest]

    def _loop(self, callbacks: Callback, watch: PreemptionWatch) -> TrainLoop:
        task = self.task
        state = self.state
        guard = NonFiniteGuard(
            state,
            self.plan,
            self.strategy,
            limit=self.config.trainer.max_nonfinite_steps,
            folder=self.run.folder,
            inspect=task.inspect,
        )
        evaluator = task.build_evaluator(self.data)
        best = getattr(evaluator, "best", None)
        if isinstance(best, BestMetric):
            # a worse validation after a resume is not the best one
            best.load_state_dict(state.best.state_dict())
        facts: Facts = {
            "versions": versions(),
            "world_size": self.strategy.world_size,
            "backend": self.strategy.backend,
        }
        if self.strategy.is_main:  # which alone writes checkpoints
            facts["data_digests"] = task.data_digests()
        facts = task.metadata(state.model) | facts

        def metadata() -> Facts:
            if self.digest:
                facts["digest"] = self.digest.close_row()
            return facts

        loop = TrainLoop(
            build_train_step(self.config, state, self.plan, self.strategy, guard),
            self.data,
            callbacks,
            validate=evaluator,
            store=self.checkpoints,
            metadata=metadata,
            stop_reason=lambda: watch.reason,
            resume_with=as_override("resume", self.run.folder),
        )
        if self.digest:
            loop.train_step = self.digest.watching(loop.train_step)
        return loop

    def _write_failure(
        self, error: Exception, seconds: float, loop: TrainLoop, loggers: RunLoggers
    ) -> None:
        is_main = self.strategy.is_main
        if is_main:
            try:
                self._write_result(seconds, loop, error=error)
            except (OSError, UserError) as other:  # a full disk, say; what ended the run counts
                print_redacted(f"warning: {other}", sys.stderr)
        together = is_collective(error)
        others_wait = together or self.strategy.world_size == 1
        # the others wait below; a preempted process has no time for a report
        if is_main and others_wait and not isinstance(error, Preempted):
            self._write_report()
        if together:
            loggers.end_with(error, within_s=self.config.strategy.timeout_s / 2)
            # launchers end the others as soon as one has gone
            self.strategy.run_collectively(lambda: None)

    def _write_result(
        self,
        seconds: float,
        loop: TrainLoop,
        error: Exception | None = None,
        metrics: Mapping[str, float] = {},
        cpu_s: float = 0.0,
    ) -> None:
        """Write result.json, with null for NaN and infinity.

        `cpu_s` are the CPU seconds of the loop, validations included; 0 for unknown.
        """
        best = self.state.best
        status = "failed" if error else "ok"
        if isinstance(error, Preempted):
            status = "preempted"
        speeds = loop.speeds[1:] or loop.speeds  # the first has the start in it
        content = {
            "status": status,
            "error": describe_error(error) if error else None,
            "step": self.state.step,
            "planned_steps": self.plan.total_steps,
            "monitor": monitor_of(self.config),
            "monitor_mode": best.mode,
            "best": best.value,
            "seconds": seconds,
            "world_size": self.strategy.world_size,
            "backend": self.strategy.backend,
            "metrics": {name: _or_null(value) for name, value in metrics.items()},
            LOSS: _or_null(loop.last_loss),
            "images_per_s": fmean(speeds) if speeds else None,
            "images_per_cpu_s": loop.num_images / cpu_s if cpu_s else None,
        }
        if self.digest:
            content["digest"] = self.digest.head
        write_json(self.run.folder / RESULT, content)

    def _write_report(self, metrics: Metrics | None = None) -> None:
        """Write the report and TensorBoard's images; without `metrics`, of a run that failed."""
        folder = self.run.folder
        try:
            if self.config.logging.plots:
                from retina_dist.reporting.page import page_if_possible
                from retina_dist.reporting.run_report import write_report

                if metrics is not None:
                    self.task.draw_results(self.state.evaluated_model, self.data, folder)
                logger.info(page_if_possible(partial(write_report, folder), folder))
            if self.config.logging.tensorboard and metrics is not None:
                step = self.state.step
                changed = {key: value for key, value, _ in changed_settings(self.config)}
                finite = {name: x for name, x in metrics.items() if math.isfinite(x)}
                images = sorted([*folder.glob("*.jpg"), *folder.glob("images/*.jpg")])
                tensorboard = TensorBoardLogger(self.config.logging, folder, step)
                tensorboard.log_results(changed, finite, images, step)
                tensorboard.close()
        # Anything may fail in drawing, custom code included; the weights and result.json are
        # written.
        except Exception as error:
            logger.warning(
                f"no report: {describe_error(error)}; "
                f"python -m retina_dist.report {as_override('run', folder)} tries again"
            )

    def _log_results(self, timings: dict[str, object]) -> None:
        folder = self.run.folder
        state = self.state
        for line in self.task.describe_results(folder):
            logger.info(line)
        logger.info(format_timings(timings))
        if state.best.value is not None:
            line = f"best {state.best.name} {state.best.value:.3f}"
            if self.config.trainer.save_top_k:
                line += f": {checkpoint_folder(self.config, folder) / BEST}"
            logger.info(line)
        if state.step == self.plan.stop_step < self.plan.total_steps:
            logger.info(
                f"trainer.stop_after ended the run at step {state.step} of "
                f"{self.plan.total_steps}; continue with {as_override('resume', folder)} "
                "trainer.stop_after=null"
            )


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None
