"""An MLflow run as a metric logger. Needs `mlflow-skinny`.

MLflow's own asynchronous logging drops what a request could not send and lets the interpreter's exit wait for a
dead server, so one daemon thread makes all requests here.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from retina_dist.errors import Preempted
from retina_dist.files import PathOrUrl, read_bytes, write_bytes
from retina_dist.redaction import redacted
from retina_dist.reporting.loggers import NullLogger

logger = logging.getLogger(__name__)

ID_FILE = "mlflow.json"
DOCUMENTS = (".yaml", ".json", ".csv", ".png", ".jpg")  # files of a run folder that are uploaded
A_REQUEST = {"metrics": 1000, "params": 100, "tags": 100}  # https://mlflow.org/docs/latest/rest-api.html#request-limits
LONGEST = 500  # characters of a param or tag on older servers: https://mlflow.org/docs/latest/rest-api.html#log-param
MAX_WAITING = 200_000  # buffered metric values, some 30 MB
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


@dataclass(frozen=True)
class Identity:
    """Which run to log to: the existing run `joined`; or with `go_on` the one named in `id_file`; otherwise a new one.

    A new run has `name` and `experiment` (None: MLFLOW_EXPERIMENT_NAME, MLFLOW_EXPERIMENT_ID or "retina_dist"; with a run `parent`,
    its experiment). Its id is written to `id_file`.
    """

    uri: str
    name: str
    experiment: str | None = None
    parent: str | None = None
    joined: str | None = None
    id_file: PathOrUrl | None = None
    go_on: bool = False
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


class TrackedRun(NullLogger):
    """A logger with a status at the end of the run, which leaving its context sets too; this one discards everything."""

    def end(self, status: str, within_s: float = math.inf) -> None:
        """Set the status of the run: FINISHED, FAILED or KILLED. Returns within `within_s` seconds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(status_of(error))


