"""When there is an MLflow run, and what is said when there is none."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from retina_dist.config.compose import load_config
from retina_dist.errors import ConfigError
from retina_dist.reporting.settings import LoggingConfig
from retina_dist.run.mlflow_run import flattened, root_of, tracking_server

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


def test_settings_as_one_would_give_them() -> None:
    flat = flattened({"data": {"sizes": [[64], [96]], "root": None, "name": "a"}, "lr": 1e-3, "on": True})
    assert flat == {
        "data.sizes": "[[64], [96]]",
        "data.root": "null",
        "data.name": "a",
        "lr": "0.001",
        "on": "true",
    }


def test_the_root_of_an_error() -> None:
    with pytest.raises(ValueError, match="long and winding") as caught:
        _wrap(ConnectionRefusedError(111, "refused"))
    assert root_of(caught.value) == "ConnectionRefusedError: [Errno 111] refused"


def _wrap(cause: Exception) -> None:
    raise ValueError("long and winding") from cause
