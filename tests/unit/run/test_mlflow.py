"""When there is an MLflow run, and what is said when there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from retina_dist.config.compose import load_config
from retina_dist.detection.settings import DetectionRunConfig
from retina_dist.engine.checkpoint.resume import Run
from retina_dist.errors import ConfigError, Preempted
from retina_dist.reporting.mlflow_logger import TrackedRun, root_of, status_of
from retina_dist.reporting.settings import LoggingConfig
from retina_dist.run import mlflow_run
from retina_dist.run.environment import write_config
from retina_dist.run.mlflow_run import as_child, flattened, tracked_run, tracked_sweep, tracking_server

URI = "http://me:secret@127.0.0.1:9"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "retina_dist")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)


def server(**settings: Any) -> str | None:
    return tracking_server(LoggingConfig(**settings))


def test_without_a_server_nothing_is_said_or_imported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert server() is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    assert server(mlflow="false") is None
    assert caplog.messages == []


def test_a_server_is_named_by_the_environment_or_by_the_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", object())  # type: ignore[arg-type]
    assert server(mlflow_uri=URI) == URI
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:8")
    assert server() == server(mlflow="true") == "http://127.0.0.1:8"
    assert server(mlflow_uri=URI) == URI
    assert caplog.messages == []


def test_a_server_without_the_package(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    assert server() is None
    (sentence,) = caplog.messages
    assert "http://127.0.0.1:9 is named, but mlflow cannot be imported" in sentence
    assert 'pip install "retina-dist[mlflow]"' in sentence
    assert "secret" not in sentence
    with pytest.raises(
        ConfigError, match=r'logging.mlflow=true, but mlflow cannot be .* pip install "retina-dist\[mlflow\]"'
    ):
        server(mlflow="true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(ConfigError, match="logging.mlflow=true needs a server; set MLFLOW_TRACKING_URI"):
        server(mlflow="true")


def test_the_setting_takes_three_words() -> None:
    assert load_config("train", ["logging.mlflow=True"]).logging.mlflow == "true"
    with pytest.raises(ConfigError, match="logging.mlflow=yes is not one of auto, true, false"):
        load_config("train", ["logging.mlflow=yes"])


def test_no_server_no_run(tmp_path: Path) -> None:
    config = DetectionRunConfig()
    with tracked_run(None, config, Run(tmp_path), {}) as run:
        run.log({"a": 1.0}, 1)
        run.end("FAILED")
    sweep, parent = tracked_sweep(config.logging, tmp_path)
    assert (type(run), type(sweep), parent) == (TrackedRun, TrackedRun, None)
    assert as_child(config, None) is config
    assert list(tmp_path.iterdir()) == []


def test_a_job_of_a_sweep_is_a_child_with_a_name_of_its_own() -> None:
    config = DetectionRunConfig(logging=LoggingConfig(run_name="all"))
    assert as_child(config, "p").logging == LoggingConfig(mlflow_parent="p", run_name=None)


def test_a_password_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(mlflow_run, "MlflowRun", lambda identity, *_: given.update(params=identity.params))
    server = "https://me:secret@127.0.0.1/mlflow"
    config = load_config("train", [f"logging.mlflow_uri={server}", f"output_dir={tmp_path}"])
    tracked_run(server, config, Run(tmp_path), {})
    write_config(config, tmp_path)
    assert given["params"]["logging.mlflow_uri"] == "https://127.0.0.1/mlflow"
    assert "secret" not in str(given) + (tmp_path / "config.yaml").read_text()


def test_settings_as_one_would_give_them() -> None:
    flat = flattened({"data": {"sizes": [[64], [96]], "root": None, "name": "a"}, "lr": 1e-3, "on": True})
    assert flat == {
        "data.sizes": "[[64], [96]]",
        "data.root": "null",
        "data.name": "a",
        "lr": "0.001",
        "on": "true",
    }


def test_words() -> None:
    assert [status_of(e) for e in (None, Preempted(), KeyboardInterrupt(), ValueError())] == [
        "FINISHED",
        "KILLED",
        "KILLED",
        "FAILED",
    ]
    with pytest.raises(ValueError, match="long and winding") as caught:
        _wrap(ConnectionRefusedError(111, "refused"))
    assert root_of(caught.value) == "ConnectionRefusedError: [Errno 111] refused"


def _wrap(cause: Exception) -> None:
    raise ValueError("long and winding") from cause
