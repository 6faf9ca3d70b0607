"""Settings of what a run writes beside its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from retina_dist.base.arguments import KnownArguments
from retina_dist.base.settings import setting

# environment: the parent of the MLflow runs of a sweep's jobs
MLFLOW_PARENT = "RETINA_DIST_MLFLOW_PARENT"


@dataclass
class LoggerSettings(KnownArguments):
    """Base of the settings of a logger, whose class has them as `settings`."""

    family: ClassVar[str] = "logger"

    def is_on(self) -> bool:
        """Whether a run makes the logger."""
        return True


@dataclass
class TensorBoardSettings(LoggerSettings):
    """Settings of the events for TensorBoard."""

    tensorboard: bool = True

    def is_on(self) -> bool:
        return self.tensorboard


@dataclass
class MlflowSettings(LoggerSettings):
    """Settings of the MLflow run."""

    mlflow: str = setting(
        "auto", "auto: if a server is named and mlflow installed", choices=("auto", "true", "false")
    )
    mlflow_uri: str | None = setting(None, "the tracking server; null: MLFLOW_TRACKING_URI")
    mlflow_wait_s: float | None = setting(
        None,
        "seconds to wait for an answer at the end; null: as long as the training, at most 60",
        at_least=0,
        at_most=10**5,
    )
    mlflow_checkpoint: bool = setting(False, "upload best.pt at the end")
    experiment: str | None = setting(
        None, "MLflow's experiment; null: MLFLOW_EXPERIMENT_NAME or _ID, else retina_dist"
    )
    run_name: str | None = setting(None, "MLflow's name of the run; null: the run folder's")


@dataclass
class LoggingConfig(MlflowSettings, TensorBoardSettings):
    """What a run writes beside its checkpoints: the settings of all loggers of the package."""

    plots: bool = setting(True, "first_batch.jpg and report.html")
