"""Runs as a real MLflow server has them, and a server that does not answer."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import retina_dist.train
from retina_dist.base.settings import flattened
from retina_dist.config.compose import load_config
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.run.assemble import train
from retina_dist.tracking import mlflow as mlflow_run
from retina_dist.tracking.loggers import TrackedRun
from retina_dist.tracking.mlflow import MlflowRun
from retina_dist.tracking.settings import MLFLOW_PARENT, LoggingConfig
from tests.commands import free_port, wait_for
from tests.e2e.conftest import SMALL
from tests.metric_files import read_metrics

NEEDED = (
    "mlflow",
    "flask",
    "flask_cors",
    "sqlalchemy",
    "alembic",
    "pandas",
)  # by a server of mlflow-skinny
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"an MLflow server needs {', '.join(MISSING)}"
)

QUICK = (
    *SMALL,
    "trainer.max_duration=2steps",
    "schedule.warmup=0steps",
    "trainer.validate_every=2steps",
    "logging=quiet",
)
OFFLINE = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


@pytest.fixture(scope="session")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`mlflow server` with SQLite in a folder of its own."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
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
        wait_for(
            lambda: _answers(f"http://127.0.0.1:{port}/health") or server.poll() is not None, 180
        )
        assert server.poll() is None, (folder / "server.log").read_text()
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
    monkeypatch.setattr(mlflow_run, "BATCH_S", 0.05)
    monkeypatch.setattr(mlflow_run, "RETRY_S", 0.2)
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
    return (
        client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
        if experiment
        else []
    )


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


FILES = {"command.json", "config.yaml", "result.json", "timings.json", "metrics.csv"}
FILES |= {"analysis.json", "details.json", "images.csv", "metrics.json"}
FILES |= {"first_batch.jpg", "report.html"}


def test_a_run_that_is_resumed_is_one_run(
    client: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    longer = (
        *SMALL,
        "trainer.max_duration=6steps",
        "trainer.validate_every=3steps",
        "trainer.keep_last=2",
    )
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
    assert run.data.params["optimizer.lr"] == "0.001"  # MLflow changes none
    check_tags(run, tmp_path / "run", config.data.name)
    check_files(client, run, tmp_path)
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert settings["optimizer"]["lr"] == resumed.optimizer.lr

    said = "".join(capfd.readouterr())
    assert (said.count("MLflow: new run run ("), said.count("MLflow: existing run run (")) == (1, 1)
    assert "warning: " not in said


def check_tags(run: Any, folder: Path, data: str) -> None:
    """What MLflow shows beside the metrics: status, place, versions, changed settings, data."""
    tags = run.data.tags
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert (tags["backend"], tags["world_size"]) == ("one process", "1")
    assert (tags["run_folder"], tags["checkpoints"]) == (str(folder), str(folder / "checkpoints"))
    assert tags["torch"].startswith("2.")
    assert "| optimizer.lr | 0.001 | " in tags["mlflow.note.content"]
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, len(used.dataset.digest)) == (data, 36)


def check_files(client: Any, run: Any, folder: Path) -> None:
    assert artifacts(client, run) == FILES
    for name in ("metrics.csv", "report.html"):
        file = client.download_artifacts(run.info.run_id, name, str(folder))
        assert Path(file).read_bytes() == (folder / "run" / name).read_bytes()


def test_a_run_that_exists_is_joined_and_left_open(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job of Azure ML, which made the run and ends it."""
    given = client.create_run(
        client.create_experiment("the job's"), run_name="keen_lemon_1"
    ).info.run_id
    client.log_param(given, "seed", "7")
    monkeypatch.setenv("MLFLOW_RUN_ID", given)
    trained(*QUICK)
    run = client.get_run(given)
    assert runs(client) == []
    assert history(client, run) == logged(tmp_path / "run")
    assert (run.info.status, run.info.run_name, run.info.end_time) == (
        "RUNNING",
        "keen_lemon_1",
        None,
    )
    assert run.data.params["seed"] == "7"
    assert artifacts(client, run) == {
        "command.json",
        "config.yaml",
        "result.json",
        "timings.json",
        "metrics.csv",
    }


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


def test_long_tags_and_more_values_than_one_request_takes_arrive(
    uri: str, client: Any, tmp_path: Path
) -> None:
    values = [math.inf, *(i / 3 for i in range(2500))]
    checkpoints = tmp_path / "a" / "checkpoints"
    checkpoints.mkdir(parents=True)
    best = checkpoints / "best.pt"
    best.write_bytes(b"weights")
    logger = MlflowRun(LoggingConfig(mlflow_uri=uri, mlflow_checkpoint=True))
    logger.begin(TrackedRun(tmp_path / "a", checkpoints, best, tags={"long": "x" * 9999}))
    for step, value in enumerate(values):
        logger.log({"a/b": value}, step)
    logger.end_with(None)
    (run,) = runs(client)
    assert len(run.data.tags["long"]) == mlflow_run.MAX_LENGTH
    expected = [repr(v) for v in (sys.float_info.max, *values[1:])]  # what MLflow makes of infinity
    assert history(client, run)["a/b"] == list(enumerate(expected))
    assert artifacts(client, run, "checkpoints") == {"checkpoints/best.pt"}


def test_a_training_is_the_same_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow_run, "PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        trained(*QUICK, f"logging.mlflow_uri={uri}", "logging.mlflow=true")
    assert len(logged(tmp_path / "run")["train/loss"]) == 2
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "ok"
    (warning,) = [
        line for line in "".join(capfd.readouterr()).splitlines() if line.startswith("warning")
    ]
    assert f"values did not reach MLflow at {uri}" in warning
