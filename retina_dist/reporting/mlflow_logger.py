"""An MLflow run as a metric logger: metrics, settings, tags and files for a tracking server, without waiting for it.

Needs `mlflow-skinny`. All requests are made on the thread of a `RetryQueue`.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from retina_dist.errors import Preempted, UserError
from retina_dist.files import PathOrUrl, read_bytes, write_bytes
from retina_dist.redaction import redacted
from retina_dist.reporting.loggers import NullLogger
from retina_dist.reporting.retry_queue import RetryQueue

logger = logging.getLogger(__name__)

ID_FILE = "mlflow.json"
DOCUMENTS = (".yaml", ".json", ".csv", ".png", ".jpg")  # files of a run folder that are uploaded
# Limits of one request: https://mlflow.org/docs/latest/rest-api.html#request-limits
METRICS_A_REQUEST, PARAMS_A_REQUEST = 1000, 100
LONGEST = 500  # characters of a param or tag on older servers: https://mlflow.org/docs/latest/rest-api.html#log-param
MAX_WAITING = 200_000  # buffered metric values, some 30 MB
LINGER_S = 1.0  # metrics of this time go in one request
PATIENCE_S = 30.0  # at the end, for each remaining request
LIMIT_S = 120.0  # at the end, for all remaining requests; five times as long with a checkpoint
KILLED_S = 10.0  # the same after a preemption
# For MLflow's client, unless the environment sets them. By default it retries for four minutes; the queue retries too.
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
    """Logs metrics during a run; uploads files and sets the status FINISHED, KILLED or FAILED at its end.

    No method raises because of the server, and only `wait` and `end` wait for it, with limits. Failed requests are repeated; at
    most 200,000 values are buffered. It warns of the first failure, and at the end of what is missing. The status of
    a joined run is not changed.

    At the end it uploads the images, tables and settings in `folder`, the result of `documents` as JSON by file name, and
    `files` into the artifact folder "checkpoints".
    """

    def __init__(
        self,
        identity: Identity,
        folder: Path,
        *,
        params: Mapping[str, str],
        tags: Mapping[str, str],
        documents: Callable[[], Mapping[str, Any]] = dict,
        files: Sequence[Path] = (),
    ) -> None:
        for key, value in CLIENT.items():
            os.environ.setdefault(key, value)
        self.mlflow = importlib.import_module("mlflow")
        self.identity, self.folder = identity, folder
        self.where = redacted(identity.uri)
        self._params, self._tags = dict(params), dict(tags)
        self._documents, self._files = documents, tuple(files)
        # Level and message, logged by the calling thread, as an error of the console must not end the sender.
        self._messages: deque[tuple[int, str]] = deque()
        self._token = uuid.uuid4().hex
        self._client: Any = None
        self._id: str | None = None
        self._owned = False
        self._settled = threading.Event()  # the run is known, or the server did not answer at first
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, float, int, int]] = deque()
        self._sending = False
        self._ending = threading.Event()
        self._ended = False
        self._lost = 0  # values
        self._failure: str | None = None
        self._queue = RetryQueue(self._note_failure)
        self._queue.give(self._begin)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Queue metrics with the current time. A step that is logged again after a resume has both values in MLflow."""
        now = time.time_ns() // 1_000_000
        with self._lock:
            if len(self._waiting) + len(metrics) > MAX_WAITING:
                self._lost += len(metrics)
            else:
                self._waiting.extend((name, float(value), now, step) for name, value in metrics.items())
            if not self._sending:
                self._sending = True
                self._queue.give(self._send)
        self._log_messages()

    def wait(self, timeout_s: float) -> str | None:
        """The run's id; None if the server has not answered in time."""
        self._settled.wait(timeout_s)
        self._log_messages()
        return self._id

    def end(self, status: str, within_s: float = math.inf) -> None:
        """Send the remaining metrics, the files and the status; later calls do nothing.

        It waits as long as requests succeed, but at most ten seconds for KILLED, since SIGKILL may follow, and at most `within_s`.
        """
        if self._ended:
            return
        self._ended = True
        self._ending.set()
        for path in sorted(self.folder.glob("*")):
            if path.suffix in DOCUMENTS and path.name != ID_FILE:
                self._give(partial(self._upload, path=path))
        self._give(self._log_documents)
        for path in self._files:
            self._give(partial(self._upload, path=path, to="checkpoints"))
        self._give(partial(self._terminate, status=status))
        limit_s = KILLED_S if status == "KILLED" else LIMIT_S * (5 if self._files else 1)
        complete = self._queue.close(min(PATIENCE_S, within_s), min(limit_s, within_s))
        with self._lock:
            lost = self._lost + len(self._waiting)
            self._waiting.clear()
        if lost or not complete:
            what = f"{lost} values" if lost else "files or the end of the run"
            self._warn(f"{what} did not reach MLflow at {self.where}; the files in {self.folder} have everything.")
        self._log_messages()

    # on the thread of the queue

    def _begin(self) -> None:
        self._client = self.mlflow.MlflowClient(tracking_uri=self.identity.uri)
        run, how, self._owned = self._found() or (self._created(), "new", True)
        self._id = run.info.run_id
        self._settled.set()
        if self.identity.id_file:
            facts = {"tracking_uri": self.where, "run_id": self._id, "created": self._owned}
            try:
                if isinstance(self.identity.id_file, Path):
                    self.identity.id_file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(self.identity.id_file, (json.dumps(facts) + "\n").encode())
            except (OSError, UserError) as error:
                self._warn(f"a resumed run will be a new one in MLflow, because {ID_FILE} cannot be written ({error}).")
        if self._owned and run.info.status != "RUNNING":
            self._client.update_run(self._id, status="RUNNING")
        self._describe(run.data.params)
        self._messages.append((logging.INFO, f"MLflow: {how} run {run.info.run_name} ({self._id}) at {self.where}"))

    def _describe(self, before: Mapping[str, str]) -> None:
        """Log params and tags. MLflow's params cannot change; values that differ after a resume become tags."""
        now = {key: shortened(value) for key, value in self._params.items()}
        changed = {f"changed.{k}": f"{before[k]} -> {v}" for k, v in now.items() if before.get(k, v) != v}
        entities = self.mlflow.entities
        params = [entities.Param(key, value) for key, value in now.items() if key not in before]
        tags = [entities.RunTag(key, shortened(value)) for key, value in {**self._tags, **changed}.items()]
        for kind, items in (("params", params), ("tags", tags)):
            for i in range(0, len(items), PARAMS_A_REQUEST):
                self._is_taken(**{kind: items[i : i + PARAMS_A_REQUEST]})

    def _is_taken(self, **items: Any) -> bool:
        """Whether the server accepted a batch; raises if a retry may help."""
        try:
            self._client.log_batch(self._id, **items)
        except Exception as error:
            if self._note_failure(error):
                raise
            return False
        return True

    def _found(self) -> tuple[Any, str, bool] | None:
        """The run to join or continue, the word for it in the log, and whether we created it."""
        identity = self.identity
        if identity.joined:
            return self._client.get_run(identity.joined), "joined", False
        if not identity.go_on or identity.id_file is None:
            return None
        try:
            facts = json.loads(read_bytes(identity.id_file))
            if facts["tracking_uri"] != self.where:
                return None
            run = self._client.get_run(facts["run_id"])
        except (FileNotFoundError, ValueError, KeyError):
            return None
        except self.mlflow.MlflowException as error:
            if error.get_http_status_code() == 404:
                return None
            raise
        return (run, "continued", bool(facts["created"])) if run.info.lifecycle_stage == "active" else None

    def _created(self) -> Any:
        # As mlflow.start_run: user, source and git commit.
        from mlflow.tracking.context.registry import resolve_tags

        experiment = self._experiment()
        token = {"retina_dist.start": self._token}
        if self._failure:  # the response to an earlier request may have been lost
            filter_string = f"tags.`retina_dist.start` = '{self._token}'"
            if found := self._client.search_runs([experiment], filter_string):
                return found[0]
        parent = {"mlflow.parentRunId": self.identity.parent} if self.identity.parent else {}
        tags = {**resolve_tags(token), **parent}
        return self._client.create_run(experiment, run_name=self.identity.name, tags=tags)

    def _experiment(self) -> str:
        if self.identity.parent:
            return self._client.get_run(self.identity.parent).info.experiment_id
        name = self.identity.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name and os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return os.environ["MLFLOW_EXPERIMENT_ID"]
        name = name or "retina_dist"
        if found := self._client.get_experiment_by_name(name):
            return found.experiment_id
        try:
            return self._client.create_experiment(name)
        except self.mlflow.MlflowException:
            if found := self._client.get_experiment_by_name(name):  # another process was faster
                return found.experiment_id
            raise

    def _send(self) -> None:
        """Send the buffered metrics. Those of a failed request stay buffered, those of a refused one are lost."""
        self._ending.wait(LINGER_S)
        while True:
            with self._lock:
                batch = list(islice(self._waiting, METRICS_A_REQUEST))
                if not batch:
                    self._sending = False
                    return
            lost = self._log_metrics(batch)
            with self._lock:
                for _ in batch[: len(self._waiting)]:  # `end` may have given up
                    self._waiting.popleft()
                self._lost += lost

    def _log_metrics(self, batch: list[tuple[str, float, int, int]]) -> int:
        """How many values the server refused."""
        if self._id is None:
            return len(batch)
        finite = [values for values in batch if math.isfinite(values[1])]
        for some in (batch, finite):  # MLflow's own server takes NaN and infinity, others may not
            if self._is_taken(metrics=[self.mlflow.entities.Metric(*values) for values in some]):
                return len(batch) - len(some)
        return len(batch)

    def _upload(self, run: str, path: Path, to: str | None = None) -> None:
        if path.is_file():
            self._client.log_artifact(run, str(path), to)

    def _log_documents(self, run: str) -> None:
        for name, content in self._documents().items():
            self._client.log_text(run, json.dumps(content, indent=1) + "\n", name)

    def _terminate(self, run: str, status: str) -> None:
        if self._owned:
            self._client.set_terminated(run, status)

    def _give(self, job: Callable[[str], object]) -> None:
        """Queue a job for the run; skipped if there is no run."""

        def work() -> None:
            if self._id is not None:
                job(self._id)

        self._queue.give(work)

    def _note_failure(self, error: Exception) -> bool:
        """Whether to retry a failed request; warns of the first."""
        passing = self._is_passing(error)
        if self._failure is None:
            self._failure = root_of(error)
            self._warn(
                f"MLflow at {self.where}: {self._failure}; the training continues, and metrics.csv has everything."
            )
        self._settled.set()
        return passing

    def _is_passing(self, error: Exception) -> bool:
        """Whether an error is temporary: the server is unreachable or overloaded."""
        if isinstance(error, self.mlflow.MlflowException):
            status = error.get_http_status_code()
            return status >= 500 or status == 429
        return isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, PermissionError))

    def _warn(self, text: str) -> None:
        self._messages.append((logging.WARNING, text))

    def _log_messages(self) -> None:
        while self._messages:
            logger.log(*self._messages.popleft())


def status_of(error: BaseException | None) -> str:
    """MLflow's run status for an exception, or for none."""
    if error is None:
        return "FINISHED"
    return "KILLED" if isinstance(error, (Preempted, KeyboardInterrupt)) else "FAILED"


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


def shortened(text: str) -> str:
    """Text cut to the length that every server accepts."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def root_of(error: BaseException) -> str:
    """The root cause of an error in one line, such as "ConnectionRefusedError: [Errno 111] Connection refused"."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    words = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {words[:200]}" + "…" * (len(words) > 200)
