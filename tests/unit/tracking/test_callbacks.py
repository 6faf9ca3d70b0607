"""A user's hook hears of steps, rows, validations and the end; an error of it names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import retina_dist as rd
from retina_dist.config.compose import load_config
from retina_dist.run.assemble import fit
from retina_dist.testing.thread_ranks import on_ranks
from retina_dist.tracking.callbacks import CallbackError, CallbackList, TrainingStart
from retina_dist.tracking.loggers import MetricLogger
from tests.metric_files import read_metrics

SMALL = [
    "data=synthetic",
    "data.synthetic={canvas: [32, 32], num_boxes: 2, num_classes: 3, num_images: 8}",
    "data.batch_size=2",
    "data.num_workers=0",
    "model.fpn_channels=64",
    "trainer.max_duration=4steps",
    "trainer.log_every=2",
    "schedule=constant",
    "logging=quiet",
    "output_dir=run",
]


class Diary(rd.Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.losses: list[float] = []

    def on_start(self, start: TrainingStart) -> None:
        self.lines.append(f"start {start.step} to {start.stop_step} in {start.folder}")

    def on_step(self, step: int, values: Mapping[str, Tensor]) -> None:
        self.lines.append(f"step {step}")
        self.losses.append(float(values["train/loss"]))

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        self.lines.append(f"log {step}")

    def on_validation(self, metrics: Mapping[str, float], step: int) -> None:
        self.lines.append(f"validation {step}")

    def on_end(self) -> None:
        self.lines.append("end")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_hears_of_everything_in_order() -> None:
    diary = Diary()
    trainer = rd.Trainer.from_config(load_config("train", SMALL), callbacks=[diary])
    trainer.fit()
    steps = ["step 1", "step 2", "log 2", "step 3", "step 4", "log 4"]
    assert diary.lines == ["start 0 to 4 in run", *steps, "end"]
    _, logged = read_metrics(Path("run/metrics.csv"))["train/loss"]
    pairs = [sum(diary.losses[i : i + 2]) / 2 for i in (0, 2)]
    assert logged == pytest.approx(pairs, rel=1e-6)


def test_a_logger_is_a_callback_in_any_order_of_its_bases() -> None:
    """The check of hooks leaves to other bases what they do with a class below them."""

    class Rows(rd.Callback, MetricLogger):
        def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    class Named:
        def __init_subclass__(cls, name: str) -> None:
            cls.name = name  # type: ignore[attr-defined]

    class Both(rd.Callback, Named, name="both"): ...

    assert isinstance(Rows(), MetricLogger)
    assert Both.name == "both"  # type: ignore[attr-defined]


class Faulty(rd.Callback):
    def on_step(self, step: int, values: Mapping[str, Tensor]) -> None:
        if step == 2:
            raise ZeroDivisionError("no such number")


def test_an_error_names_the_callback_and_the_others_hear_of_the_end() -> None:
    diary = Diary()
    with pytest.raises(CallbackError, match=r"Faulty\.on_step failed: ZeroDivisionError: no such"):
        fit(load_config("train", SMALL), [Faulty(), diary])
    assert diary.lines[-1] == "end"


def test_every_rank_hears_of_its_own_steps() -> None:
    from tests.unit.engine.test_train_loop import trainer

    def train(strategy: Any) -> list[str]:
        diary = Diary()
        loop = trainer(strategy=strategy, callbacks=CallbackList([diary]), max_duration="3steps")
        loop.fit()
        return diary.lines

    first, second = on_ranks(2, train)
    assert first == second
    assert [line for line in first if line.startswith("step")] == ["step 1", "step 2", "step 3"]


def test_a_user_error_in_a_script_is_one_line_below_the_callers() -> None:
    with pytest.raises(rd.UserError) as caught:
        rd.Trainer(
            data=rd.DetectionData(root="nowhere"),
            optimizer=rd.OptimizerConfig(lr=0.01),
            max_duration="4steps",
            output_dir="run",
        ).fit()
    files = [entry.path for entry in caught.traceback]
    assert len(files) <= 3
    assert caught.value.__suppress_context__
