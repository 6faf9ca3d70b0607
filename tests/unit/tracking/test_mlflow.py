"""When a training has an MLflow run, and what it says when it has none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retina_dist.base.errors import ConfigError, Preempted, activity
from retina_dist.tracking import mlflow as mlflow_run
from retina_dist.tracking.loggers import RunLoggers, TrackedRun
from retina_dist.tracking.mlflow import MlflowRun
from retina_dist.tracking.settings import LoggingConfig
from tests.commands import wait_for

URI = "http://me:secret@127.0.0.1:9"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "retina_dist")
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_RUN_ID",
        "MLFLOW_EXPERIMENT_NAME",
        "MLFLOW_EXPERIMENT_ID",
    ):
        monkeypatch.delenv(name, raising=False)


def server(**settings: Any) -> str | None:
    return LoggingConfig(**settings).server()


def test_a_server_without_the_package(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    assert server() is None
    (sentence,) = caplog.messages
    assert "http://127.0.0.1:9 is named, but mlflow cannot be imported" in sentence
    assert 'pip install "retina-dist[mlflow]"' in sentence
    assert "secret" not in sentence
    with pytest.raises(
        ConfigError,
        match=r'logging.mlflow=true, but mlflow cannot be .* pip install "retina-dist\[mlflow\]"',
    ):
        server(mlflow="true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(
        ConfigError, match="logging.mlflow=true needs a server; set MLFLOW_TRACKING_URI"
    ):
        server(mlflow="true")


ENTITIES = ("Param", "RunTag", "Metric", "Dataset", "DatasetInput", "InputTag")


class Server:
    """An MLflow server and its client, which can be away."""

    class MlflowException(Exception):
        status = 404

        def get_http_status_code(self) -> int:
            return self.status

    def __init__(self) -> None:
        self.away = False
        self.runs: dict[str, Any] = {}
        self.values: list[tuple[Any, ...]] = []
        self.entities = SimpleNamespace(**{name: lambda *values: values for name in ENTITIES})

    def MlflowClient(self, tracking_uri: str) -> Any:  # noqa: N802
        return self

    def __getattr__(self, request: str) -> Any:
        def ask(*arguments: Any, **named: Any) -> Any:
            if self.away:
                raise ConnectionRefusedError(111, "refused")
            return getattr(
                self, f"_{request}", lambda *_, **__: SimpleNamespace(experiment_id="1")
            )(*arguments, **named)

        if request.startswith("_"):
            raise AttributeError(request)
        return ask

    def _create_run(self, experiment: str, run_name: str, tags: Any) -> Any:
        info = SimpleNamespace(
            run_id=str(len(self.runs)),
            run_name=run_name,
            status="RUNNING",
            lifecycle_stage="active",
        )
        self.runs[info.run_id] = SimpleNamespace(info=info, data=SimpleNamespace(params={}))
        return self.runs[info.run_id]

    def _get_run(self, run_id: str) -> Any:
        if run_id not in self.runs:
            raise self.MlflowException(f"Run with id={run_id} not found")
        return self.runs[run_id]

    def _update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id].info.status = status

    _set_terminated = _update_run

    def _log_batch(self, run_id: str, metrics: Any = (), **named: Any) -> None:
        self.values += [(name, value, step) for name, value, _, step in metrics]


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setitem(sys.modules, "mlflow", server)  # type: ignore[arg-type]
    monkeypatch.setitem(
        sys.modules, "mlflow.tracking.context.registry", SimpleNamespace(resolve_tags=dict)
    )  # type: ignore[arg-type]
    monkeypatch.setattr(mlflow_run, "BATCH_S", 0.01)
    monkeypatch.setattr(mlflow_run, "RETRY_S", 0.01)
    return server


@contextmanager
def make(folder: Path, wait_s: float | None = None, **facts: Any) -> Iterator[MlflowRun]:
    settings = LoggingConfig(mlflow_uri=URI, mlflow_wait_s=wait_s)
    checkpoints = folder / "checkpoints"
    run = TrackedRun(folder, checkpoints, checkpoints / "best.pt", **facts)
    with RunLoggers() as loggers:
        yield loggers.make(MlflowRun, settings, folder, None, lambda: run)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("error", "status"),
    [(Preempted(), "KILLED"), (KeyboardInterrupt(), "KILLED"), (RuntimeError(), "FAILED")],
)
def test_a_run_ends_as_the_training_does(
    mlflow: Server, tmp_path: Path, error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)), make(tmp_path):
        raise error
    assert mlflow.runs["0"].info.status == status
    with make(tmp_path, resumes=True):
        wait_for(lambda: mlflow.runs["0"].info.status == "RUNNING")
    assert [run.info.status for run in mlflow.runs.values()] == ["FINISHED"]


def test_a_run_that_cannot_be_continued(
    mlflow: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path):
        pass
    mlflow.runs["0"].info.lifecycle_stage = "deleted"
    for content in (None, '{"run_id": "of another server"}', "{"):
        if content:
            (tmp_path / "checkpoints" / "mlflow.json").write_text(content)
        with make(tmp_path, resumes=True):
            pass
    assert len(mlflow.runs) == 4
    monkeypatch.setattr(mlflow.MlflowException, "status", 403)
    (tmp_path / "checkpoints" / "mlflow.json").write_text('{"run_id": "of someone else"}')
    with make(tmp_path, resumes=True):
        pass
    assert len(mlflow.runs) == 4


def test_a_run_to_join_that_is_not_there(
    mlflow: Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other one is made."""
    monkeypatch.setenv("MLFLOW_RUN_ID", "7")
    with make(tmp_path) as run:
        run.log({"a": 1.0}, 1)
    assert mlflow.runs == {}
    first, last = caplog.messages
    assert "Run with id=7 not found; the training continues, metrics.csv has everything." in first
    assert last.startswith("1 value did not reach MLflow at http://127.0.0.1:9; the files in")


