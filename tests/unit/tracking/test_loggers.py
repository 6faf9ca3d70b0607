import math

import pytest
from PIL import Image

from retina_dist.base.errors import DataError
from retina_dist.base.registry import lookup, names
from retina_dist.tracking.loggers import (
    CsvLogger,
    LoggerCollection,
    RunLoggers,
    TensorBoardLogger,
    TrackedRun,
    Tracker,
)
from retina_dist.tracking.settings import LoggerSettings, LoggingConfig, TensorBoardSettings
from tests.metric_files import read_metrics


class Recorder:
    def __init__(self, events, name):
        self.events, self.name = events, name

    def log(self, metrics, step):
        self.events.append((self.name, dict(metrics), step))

    def close(self):
        self.events.append((self.name, "closed"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.csv"


def csv_logger(path, resume_step=None):
    return CsvLogger(LoggerSettings(), path.parent, resume_step)


def lines(path):
    return path.read_text().splitlines()


def test_undefined_metrics_reach_no_logger(path):
    events = []
    logger = LoggerCollection(csv_logger(path), Recorder(events, "other"))
    logger.on_validation({"coco/AP": 0.5, "coco/APl": math.nan, "val/loss": math.inf}, 3)
    assert lines(path) == ["step,coco/AP,val/loss", "3,0.5,inf"]
    assert [sorted(metrics) for _, metrics, _ in events] == [["coco/AP", "val/loss"]]


def test_csv_has_a_row_per_log_at_once_and_empty_cells_where_nothing_was_logged(path):
    logger = csv_logger(path)
    logger.log({"train/loss": 1.5, "train/lr": 0.01}, 10)
    logger.log({"train/lr": 0.02}, 20)
    assert lines(path) == ["step,train/loss,train/lr", "10,1.5,0.01", "20,,0.02"]  # before close
    logger.log({"coco/AP": 0.25}, 20)
    assert lines(path) == [
        "step,train/loss,train/lr,coco/AP",
        "10,1.5,0.01,",
        "20,,0.02,",
        "20,,,0.25",
    ]
    assert [file.name for file in path.parent.iterdir()] == [
        "metrics.csv"
    ]  # nothing temporary left
    csv_logger(path).log({"new": 2.0}, 10)
    assert lines(path) == ["step,new", "10,2.0"]


def test_csv_resume_drops_later_rows_and_keeps_columns(path):
    first = csv_logger(path)
    first.log({"train/loss": 3.0}, 10)
    first.log({"train/loss": 2.0}, 20)
    first.log({"coco/AP": 0.1}, 20)
    first.log({"train/loss": 1.0, "val/loss": 7.0}, 30)
    resumed = csv_logger(path, 20)
    resumed.log({"coco/AP": 0.2, "train/loss": 1.1}, 30)
    assert lines(path) == [
        "step,train/loss,coco/AP,val/loss",
        "10,3.0,,",
        "20,2.0,,",
        "20,,0.1,",
        "30,1.1,0.2,",
    ]


@pytest.mark.parametrize("tail", ["20", "20,1.5,0.0"])
def test_csv_resume_survives_a_row_that_was_cut_short(path, tail):
    csv_logger(path).log({"train/loss": 3.0, "train/lr": 0.01}, 10)
    with path.open("a") as file:
        file.write(tail)  # no end of line: nobody knows whether the last number is complete
    csv_logger(path, 20).log({"train/loss": 2.0}, 30)
    assert lines(path) == ["step,train/loss,train/lr", "10,3.0,0.01", "30,2.0,"]


def test_csv_resume_refuses_a_file_of_someone_else(path):
    path.parent.mkdir()
    path.write_text("name,age\nAda,36\n")
    with pytest.raises(DataError, match="first column is not 'step'"):
        csv_logger(path, 20)
    assert path.read_text() == "name,age\nAda,36\n"


def test_metrics_that_cannot_be_written(path):
    logger = LoggerCollection(csv_logger(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(
        DataError, match="metrics cannot be written .*; correct the cause, and add resume=auto"
    ):
        logger.on_log({}, 3)


def test_read_metrics_gives_back_every_digit(path):
    logger = LoggerCollection(csv_logger(path))
    for step, value in enumerate([1 / 3, 1e-30, math.inf, math.nan]):
        logger.on_log({"a": value}, step)
    logger.on_log({"b": 5}, 4)
    assert read_metrics(path) == {"a": ([0, 1, 2], [1 / 3, 1e-30, math.inf]), "b": ([4], [5.0])}


def test_tensorboard_logger_hides_what_was_logged_after_the_resume_step(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for resume_step, steps in ((None, (10, 20, 30)), (20, (25,))):
        logger = TensorBoardLogger(TensorBoardSettings(), tmp_path, resume_step)
        for step in steps:
            logger.log({"loss": 1.0}, step)
        logger.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("loss")
    assert [event.step for event in events] == [10, 20, 25]


def test_tensorboard_gets_images_and_hyperparameters(tmp_path):
    """In the form that its page HPARAMS reads: the event files of one folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    Image.new("RGB", (40, 30), (10, 200, 30)).save(tmp_path / "first_batch.png")
    logger = TensorBoardLogger(TensorBoardSettings(), tmp_path)
    logger.log({"coco/AP": 0.5}, 7)
    logger.log_results(
        {"optimizer.lr": "1e-3", "data.name": "cells"},
        {"coco/AP": 0.5},
        [tmp_path / "first_batch.png"],
        7,
    )
    logger.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (image,) = events.Images("first_batch.png")
    assert (image.step, image.width, image.height) == (7, 40, 30)
    assert [(point.step, point.value) for point in events.Scalars("coco/AP")] == [(7, 0.5)]
    assert events.PluginTagToContent("hparams").keys() >= {
        "_hparams_/experiment",
        "_hparams_/session_start_info",
    }
    started = b"".join(events.PluginTagToContent("hparams").values())
    assert b"optimizer.lr" in started
    assert b"cells" in started


class Told(Tracker):
    """Notes what it hears."""

    settings = LoggerSettings

    def __init__(self, settings, folder, resume_step):
        self.events = [("made", folder, resume_step)]

    def log(self, metrics, step):
        self.events.append(("log", step))

    def begin(self, run):
        self.events.append(("begin", run.note))

    def end_with(self, error, within_s=math.inf):
        self.events.append(("end", error, within_s))


def test_a_tracker_is_made_once_for_all_restarts_and_ended_after_them(tmp_path):
    """Another logger is made for each, from the step that it resumes."""
    error = ValueError()
    told = iter(["first", "second"])

    def describe():
        return TrackedRun(tmp_path, tmp_path, tmp_path, note=next(told))

    loggers = RunLoggers()
    for step in (None, 7):
        given = (LoggingConfig(), tmp_path, step, describe)
        tracker = loggers.make(Told, *given)
        collection = LoggerCollection(loggers.make(CsvLogger, *given), tracker)
        collection.on_log({"train/loss": 1.0}, (step or 0) + 5)
        collection.on_end()
    assert lines(tmp_path / "metrics.csv") == ["step,train/loss", "5,1.0", "12,1.0"]
    loggers.__exit__(ValueError, error, None)
    assert tracker.events == [
        ("made", tmp_path, None),
        ("begin", "first"),
        ("log", 5),
        ("log", 12),
        ("end", error, math.inf),
    ]


def test_the_settings_choose_entries_and_each_entry_says_its_name(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert LoggingConfig().chosen() == ["csv", "tensorboard"]
    assert LoggingConfig(tensorboard=False).chosen() == ["csv"]
    pytest.importorskip("mlflow")
    assert LoggingConfig(mlflow_uri="file:///a").chosen() == ["csv", "tensorboard", "mlflow"]
    for name in names("logger"):
        assert lookup("logger", name).settings.entry == name
        assert issubclass(LoggingConfig, lookup("logger", name).settings)
