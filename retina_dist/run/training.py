"""The objects of a run that is about to begin, and what it writes when it ends."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.resume import Run, checkpoint_folder
from retina_dist.engine.checkpoint.store import BEST
from retina_dist.engine.nonfinite import Divergence
from retina_dist.engine.phase_timer import format_timings, summary
from retina_dist.engine.preemption import PreemptionWatch
from retina_dist.engine.trainer import Trainer
from retina_dist.errors import UserError, is_collective
from retina_dist.files import write_atomically
from retina_dist.reporting.console import doing, print_redacted
from retina_dist.reporting.loggers import MetricLogger
from retina_dist.reporting.mlflow_logger import TrackedRun, status_of
from retina_dist.run.build import monitor_of
from retina_dist.run.result import write_result
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task import Task, TaskData

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """A run with all its objects; `fit` trains it on every rank, and its main rank writes the result."""

    config: RunConfig
    strategy: DistributedStrategy
    task: Task
    data: TaskData
    run: Run
    trainer: Trainer
    watch: PreemptionWatch
    metric_logger: MetricLogger
    tracked: Sequence[TrackedRun]

    def fit(self) -> dict[str, float]:
        """Train to the end of the plan and return the metrics of the last validation; result.json says how it ended.

        Raises what ends a training: Divergence, Preempted, PeerLost or another error.
        """
        started = time.perf_counter()
        try:
            with self.watch:
                metrics = self.trainer.fit()
            if not math.isfinite(metrics.get("val/loss", 0.0)):
                raise Divergence(
                    f"val/loss={metrics['val/loss']} after step {self.trainer.state.step}: the weights are ruined; lower "
                    "optimizer.lr, lengthen schedule.warmup or set trainer.gradient_clip."
                )
        except Exception as error:
            self._write_failure(error, time.perf_counter() - started)
            raise
        finally:
            self.metric_logger.close()
        doing("writing the results")
        times = summary(self.trainer.timer, self.strategy)
        if self.strategy.is_main:
            text = json.dumps(times, indent=1) + "\n"
            write_atomically(self.run.folder / "timings.json", lambda temporary: temporary.write_text(text))
            self._write_result(time.perf_counter() - started, metrics=metrics)
            self._draw_results()
            self._log_results(times)
        return metrics

    def _write_failure(self, error: Exception, seconds: float) -> None:
        try:
            logger.debug(f"stopped: {type(error).__name__}: {error}")
            if self.strategy.is_main:
                self._write_result(seconds, error=error)
        except (OSError, UserError) as other:  # a full disk, say; what ended the run is what counts
            print_redacted(f"warning: {other}", sys.stderr)
        if is_collective(error):
            for tracked in self.tracked:
                tracked.end(status_of(error), within_s=self.config.strategy.timeout_s / 2)
            self.strategy.run_collectively(lambda: None)  # launchers end the others as soon as one has gone

    def _write_result(self, seconds: float, **outcome: Any) -> None:
        write_result(
            self.run.folder,
            step=self.trainer.state.step,
            loss=self.trainer.train_logger.last_loss,
            speeds=self.trainer.train_logger.speeds,
            monitor=monitor_of(self.config),
            best=self.trainer.state.best.value,
            seconds=seconds,
            world_size=self.strategy.world_size,
            backend=self.strategy.backend,
            **outcome,
        )

    def _draw_results(self) -> None:
        if self.config.logging.plots:
            from retina_dist.reporting.plots import plot_curves

            names = self.task.metric_names
            metrics = [n for n in self.task.headline_metrics if n in names] or [n for n in names if n != "val/loss"]
            plot_curves(self.run.folder / "metrics.csv", self.run.folder / "curves.png", metrics[:3])
            self.task.draw_results(self.trainer.state.evaluated_model, self.data, self.run.folder)

    def _log_results(self, timings: dict[str, Any]) -> None:
        folder, state, plan = self.run.folder, self.trainer.state, self.trainer.plan
        for line in self.task.describe_results(folder):
            logger.info(line)
        logger.info(f"{format_timings(timings)}; more in {folder / 'timings.json'}")
        if state.best.value is not None:
            best = f": {checkpoint_folder(self.config, folder) / BEST}" if self.config.trainer.save_top_k else ""
            logger.info(f"best {state.best.name} {state.best.value:.3f}{best}")
        if state.step == plan.stop_step < plan.total_steps:
            logger.info(
                f"stopped after step {state.step} of {plan.total_steps}, as trainer.stop_after={self.config.trainer.stop_after} "
                f"asks; to go on, give the same command with resume=auto output_dir={folder} and without trainer.stop_after."
            )