class MlflowRun(TrackedRun):
    """Logs metrics during a run; at its end uploads `files` and the images, tables and settings in `folder`, and sets the status.

    No method raises because of the server; only `wait` and `end` wait for it, with limits. Requests are repeated while it is away.
    It warns of the first failure, and at the end of what is missing. The status of a joined run stays.
    """

    def __init__(self, identity: Identity, folder: Path, files: Sequence[Path] = ()) -> None:
        for key, value in CLIENT.items():
            os.environ.setdefault(key, value)
        self.mlflow = importlib.import_module("mlflow")
        self.identity, self.folder, self.files = identity, folder, files
        self.where = redacted(identity.uri)
        self.id: str | None = None
        self._run: Any = None
        self._values: list[tuple[str, float, int, int]] = []
        self._lost = 0  # values
        self._status: str | None = None  # once the run has ended
        self._failure = ""
        self._settled, self._ending, self._done = threading.Event(), threading.Event(), threading.Event()
        self._given_up = False
        self._succeeded_at = 0.0
        threading.Thread(target=self._work, name="mlflow", daemon=True).start()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Queue metrics with the current time. A step that is logged again after a resume has both values in MLflow."""
        now = time.time_ns() // 1_000_000
        if len(self._values) + len(metrics) > MAX_WAITING:
            self._lost += len(metrics)
        else:
            self._values.extend((name, float(value), now, step) for name, value in metrics.items())

    def wait(self, timeout_s: float) -> str | None:
        """The run's id; None if the server has not answered in time."""
        self._settled.wait(timeout_s)
        return self.id

    def end(self, status: str, within_s: float = math.inf) -> None:
        """Send the remaining metrics, the files and the status; later calls do nothing.

        It waits while requests succeed, but at most ten seconds for KILLED and at most `within_s`.
        """
        if self._status is not None:
            return
        self._status, self._succeeded_at = status, time.monotonic()
        self._ending.set()
        until = time.monotonic() + min(KILLED_S if status == "KILLED" else math.inf, within_s)
        while not self._done.wait(0.05) and time.monotonic() < min(until, self._succeeded_at + PATIENCE_S):
            pass
        self._given_up = not self._done.is_set()
        lost = self._lost + len(self._values)
        if self._given_up or lost:
            missing = f"{lost} values" if lost else "files or the end of the run"
            logger.warning(
                f"{missing} did not reach MLflow at {self.where}; the files in {self.folder} have everything."
            )

    # on the thread

    def _work(self) -> None:
        if not self._again(self._begin):
            self._ending.wait()
        while self.id and not self._given_up and (self._values or not self._ending.wait(LINGER_S)):
            batch = self._values[: A_REQUEST["metrics"]]
            if batch:
                self._lost += 0 if self._again(self._log_metrics, batch) else len(batch)
                del self._values[: len(batch)]
        if self.id:
            for path in sorted(self.folder.glob("*")):
                if path.suffix in DOCUMENTS and path.name != ID_FILE:
                    self._again(self.client.log_artifact, self.id, str(path))
            for path in filter(Path.is_file, self.files):
                self._again(self.client.log_artifact, self.id, str(path), "checkpoints")
            if not self.identity.joined:
                self._again(self.client.set_terminated, self.id, self._status)
        self._done.set()

    def _again(self, request: Callable[..., object], *arguments: Any) -> bool:
        """Repeat a request while the server is away; return whether it was taken."""
        while not self._given_up:
            try:
                request(*arguments)
                self._succeeded_at = time.monotonic()
                return True
            except Exception as error:
                self._settled.set()
                if not self._failure:
                    self._failure = root_of(error)
                    logger.warning(
                        f"MLflow at {self.where}: {self._failure}; the training goes on, metrics.csv has everything."
                    )
                if not self._is_away(error):
                    return False
                if self._ending.wait(AGAIN_S):
                    time.sleep(0.5)
        return False

    def _is_away(self, error: Exception) -> bool:
        """Whether the server is unreachable or overloaded."""
        if isinstance(error, self.mlflow.MlflowException):
            return error.get_http_status_code() >= 500 or error.get_http_status_code() == 429
        return isinstance(error, OSError) and not isinstance(error, FileNotFoundError | PermissionError)

    def _log_metrics(self, batch: Sequence[tuple[str, float, int, int]]) -> None:
        self.client.log_batch(self.id, metrics=[self.mlflow.entities.Metric(*values) for values in batch])

    def _begin(self) -> None:
        identity, entities = self.identity, self.mlflow.entities
        self.client = self.mlflow.MlflowClient(tracking_uri=identity.uri)
        known = self.client.get_run(identity.joined) if identity.joined else self._previous()
        self._run = run = known or self._run or self._create()  # kept, as a later request may fail
        if identity.id_file:
            write_bytes(identity.id_file, json.dumps({"run_id": run.info.run_id}).encode())
        if run.info.status != "RUNNING":
            self.client.update_run(run.info.run_id, status="RUNNING")
        before = run.data.params  # which cannot change in MLflow: other values become tags
        params = {key: value[:LONGEST] for key, value in identity.params.items()}
        changed = {f"changed.{k}": f"{before[k]} -> {v}"[:LONGEST] for k, v in params.items() if before.get(k, v) != v}
        new = [entities.Param(key, value) for key, value in params.items() if key not in before]
        tags = [entities.RunTag(key, value[:LONGEST]) for key, value in {**identity.tags, **changed}.items()]
        for name, items in (("params", new), ("tags", tags)):
            for i in range(0, len(items), A_REQUEST[name]):
                self.client.log_batch(run.info.run_id, **{name: items[i : i + A_REQUEST[name]]})
        self.id = run.info.run_id
        self._settled.set()
        logger.info(f"MLflow: {'existing' if known else 'new'} run {run.info.run_name} ({self.id}) at {self.where}")

    def _previous(self) -> Any:
        """The run that `id_file` names, None if it is gone."""
        if not self.identity.go_on or self.identity.id_file is None:
            return None
        try:
            run = self.client.get_run(json.loads(read_bytes(self.identity.id_file))["run_id"])
            return run if run.info.lifecycle_stage == "active" else None
        except (FileNotFoundError, ValueError, KeyError):
            return None
        except self.mlflow.MlflowException as error:
            if error.get_http_status_code() != 404:
                raise
            return None

    def _create(self) -> Any:
        from mlflow.tracking.context.registry import resolve_tags  # as mlflow.start_run: user, source and git commit

        identity, client = self.identity, self.client
        if identity.parent:
            experiment_id = client.get_run(identity.parent).info.experiment_id
            tags = resolve_tags({"mlflow.parentRunId": identity.parent})
            return client.create_run(experiment_id, run_name=identity.name, tags=tags)
        name = identity.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        experiment_id = None if name else os.environ.get("MLFLOW_EXPERIMENT_ID")
        if not experiment_id:
            name = name or "retina_dist"
            known = client.get_experiment_by_name(name)
            try:
                experiment_id = known.experiment_id if known else client.create_experiment(name)
            except self.mlflow.MlflowException:  # another process was faster
                experiment_id = client.get_experiment_by_name(name).experiment_id
        return client.create_run(experiment_id, run_name=identity.name, tags=resolve_tags())


def status_of(error: BaseException | None) -> str:
    """MLflow's run status for an exception, or for none."""
    if error is None:
        return "FINISHED"
    return "KILLED" if isinstance(error, Preempted | KeyboardInterrupt) else "FAILED"


def root_of(error: BaseException) -> str:
    """The root cause of an error in one line, such as "ConnectionRefusedError: [Errno 111] Connection refused"."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
