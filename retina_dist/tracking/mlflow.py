"""The MLflow run of a training. Needs `mlflow-skinny`.

One daemon thread makes all requests: MLflow's own asynchronous logging drops what a request could
not send, and lets the interpreter's exit wait for a dead server. A job of Azure ML has
MLFLOW_TRACKING_URI and MLFLOW_RUN_ID set.
https://learn.microsoft.com/azure/machine-learning/how-to-log-view-metrics
"""

import importlib
import json
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from retina_dist.base.errors import Preempted, describe_error, set_status
from retina_dist.base.files import read_bytes, write_json
from retina_dist.base.redaction import redacted
from retina_dist.base.text import format_duration, name_of_run, pluralize
from retina_dist.tracking.loggers import TrackedRun, Tracker
from retina_dist.tracking.settings import MLFLOW_PARENT, MlflowSettings

logger = logging.getLogger(__name__)

ID_FILE = "mlflow.json"
DOCUMENTS = (".yaml", ".json", ".csv", ".html", ".jpg")  # files of a run folder that are uploaded
# Characters of a param or tag on older servers:
# https://mlflow.org/docs/latest/rest-api.html#log-param
MAX_LENGTH = 500
NOTE = "mlflow.note.content"  # the description of a run
MAX_NOTE_LENGTH = 5000
MAX_METRICS = 1000  # of one request
BATCH_S = 1.0  # batch window for metric requests
RETRY_S = 5.0  # until a failed request is repeated
PATIENCE_S = 60.0  # at the end, since the last request that succeeded
MIN_PATIENCE_S = 5.0  # as even a short training gives its server time for an answer
PREEMPTED_S = 10.0  # after a preemption, as SIGKILL may follow
# For MLflow's client, unless the environment sets them. By default it repeats a request for four
# minutes, where the thread repeats too, and refuses a folder as the store.
CLIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}


