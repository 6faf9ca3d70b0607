"""Settings of what a run writes beside its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from retina_dist.base.arguments import KnownArguments
from retina_dist.base.settings import setting

MLFLOW_PARENT = (
    "RETINA_DIST_MLFLOW_PARENT"  # environment: the parent of the MLflow runs of a sweep's jobs
)


@dataclass
class LoggingConfig(KnownArguments):
    """What a run writes beside its checkpoints."""

    family: ClassVar[str] = "logger"

    tensorboard: bool = True
    plots: bool = setting(True, "first_batch.jpg and report.html")
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
