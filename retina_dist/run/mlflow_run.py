"""The MLflow run of a training or a sweep, by settings and environment.

A job of Azure ML has MLFLOW_TRACKING_URI and MLFLOW_RUN_ID set, and joins that run.
https://learn.microsoft.com/azure/machine-learning/how-to-log-view-metrics
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.resume import Run, checkpoint_folder
from retina_dist.engine.checkpoint.store import BEST
from retina_dist.errors import ConfigError
from retina_dist.files import parse_path
from retina_dist.redaction import redacted, redacted_tree
from retina_dist.reporting.mlflow_logger import ID_FILE, Identity, MlflowRun, TrackedRun
from retina_dist.reporting.settings import LoggingConfig

logger = logging.getLogger(__name__)

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
    try:
        importlib.import_module("mlflow")
        return uri
    except Exception as error:  # a package that does not fit the others raises all kinds
        reason = f'mlflow cannot be imported ({type(error).__name__}: {error}); pip install "retina-dist[mlflow]"'
    if required:
        raise ConfigError(f"logging.mlflow=true, but {reason}.")
    logger.info(f"no MLflow: {redacted(uri)} is named, but {reason}, or logging.mlflow=false.")
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
    settings, checkpoints = config.logging, checkpoint_folder(config, run.folder)
    where = checkpoints.resolve() if isinstance(checkpoints, Path) else checkpoints
    facts = {"checkpoints": where, **tags, **({"resumed_from": run.resumed_from} if run.resumed_from else {})}
    identity = Identity(
        uri,
        settings.run_name or run.folder.name,
        settings.experiment,
        parent=settings.mlflow_parent,
        joined=None if settings.mlflow_parent else os.environ.get("MLFLOW_RUN_ID"),
        # with the checkpoints, where those outlive the run folder
        id_file=(parse_path(config.trainer.checkpoint_dir) if config.trainer.checkpoint_dir else run.folder) / ID_FILE,
        go_on=go_on or bool(run.resume_step),
        params=flattened(redacted_tree(asdict(config))),
        tags=_texts(run.folder, facts),
    )
    best = [checkpoints / BEST] if isinstance(checkpoints, Path) and settings.mlflow_checkpoint else []
    return MlflowRun(identity, run.folder, best)


def tracked_sweep(settings: LoggingConfig, folder: Path) -> tuple[TrackedRun, str | None]:
    """The run that those of the sweep's jobs are children of, and its id; MLFLOW_RUN_ID, where it is set."""
    uri = tracking_server(settings)
    if uri is None:
        return TrackedRun(), None
    joined, tags = os.environ.get("MLFLOW_RUN_ID"), _texts(folder, {})
    run = MlflowRun(
        Identity(uri, settings.run_name or folder.name, settings.experiment, joined=joined, tags=tags), folder
    )
    return run, joined or run.wait(PARENT_WITHIN_S)


def as_child(config: RunConfig, parent: str | None) -> RunConfig:
    """The settings of a sweep's job."""
    if parent is None:
        return config
    return replace(config, logging=replace(config.logging, mlflow_parent=parent, run_name=None))


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every setting by its dotted key, as on the command line.

    >>> flattened({"data": {"sizes": [64, 96], "root": None}, "seed": 1})
    {'data.sizes': '[64, 96]', 'data.root': 'null', 'seed': '1'}
    """
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _texts(folder: Path, facts: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: redacted(str(value))
        for key, value in {"run_folder": folder.resolve(), "host": platform.node(), **facts}.items()
    }