class MlflowRun(Tracker):
    """Logs metrics during a training; at its end uploads files of the run, and sets the status.

    `begin` joins the run MLFLOW_RUN_ID, whose status it leaves, or continues the run of a resume;
    else it makes one.
    No method raises because of the server; only `end_with` waits for it, with limits. Requests are
    repeated while it is away. It warns of the first failure, and at the end of missing values.
    """

    settings = MlflowSettings

    def __init__(self, settings: MlflowSettings, *places: object) -> None:
        self.options = settings
        self._run: Any = None
        self._values: list[tuple[str, float, int, int]] = []
        self._num_refused = 0  # values
        self._status = ""  # once the run has ended
        self._has_warned = False
        self._ending = threading.Event()
        self._given_up = threading.Event()
        self._made_at = time.monotonic()
        self._succeeded_at = 0.0

    def begin(self, run: TrackedRun) -> None:
        """Start to send to the server of the settings."""
        for key, value in CLIENT.items():
            os.environ.setdefault(key, value)
        self.mlflow = importlib.import_module("mlflow")
        self.uri = str(self.options.server())
        self.where = redacted(self.uri)
        self.run = run
        self.joined = os.environ.get("MLFLOW_RUN_ID")
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Queue metrics with the current time.

        A step that is logged again after a resume has both values in MLflow.
        """
        now = time.time_ns() // 1_000_000
        self._values += [(name, float(value), now, step) for name, value in metrics.items()]

    def end_with(self, error: BaseException | None, within_s: float = math.inf) -> None:
        """Send the remaining metrics, the files and the status of a training that `error` ended.

        It waits while requests succeed. Without an answer it waits as long as the training took,
        at most a minute, or for `logging.mlflow_wait_s`; at most ten seconds after a preemption,
        and never longer than `within_s`. Later calls do nothing.
        """
        if self._status:
            return
        self._status = "FAILED" if error else "FINISHED"
        if isinstance(error, Preempted | KeyboardInterrupt):
            self._status = "KILLED"
            within_s = min(within_s, PREEMPTED_S)
        now = time.monotonic()
        patience = self.options.mlflow_wait_s
        if patience is None:
            patience = min(PATIENCE_S, max(MIN_PATIENCE_S, now - self._made_at))
        self._succeeded_at = now
        self._ending.set()
        while self._thread.is_alive():
            waited = time.monotonic() - self._succeeded_at
            if time.monotonic() >= now + within_s or waited >= patience:
                break
            left = format_duration(patience - waited)
            set_status(f"sending to MLflow, {len(self._values)} values left, giving up in {left}")
            self._thread.join(0.05)

        missing = self._num_refused + len(self._values)
        is_late = self._thread.is_alive()
        self._given_up.set()
        if missing or is_late:
            what = pluralize(missing, "value") if missing else "files or the end of the run"
            logger.warning(
                f"{what} did not reach MLflow at {self.where}; "
                f"the files in {self.run.folder} have everything."
            )

    # on the thread

    def _work(self) -> None:
        if not self._send(self._begin):
            return
        if self.run.digest:
            self._send(self._log_data, optional=True)
        self._send_metrics()
        self._send_files()
        if not self.joined:
            self._send(self.client.set_terminated, self.id, self._status)

    def _send_metrics(self) -> None:
        """Send the queued values in batches until the training has ended and none is left."""
        while not self._given_up.is_set():
            if not self._values:
                # a value may come while it waits
                if self._ending.wait(BATCH_S) and not self._values:
                    return
                continue
            batch = self._values[:MAX_METRICS]
            metrics = [self.mlflow.entities.Metric(*values) for values in batch]
            if not self._send(self.client.log_batch, self.id, metrics):
                self._num_refused += len(batch)
            del self._values[: len(batch)]

    def _send_files(self) -> None:
        for path in sorted(self.run.folder.glob("*")):
            if path.suffix in DOCUMENTS:
                self._send(self.client.log_artifact, self.id, str(path))
        best = self.run.best
        if self.options.mlflow_checkpoint and isinstance(best, Path) and best.is_file():
            self._send(self.client.log_artifact, self.id, str(best), "checkpoints")

    def _send(
        self, request: Callable[..., object], *arguments: Any, optional: bool = False
    ) -> bool:
        """Make a request, again while the server is away; return whether it was taken.

        An `optional` one is refused in silence.
        """
        while not self._given_up.is_set():
            try:
                request(*arguments)
                self._succeeded_at = time.monotonic()
                return True
            except Exception as error:
                is_away = self._is_away(error)
                if not self._has_warned and (is_away or not optional):
                    self._warn(error)
                if not is_away:
                    return False
                self._given_up.wait(RETRY_S)
        return False

    def _warn(self, error: Exception) -> None:
        self._has_warned = True
        root: BaseException = error
        while inner := root.__cause__ or root.__context__:  # such as "ConnectionRefusedError: …"
            root = inner
        logger.warning(
            f"MLflow at {self.where}: {describe_error(root)}; "
            "the training continues, metrics.csv has everything."
        )

    def _is_away(self, error: Exception) -> bool:
        """Whether the server is unreachable or overloaded."""
        if isinstance(error, self.mlflow.MlflowException):
            status = error.get_http_status_code()
            # 501: it does not have this request
            return status == 429 or (status >= 500 and status != 501)
        is_local = isinstance(error, FileNotFoundError | PermissionError)
        return isinstance(error, OSError) and not is_local

    def _begin(self) -> None:
        self.client = self.mlflow.MlflowClient(tracking_uri=self.uri)
        known = None
        if self.joined:
            known = self.client.get_run(self.joined)
        elif self.run.resumes:
            known = self._previous()
        self._run = run = known or self._run or self._create()  # kept, as a later request may fail
        self.id = run.info.run_id
        write_json(self.run.checkpoints / ID_FILE, {"run_id": self.id})
        if run.info.status != "RUNNING":
            self.client.update_run(self.id, status="RUNNING")
        self._log_facts(run)
        logger.info(
            f"MLflow: {'existing' if known else 'new'} run {run.info.run_name} ({self.id}) "
            f"at {self.where}"
        )

    def _log_facts(self, run: Any) -> None:
        """Log settings as params, and facts as tags."""
        entities = self.mlflow.entities
        tags = []
        facts = {
            "run_folder": self.run.folder,
            "checkpoints": self.run.checkpoints,
            "host": platform.node(),
            **self.run.tags,
        }
        for key, value in facts.items():
            tags.append(entities.RunTag(key, redacted(str(value))[:MAX_LENGTH]))
        if self.run.note and NOTE not in run.data.tags:
            tags.append(entities.RunTag(NOTE, self.run.note[:MAX_NOTE_LENGTH]))
        params = []
        for key, text in self.run.params.items():
            if key not in run.data.params:  # MLflow changes none
                params.append(entities.Param(key, text[:MAX_LENGTH]))
        self.client.log_batch(self.id, params=params, tags=tags)

    def _log_data(self) -> None:
        run = self.run
        entities = self.mlflow.entities
        source = json.dumps({"uri": redacted(run.data_source)})
        dataset = entities.Dataset(run.data_name[:MAX_LENGTH], run.digest[:36], "local", source)
        context = [entities.InputTag("mlflow.data.context", "train")]
        self.client.log_inputs(self.id, [entities.DatasetInput(dataset, context)])

    def _previous(self) -> Any:
        """The run before this resume, None if it is gone."""
        try:
            run_id = json.loads(read_bytes(self.run.checkpoints / ID_FILE))["run_id"]
            run = self.client.get_run(run_id)
        except (FileNotFoundError, ValueError, KeyError):
            return None
        except self.mlflow.MlflowException as error:
            if error.get_http_status_code() == 404:
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _create(self) -> Any:
        # as mlflow.start_run: user, source and git commit
        from mlflow.tracking.context.registry import resolve_tags

        tags = {}
        parent = os.environ.get(MLFLOW_PARENT)
        if parent:
            experiment_id = self.client.get_run(parent).info.experiment_id
            tags["mlflow.parentRunId"] = parent
        else:
            experiment_id = self._experiment()
        name = self.options.run_name or name_of_run(self.run.folder)
        return self.client.create_run(experiment_id, run_name=name, tags=resolve_tags(tags))

    def _experiment(self) -> str:
        """The id of the experiment that the settings or the environment name, made if absent."""
        by_environment = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if by_environment and not self.options.experiment:
            return by_environment
        name = self.options.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        name = name or "retina_dist"
        with suppress(self.mlflow.MlflowException):  # it exists
            self.client.create_experiment(name)
        return str(self.client.get_experiment_by_name(name).experiment_id)
