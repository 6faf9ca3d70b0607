"""Runs as a real MLflow server has them, and servers that hang, refuse, or die in the middle."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import select
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import retina_dist.train
from retina_dist.config.compose import load_config
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.engine.checkpoint.resume import Run
from retina_dist.errors import Preempted
from retina_dist.reporting.loggers import read_metrics
from retina_dist.reporting.settings import MLFLOW_PARENT, LoggingConfig
from retina_dist.run import mlflow_run
from retina_dist.run.assemble import train
from retina_dist.run.mlflow_run import MlflowRun, flattened
from tests.e2e.conftest import SMALL

NEEDED = ("mlflow", "flask", "flask_cors", "sqlalchemy", "alembic", "pandas")  # by a server of mlflow-skinny
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"an MLflow server needs {', '.join(MISSING)}")

QUICK = (
    *SMALL,
    "trainer.max_duration=2steps",
    "schedule.warmup=0steps",
    "trainer.validate_every=2steps",
    "logging=quiet",
)
OFFLINE = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`mlflow server` with SQLite in a folder of its own."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = [
        "--backend-store-uri",
        f"sqlite:///{folder}/runs.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, *stores],
            cwd=folder,
            env={**os.environ, **OFFLINE},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 180
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < until, (folder / "server.log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def _answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mlflow_run, "LINGER_S", 0.05)
    monkeypatch.setattr(mlflow_run, "AGAIN_S", 0.2)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    for name, value in {**OFFLINE, **mlflow_run.CLIENT}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def client(uri: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """What reads the server; the environment names it, and an experiment of the test's own."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    return mlflow.MlflowClient(tracking_uri=uri)


def runs(client: Any) -> list[Any]:
    """Those of the test's experiment, oldest first."""
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"]) if experiment else []


def history(client: Any, run: Any) -> dict[str, list[tuple[int, str]]]:
    """Each metric's (step, value with all digits), the one logged last where a step has several."""
    found = {}
    for name in run.data.metrics:
        points = sorted(client.get_metric_history(run.info.run_id, name), key=lambda p: p.timestamp)
        found[name] = sorted({p.step: repr(p.value) for p in points}.items())
    return found


def logged(folder: Path) -> dict[str, list[tuple[int, str]]]:
    series = read_metrics(folder / "metrics.csv")
    return {name: list(zip(steps, map(repr, values))) for name, (steps, values) in series.items()}


def artifacts(client: Any, run: Any, folder: str | None = None) -> set[str]:
    return {file.path for file in client.list_artifacts(run.info.run_id, folder)}


def trained(*overrides: str) -> DetectionRunConfig:
    config = load_config("train", [*overrides, f"data.root={os.getcwd()}/data", "output_dir=run"])
    train(config)
    return config


# a training