@pytest.mark.parametrize("status", [400, 404, 501])
def test_a_server_that_refuses_the_data_gets_the_rest(
    mlflow: Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    def log_inputs(*_: Any) -> None:
        raise mlflow.MlflowException("no data")

    monkeypatch.setattr(mlflow.MlflowException, "status", status)
    monkeypatch.setattr(mlflow, "_log_inputs", log_inputs, raising=False)
    monkeypatch.setattr(mlflow_run, "PATIENCE_S", 30.0)
    with make(tmp_path, digest="0" * 64) as run:
        run.log({"a": 1.0}, 1)
    assert mlflow.values == [("a", 1.0, 1)]
    assert mlflow.runs["0"].info.status == "FINISHED"
    assert [text for text in caplog.messages if "new run" not in text] == []


def test_a_server_that_dies_and_comes_back_gets_all(
    mlflow: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make(tmp_path) as run:
        run.log({"a": 1.0}, 1)
        wait_for(lambda: mlflow.values)
        mlflow.away = True
        run.log({"a": 2.0}, 2)
        wait_for(lambda: len(caplog.messages) == 2)
        run.log({"a": 3.0, "b": 4.0}, 3)
        mlflow.away = False
    assert mlflow.values == [("a", 1.0, 1), ("a", 2.0, 2), ("a", 3.0, 3), ("b", 4.0, 3)]
    assert mlflow.runs["0"].info.status == "FINISHED"
    assert (
        "MLflow at http://127.0.0.1:9: ConnectionRefusedError: [Errno 111] refused; the training"
        in caplog.messages[1]
    )
    assert len(caplog.messages) == 2


def test_a_value_of_the_last_moment_arrives(mlflow: Server, tmp_path: Path) -> None:
    """It is logged while the thread waits for values, just before the end."""
    for _ in range(20):
        with make(tmp_path) as run:
            wait_for(lambda: mlflow.runs)
            run.log({"a": 1.0}, 1)
        assert mlflow.values.pop() == ("a", 1.0, 1)


@pytest.mark.parametrize(("wait_s", "longest"), [(None, 3.0), (0.1, 1.0)], ids=["null", "given"])
def test_a_dead_server_costs_no_more_than_the_training_or_the_setting(
    mlflow: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wait_s: float | None,
    longest: float,
) -> None:
    monkeypatch.setattr(mlflow_run, "MIN_PATIENCE_S", 0.5)
    mlflow.away = True
    with make(tmp_path, wait_s):
        started = time.monotonic()
    assert time.monotonic() - started < longest
    assert activity()[0].startswith("sending to MLflow, 0 values left, giving up in 0:0")
