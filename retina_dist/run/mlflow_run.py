"""The MLflow run of a training. Needs `mlflow-skinny`.

One daemon thread makes all requests: MLflow's own asynchronous logging drops what a request could not send, and lets the
interpreter's exit wait for a dead server. A job of Azure ML has MLFLOW_TRACKING_URI and MLFLOW_RUN_ID set.
https://learn.microsoft.com/azure/machine-learning/how-to-log-view-metrics
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from retina_dist.base.errors import ConfigError, Preempted, describe_error
from retina_dist.base.files import read_bytes, write_json
from retina_dist.base.redaction import redacted, redacted_tree
from retina_dist.base.registry import as_dict
from retina_dist.base.settings import flattened
from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.store import BEST
from retina_dist.run.records import COMMAND
from retina_dist.run.resume import Run, checkpoint_folder
from retina_dist.tracking.loggers import MetricLogger
from retina_dist.tracking.settings import MLFLOW_PARENT, LoggingConfig

logger = logging.getLogger(__name__)

ID_FILE = "mlflow.json"
DOCUMENTS = (".yaml", ".json", ".csv", ".html", ".jpg")  # files of a run folder that are uploaded
LONGEST = 500  # characters of a param or tag on older servers: https://mlflow.org/docs/latest/rest-api.html#log-param
NOTE, LONGEST_NOTE = "mlflow.note.content", 5000  # the description of a run
LINGER_S = 1.0  # metrics of this time go in one request
AGAIN_S = 5.0  # until a failed request is repeated
PATIENCE_S = 60.0  # at the end, since the last request that succeeded
KILLED_S = 10.0  # after a preemption, as SIGKILL may follow
# For MLflow's client, unless the environment sets them. By default it repeats a request for four minutes; the thread repeats too.
CLIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def tracking_server(settings: LoggingConfig) -> str | None:
    """The URI of the MLflow server to use, if any; mlflow=auto logs why a named one is not used, mlflow=true raises ConfigError."""
    uri = settings.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if settings.mlflow == "false" or not (uri or settings.mlflow == "true"):
        return None
    if not uri:
        raise ConfigError(
            "logging.mlflow=true needs a server; set MLFLOW_TRACKING_URI or logging.mlflow_uri."
        )
    try:
        importlib.import_module("mlflow")
        return uri
    except Exception as error:  # a package that does not fit the others raises all kinds
        reason = f'mlflow cannot be imported ({describe_error(error)}); pip install "retina-dist[mlflow]"'
        if settings.mlflow == "true":
            raise ConfigError(f"logging.mlflow=true, but {reason}.") from error
    logger.info(f"no MLflow: {redacted(uri)} is named, but {reason}, or set logging.mlflow=false.")
    return None


class MlflowRun(MetricLogger, AbstractContextManager["MlflowRun"]):
    """Logs metrics during a training; at its end uploads the images, tables and settings of the run folder, and sets the status.

    It joins the run MLFLOW_RUN_ID, whose status it leaves, or with `resumes` continues the run before; else it makes one.
    No method raises because of the server; only `end_with` waits for it, with limits. Requests are repeated while it is away.
    It warns of the first failure, and at the end of missing values.
    """

    def __init__(
        self,
        uri: str,
        config: RunConfig,
        run: Run,
        tags: Mapping[str, Any],
        resumes: bool = False,
        digest: str = "",
    ) -> None:
        for key, value in CLIENT.items():
            os.environ.setdefault(key, value)
        self.mlflow = importlib.import_module("mlflow")
        self.uri, self.where = uri, redacted(uri)
        self.config, self.folder, self.digest = config, run.folder.resolve(), digest
        self.checkpoints = checkpoint_folder(config, self.folder)
        self.joined, self.resumes = (
            os.environ.get("MLFLOW_RUN_ID"),
            resumes or bool(run.resume_step),
        )
        self.tags = {
            "run_folder": self.folder,
            "checkpoints": self.checkpoints,
            "host": platform.node(),
            **tags,
        }
        self._run: Any = None
        self._values: list[tuple[str, float, int, int]] = []
        self._num_refused = 0  # values
        self._status = ""  # once the run has ended
        self._has_warned = False
        self._ending, self._given_up = threading.Event(), threading.Event()
        self._succeeded_at = 0.0
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Queue metrics with the current time. A step that is logged again after a resume has both values in MLflow."""
        now = time.time_ns() // 1_000_000
        self._values.extend((name, float(value), now, step) for name, value in metrics.items())

    def end_with(self, error: BaseException | None, within_s: float = math.inf) -> None:
        """Send the remaining metrics, the files and the status of a training that `error` ended; later calls do nothing.

        It waits while requests succeed, but at most ten seconds after a preemption and at most `within_s`.
        """
        if self._status:
            return
        killed = isinstance(error, Preempted | KeyboardInterrupt)
        self._status = "KILLED" if killed else "FAILED" if error else "FINISHED"
        self._succeeded_at = time.monotonic()
        until = self._succeeded_at + min(KILLED_S if killed else math.inf, within_s)
        self._ending.set()
        while self._thread.is_alive() and time.monotonic() < min(
            until, self._succeeded_at + PATIENCE_S
        ):
            self._thread.join(0.05)
        missing, is_late = self._num_refused + len(self._values), self._thread.is_alive()
        self._given_up.set()
        if missing or is_late:
            what = f"{missing} values" if missing else "files or the end of the run"
            logger.warning(
                f"{what} did not reach MLflow at {self.where}; the files in {self.folder} have everything."
            )

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end_with(error)

    # on the thread

    def _work(self) -> None:
        if not self._send(self._begin):
            return
        if self.digest:
            self._send(self._log_data, optional=True)
        while not self._given_up.is_set() and (self._values or not self._ending.wait(LINGER_S)):
            batch = self._values[:1000]  # as many as a request may have
            metrics = [self.mlflow.entities.Metric(*values) for values in batch]
            self._num_refused += (
                0 if self._send(self.client.log_batch, self.id, metrics) else len(batch)
            )
            del self._values[: len(batch)]
        for path in sorted(path for path in self.folder.glob("*") if path.suffix in DOCUMENTS):
            self._send(self.client.log_artifact, self.id, str(path))
        if (
            self.config.logging.mlflow_checkpoint
            and (best := Path(str(self.checkpoints / BEST))).is_file()
        ):
            self._send(self.client.log_artifact, self.id, str(best), "checkpoints")
        if not self.joined:
            self._send(self.client.set_terminated, self.id, self._status)

    def _send(
        self, request: Callable[..., object], *arguments: Any, optional: bool = False
    ) -> bool:
        """Make a request, again while the server is away; return whether it was taken. An `optional` one is refused in silence."""
        while not self._given_up.is_set():
            try:
                request(*arguments)
                self._succeeded_at = time.monotonic()
                return True
            except Exception as error:
                away = self._is_away(error)
                if not self._has_warned and (away or not optional):
                    self._has_warned = True
                    root: BaseException = error
                    while (
                        inner := root.__cause__ or root.__context__
                    ):  # such as "ConnectionRefusedError: …"
                        root = inner
                    problem = f"MLflow at {self.where}: {describe_error(root)}"
                    logger.warning(
                        f"{problem}; the training continues, metrics.csv has everything."
                    )
                if not away:
                    return False
                self._given_up.wait(AGAIN_S)
        return False

    def _is_away(self, error: Exception) -> bool:
        """Whether the server is unreachable or overloaded."""
        if isinstance(error, self.mlflow.MlflowException):
            status = error.get_http_status_code()
            return status == 429 or (
                status >= 500 and status != 501
            )  # 501: it does not have this request
        return isinstance(error, OSError) and not isinstance(
            error, FileNotFoundError | PermissionError
        )

    def _begin(self) -> None:
        self.client = self.mlflow.MlflowClient(tracking_uri=self.uri)
        known = (
            self.client.get_run(self.joined)
            if self.joined
            else self._previous()
            if self.resumes
            else None
        )
        self._run = run = known or self._run or self._create()  # kept, as a later request may fail
        write_json(self.checkpoints / ID_FILE, {"run_id": run.info.run_id})
        if run.info.status != "RUNNING":
            self.client.update_run(run.info.run_id, status="RUNNING")
        entities, params = self.mlflow.entities, flattened(redacted_tree(as_dict(self.config)))
        new = params.keys() - run.data.params.keys()  # MLflow changes none
        tags = [
            entities.RunTag(key, redacted(str(value))[:LONGEST]) for key, value in self.tags.items()
        ]
        if (
            self.folder / COMMAND
        ).is_file() and NOTE not in run.data.tags:  # the page of the run, as Markdown
            start = json.loads(read_bytes(self.folder / COMMAND))[-1]
            rows = "".join(
                f"| {key} | {value} | {default} |\n" for key, value, default in start["changed"]
            )
            table = f"| setting | value | default |\n|---|---|---|\n{rows}"
            tags.append(entities.RunTag(NOTE, f"    {start['command']}\n\n{table}"[:LONGEST_NOTE]))
        parameters = [entities.Param(key, params[key][:LONGEST]) for key in sorted(new)]
        self.client.log_batch(run.info.run_id, params=parameters, tags=tags)
        self.id = run.info.run_id
        logger.info(
            f"MLflow: {'existing' if known else 'new'} run {run.info.run_name} ({self.id}) at {self.where}"
        )

    def _log_data(self) -> None:
        data, entities = self.config.data, self.mlflow.entities
        source = json.dumps({"uri": redacted(str(getattr(data, "root", None) or data.name))})
        dataset = entities.Dataset(data.name[:LONGEST], self.digest[:36], "local", source)
        context = [entities.InputTag("mlflow.data.context", "train")]
        self.client.log_inputs(self.id, [entities.DatasetInput(dataset, context)])

    def _previous(self) -> Any:
        """The run before this resume, None if it is gone."""
        try:
            run = self.client.get_run(json.loads(read_bytes(self.checkpoints / ID_FILE))["run_id"])
        except (FileNotFoundError, ValueError, KeyError):
            return None
        except self.mlflow.MlflowException as error:
            if error.get_http_status_code() == 404:
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _create(self) -> Any:
        from mlflow.tracking.context.registry import (
            resolve_tags,
        )  # as mlflow.start_run: user, source and git commit

        client, settings, parent = self.client, self.config.logging, os.environ.get(MLFLOW_PARENT)
        experiment_id = None if settings.experiment else os.environ.get("MLFLOW_EXPERIMENT_ID")
        if parent:
            experiment_id = client.get_run(parent).info.experiment_id
        elif not experiment_id:
            name = settings.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "retina_dist"
            with suppress(self.mlflow.MlflowException):  # it exists
                client.create_experiment(name)
            experiment_id = client.get_experiment_by_name(name).experiment_id
        name = (
            "/".join(self.folder.parts[-2:]) if self.folder.name.isdecimal() else self.folder.name
        )  # a sweep's job
        tags = resolve_tags({"mlflow.parentRunId": parent} if parent else {})
        return client.create_run(experiment_id, run_name=settings.run_name or name, tags=tags)