def test_a_run_that_is_resumed_is_one_run(client: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    longer = (*SMALL, "trainer.max_duration=6steps", "trainer.validate_every=3steps", "trainer.keep_last=2")
    config = trained(*longer, "logging.mlflow=true")
    (run,) = runs(client)
    assert run.data.params == flattened(asdict(config))
    first = logged(tmp_path / "run")
    assert history(client, run) == first
    resumed = trained(*longer, "resume=run/checkpoints/step_00000003.pt", "optimizer.lr=5e-4")
    assert [r.info.run_id for r in runs(client)] == [run.info.run_id]
    (run,) = runs(client)
    assert history(client, run) == logged(tmp_path / "run") != first
    steps = [p.step for p in client.get_metric_history(run.info.run_id, "train/loss")]
    assert sorted(steps) == [1, 2, 3, 4, 4, 5, 5, 6, 6]  # both are kept
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    tags = run.data.tags
    assert run.data.params["optimizer.lr"] == "0.001"  # MLflow changes none
    assert (tags["backend"], tags["world_size"], tags["run_folder"]) == ("one process", "1", str(tmp_path / "run"))
    assert tags["torch"].startswith("2.")
    assert artifacts(client, run) == {
        *("command.json", "config.yaml", "result.json", "timings.json", "metrics.csv"),
        *("curves.png", "pr_curve.png", "per_class_ap.png", "first_batch.jpg", "predictions.jpg"),
    }
    for name in ("metrics.csv", "curves.png"):
        file = client.download_artifacts(run.info.run_id, name, str(tmp_path))
        assert Path(file).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert tags["checkpoints"] == str(tmp_path / "run" / "checkpoints")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["optimizer"]["lr"] == resumed.optimizer.lr
    said = "".join(capfd.readouterr())
    assert (said.count("MLflow: new run run ("), said.count("MLflow: existing run run (")) == (1, 1)
    assert "warning: " not in said


def test_a_run_that_exists_is_joined_and_left_open(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job of Azure ML, which made the run and ends it."""
    given = client.create_run(client.create_experiment("the job's"), run_name="keen_lemon_1").info.run_id
    client.log_param(given, "seed", "7")
    monkeypatch.setenv("MLFLOW_RUN_ID", given)
    trained(*QUICK)
    run = client.get_run(given)
    assert runs(client) == []
    assert history(client, run) == logged(tmp_path / "run")
    assert (run.info.status, run.info.run_name, run.info.end_time) == ("RUNNING", "keen_lemon_1", None)
    assert run.data.params["seed"] == "7"
    assert artifacts(client, run) == {"command.json", "config.yaml", "result.json", "timings.json", "metrics.csv"}


# sweeps


def run_sweep(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "-m", *arguments])
    retina_dist.train.main()


def test_the_jobs_of_a_sweep_are_runs_with_their_status(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children of the run MLFLOW_RUN_ID, if there is one: else all jobs would log to it."""
    experiment = client.create_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"])
    parent = client.create_run(experiment, run_name="parent").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", parent)
    monkeypatch.setenv(MLFLOW_PARENT, "")
    sgd = ("optimizer=sgd", "trainer.gradient_clip=null", "trainer.max_nonfinite_steps=0")
    run_sweep(monkeypatch, *QUICK, *sgd, "optimizer.lr=1e30,1e-3", "output_dir=sweep")
    _, diverged, good = runs(client)
    for child, status, name in ((diverged, "FAILED", "sweep/0"), (good, "FINISHED", "sweep/1")):
        assert child.data.tags["mlflow.parentRunId"] == parent
        assert (child.info.status, child.info.run_name) == (status, name)
    assert history(client, good) == logged(tmp_path / "sweep" / "1")
    assert "result.json" in artifacts(client, diverged)


# a run by itself


def make(uri: str, folder: Path, resumes: bool = False, tags: Any = None, **settings: Any) -> MlflowRun:
    folder.mkdir(exist_ok=True)
    config = DetectionRunConfig(logging=LoggingConfig(**settings))
    return MlflowRun(uri, config, Run(folder), tags or {}, resumes)


@pytest.mark.parametrize(("error", "status"), [(Preempted(), "KILLED"), (RuntimeError(), "FAILED")])
def test_a_run_ends_as_the_training_does(uri: str, client: Any, tmp_path: Path, error: Exception, status: str) -> None:
    with pytest.raises(type(error)), make(uri, tmp_path / "a"):
        raise error
    (run,) = runs(client)
    assert (run.info.status, run.info.end_time is None) == (status, False)
    with make(uri, tmp_path / "a", resumes=True):
        until(lambda: runs(client)[0].info.status == "RUNNING")
    assert [r.info.status for r in runs(client)] == ["FINISHED"]


def test_what_exceeds_a_request(uri: str, client: Any, tmp_path: Path) -> None:
    values = [math.inf, *(i / 3 for i in range(2500))]
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "best.pt").write_bytes(b"weights")
    with make(uri, tmp_path / "a", tags={"long": "x" * 9999}, mlflow_checkpoint=True) as run:
        for step, value in enumerate(values):
            run.log({"a/b": value}, step)
    (run,) = runs(client)
    assert len(run.data.tags["long"]) == mlflow_run.LONGEST
    expected = [repr(v) for v in (sys.float_info.max, *values[1:])]  # what MLflow makes of infinity
    assert history(client, run)["a/b"] == list(enumerate(expected))
    assert artifacts(client, run, "checkpoints") == {"checkpoints/best.pt"}


def test_a_run_that_cannot_be_continued(uri: str, client: Any, tmp_path: Path) -> None:
    with make(uri, tmp_path / "a"):
        pass
    client.delete_run(runs(client)[0].info.run_id)
    with make(uri, tmp_path / "a", resumes=True):
        pass
    assert len(runs(client)) == 1
    (tmp_path / "a" / "mlflow.json").write_text("{")
    with make(uri, tmp_path / "a", resumes=True):
        pass
    assert len(runs(client)) == 2


def test_a_run_to_join_that_is_not_there(
    uri: str, client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other one is made."""
    caplog.set_level("INFO", "retina_dist")
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with make(uri, tmp_path / "a") as run:
        run.log({"a": 1.0}, 1)
    assert runs(client) == []
    assert "Run with id=00000000000000000000000000000000 not found" in caplog.messages[0]
    assert warnings_of(caplog)[1].startswith(f"1 values did not reach MLflow at {uri}")


# servers that are slow or gone


class Door:
    """A port in front of a server, which can be shut and opened again, or let in without an answer."""

    def __init__(self, uri: str) -> None:
        self.behind = ("127.0.0.1", int(uri.rpartition(":")[2]))
        self.port = 0
        self.hanging = False
        self.open()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        self.closed = closed = threading.Event()
        door = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                if door.hanging:
                    closed.wait(120)
                    return
                with socket.create_connection(door.behind) as there:
                    pairs = {self.request: there, there: self.request}
                    while not closed.is_set():
                        for side in select.select(list(pairs), [], [], 0.05)[0]:
                            data = side.recv(65536)
                            if not data:
                                return
                            pairs[side].sendall(data)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def shut(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def door(uri: str) -> Iterator[Door]:
    door = Door(uri)
    yield door
    if not door.closed.is_set():
        door.shut()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_server_that_dies_and_comes_back_gets_all(
    client: Any, door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "retina_dist")
    run = make(door.uri, tmp_path / "a")
    run.log({"a": 1.0}, 1)
    until(lambda: runs(client) and runs(client)[0].data.metrics)
    door.shut()
    for step in range(2, 50):
        run.log({"a": float(step)}, step)
    until(lambda: warnings_of(caplog))
    run.log({"a": 50.0}, 50)
    (line,) = warnings_of(caplog)
    assert line.startswith(f"MLflow at {door.uri}: ")
    assert line.endswith("the training continues, metrics.csv has everything.")
    door.open()
    run.end_with(None)
    (found,) = runs(client)
    assert found.info.status == "FINISHED"
    assert history(client, found)["a"] == [(step, f"{step}.0") for step in range(1, 51)]
    assert warnings_of(caplog) == [line]


def test_a_server_that_dies_for_good(
    client: Any, door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "retina_dist")
    monkeypatch.setattr(mlflow_run, "PATIENCE_S", 1.0)
    run = make(door.uri, tmp_path / "a")
    until(lambda: run.id)
    door.shut()
    for step in range(100):
        run.log({"a": 1.0}, step)
    run.end_with(ValueError())
    assert [runs(client)[0].info.status, runs(client)[0].data.metrics] == ["RUNNING", {}]
    assert warnings_of(caplog)[-1] == (
        f"100 values did not reach MLflow at {door.uri}; the files in {tmp_path}/a have everything."
    )


@pytest.mark.parametrize("how", ["hangs", pytest.param("refuses", marks=pytest.mark.long)])
def test_a_training_is_the_same_without_its_server(
    how: str, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow_run, "PATIENCE_S", 1.0)
    door.hanging = how == "hangs"
    if how == "refuses":
        door.shut()
    trained(*QUICK, f"logging.mlflow_uri={door.uri}", "logging.mlflow=true")
    assert len(logged(tmp_path / "run")["train/loss"]) == 2
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "ok"
    warnings = [line for line in "".join(capfd.readouterr()).splitlines() if line.startswith("warning")]
    assert [f"MLflow at {door.uri}" in line for line in warnings] == [True] * len(warnings)
    assert len(warnings) == (1 if how == "hangs" else 2)
