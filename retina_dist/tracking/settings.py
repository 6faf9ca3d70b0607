"""Settings of what a run writes beside its checkpoints."""

import importlib
import logging
import os
import re
from dataclasses import dataclass
from typing import ClassVar

from retina_dist.base.arguments import KnownArguments
from retina_dist.base.errors import ConfigError, describe_error
from retina_dist.base.redaction import redacted
from retina_dist.base.settings import setting

logger = logging.getLogger(__name__)

# environment: the parent of the MLflow runs of a sweep's jobs
MLFLOW_PARENT = "RETINA_DIST_MLFLOW_PARENT"


@dataclass
class LoggerSettings(KnownArguments):
    """Base of the settings of a logger, whose class has them as `settings`."""

    family: ClassVar[str] = "logger"
    entry: ClassVar[str] = "csv"  # of the family

    def is_on(self) -> bool:
        """Whether a run makes the logger."""
        return True


@dataclass
class TensorBoardSettings(LoggerSettings):
    """Settings of the events for TensorBoard."""

    entry: ClassVar[str] = "tensorboard"
    tensorboard: bool = True

    def is_on(self) -> bool:
        return self.tensorboard


@dataclass
class MlflowSettings(LoggerSettings):
    """Settings of the MLflow run."""

    entry: ClassVar[str] = "mlflow"
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

    def check(self) -> None:
        """Raise ConfigError for a server without its scheme, which MLflow reads as a folder."""
        uri = self.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        is_bare = re.fullmatch(r"localhost|\w+(\.\w+)+|(?!file:)[\w.-]+:\d+", uri)
        if self.mlflow != "false" and is_bare and not os.path.exists(uri):
            raise ConfigError(
                f"logging.mlflow_uri={uri} (or MLFLOW_TRACKING_URI) has no scheme; write "
                f"http://{uri} for a server, or file://{os.path.abspath(uri)} for a folder."
            )

    def is_on(self) -> bool:
        return self.server() is not None

    def server(self) -> str | None:
        """The URI of the MLflow server to use, None without one.

        `logging.mlflow=auto` logs why a named server is not used; `true` raises ConfigError.
        """
        uri = self.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if self.mlflow == "false" or not (uri or self.mlflow == "true"):
            return None
        if not uri:
            raise ConfigError(
                "logging.mlflow=true needs a server; set MLFLOW_TRACKING_URI or logging.mlflow_uri."
            )
        try:
            importlib.import_module("mlflow")
            return uri
        except Exception as error:  # a package that does not fit the others raises all kinds
            cause = describe_error(error)
            reason = f'mlflow cannot be imported ({cause}); pip install "retina-dist[mlflow]"'
            if self.mlflow == "true":
                raise ConfigError(f"logging.mlflow=true, but {reason}.") from error
        logger.info(
            f"no MLflow: {redacted(uri)} is named, but {reason}, or set logging.mlflow=false."
        )
        return None


@dataclass
class LoggingConfig(MlflowSettings, TensorBoardSettings):
    """What a run writes beside its checkpoints: the settings of all loggers of the package."""

    plots: bool = setting(
        True, "first_batch.jpg, report.html, and the analyses of the last and the best validation"
    )
    digest: bool | None = setting(
        None, "digest.csv, with which reproduce checks the run; null: with trainer.virtual_ranks"
    )

    def chosen(self) -> list[str]:
        """The entries that a run makes; no other one is imported."""
        names = []
        for kind in reversed(type(self).__mro__):
            if issubclass(kind, LoggerSettings) and "entry" in vars(kind) and kind.is_on(self):
                names.append(kind.entry)
        return names
