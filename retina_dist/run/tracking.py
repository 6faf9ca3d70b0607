"""Which MLflow run a training or a sweep is, by settings and environment.

As Azure ML has it: a job finds MLFLOW_TRACKING_URI and MLFLOW_RUN_ID set, and joins that run.
https://learn.microsoft.com/azure/machine-learning/how-to-log-view-metrics
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.resume import Run, checkpoint_folder
from retina_dist.engine.checkpoint.store import BEST, read_manifest
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.files import PathOrUrl, parse_path
from retina_dist.redaction import redacted, redacted_tree
from retina_dist.reporting.mlflow_logger import ID_FILE, Identity, MlflowRun, TrackedRun, flattened
from retina_dist.reporting.settings import LoggingConfig

logger = logging.getLogger(__name__)

INSTALL = 'pip install "retina-dist[mlflow]"'
PARENT_WITHIN_S = 30.0  # a sweep waits so long for its own run's id


def tracking_server(settings: LoggingConfig) -> str | None:
    """The URI of the MLflow server to use, if any; with mlflow=auto it logs why a named server cannot be used.

    Raises ConfigError where mlflow=true cannot be.
    """
    uri = settings.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
    required = settings.mlflow == "true"
    if settings.mlflow == "false" or not (uri or required):
        return None
    if not uri:
        raise ConfigError("logging.mlflow=true needs a server; set MLFLOW_TRACKING_URI or logging.mlflow_uri.")
    reason = _why_not(uri)
    if reason is None:
        return uri
    if required:
        raise ConfigError(f"logging.mlflow=true, but {reason}.")
    logger.info(f"no MLflow: {redacted(uri)} is named, but {reason}, or logging.mlflow=false.")
    return None


def _why_not(uri: str) -> str | None:
    """Why a server cannot be used, with a remedy; None where nothing speaks against it."""
    is_folder = uri.startswith("file:") or "://" not in uri
    if is_folder and "MLFLOW_ALLOW_FILE_STORE" not in os.environ:
        return "MLflow writes to no folder any more; give a server's address, or sqlite:///mlflow.db"
    try:
        importlib.import_module("mlflow")
    except Exception as error:  # a package that does not fit the others raises all kinds
        return f"mlflow cannot be imported ({type(error).__name__}: {error}); {INSTALL}"
    return None


def tracked_run(
    uri: str | None, config: RunConfig, run: Run, tags: Mapping[str, Any], go_on: bool = False
) -> TrackedRun:
    """The training's MLflow run, at most one; none without a `uri`.

    In this order: the run MLFLOW_RUN_ID, unless there is a `logging.mlflow_parent`; on a resume, or with `go_on`, the run before; a
    new one, a child of `logging.mlflow_parent` if that is given.
    """
    if uri is None:
        return TrackedRun()
    settings = config.logging
    checkpoints = checkpoint_folder(config, run.folder)
    identity = Identity(
        uri,
        settings.run_name or run.folder.name,
        settings.experiment,
        parent=settings.mlflow_parent,
        joined=None if settings.mlflow_parent else os.environ.get("MLFLOW_RUN_ID"),
        # with the checkpoints, where those outlive the run folder
        id_file=(parse_path(config.trainer.checkpoint_dir) if config.trainer.checkpoint_dir else run.folder) / ID_FILE,
        go_on=go_on or bool(run.resume_step),
    )
    best = [checkpoints / BEST] if isinstance(checkpoints, Path) and settings.mlflow_checkpoint else []
    resumed = {"resumed_from": run.resumed_from} if run.resumed_from else {}
    return MlflowRun(
        identity,
        run.folder,
        params=flattened(redacted_tree(asdict(config))),
        tags=_texts({"run_folder": run.folder.resolve(), "host": platform.node(), **resumed, **tags}),
        documents=lambda: {
            "checkpoints.json": {"folder": redacted(str(_absolute(checkpoints))), "kept": _manifest(checkpoints)}
        },
        files=best,
    )


def tracked_sweep(settings: LoggingConfig, folder: Path) -> tuple[TrackedRun, str | None]:
    """The run that those of the sweep's jobs are children of, and its id; MLFLOW_RUN_ID, where it is set."""
    uri = tracking_server(settings)
    if uri is None:
        return TrackedRun(), None
    joined = os.environ.get("MLFLOW_RUN_ID")
    identity = Identity(uri, settings.run_name or folder.name, settings.experiment, joined=joined)
    run = MlflowRun(identity, folder, params={}, tags=_texts({"run_folder": folder.resolve(), "host": platform.node()}))
    return run, joined or run.wait(PARENT_WITHIN_S)


def as_child(config: RunConfig, parent: str | None) -> RunConfig:
    """The settings of a sweep's job."""
    if parent is None:
        return config
    return replace(config, logging=replace(config.logging, mlflow_parent=parent, run_name=None))


def _manifest(folder: PathOrUrl) -> list[dict[str, Any]]:
    try:
        return read_manifest(folder)
    except CheckpointError:
        return []


def _absolute(folder: PathOrUrl) -> PathOrUrl:
    return folder.resolve() if isinstance(folder, Path) else folder


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: redacted(str(value)) for key, value in values.items()}
