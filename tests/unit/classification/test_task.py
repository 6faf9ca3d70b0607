"""The task: its contract, a training on the command line, what its settings and checkpoints must
agree in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retina_dist.base.errors import CheckpointError, ConfigError, DataError, Preempted
from retina_dist.classification import metrics
from retina_dist.classification.drawn import CLASSES
from retina_dist.classification.metrics import ClassificationResult, evaluate_rows
from retina_dist.classification.task import ClassificationTask
from retina_dist.config.compose import load_config
from retina_dist.config.run_config import task_of_checkpoint
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.reporting import run_report
from retina_dist.run.assemble import train
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.testing.task_contract import task_contract
from tests.chaos import equal

SMALL = [
    *(
        "task=classification",
        "data.drawn={num_train:14,num_val:7,image_size:16,seed:0}",
        "data.image_size=16",
    ),
    *(
        "data.val_resize=16",
        "data.num_workers=0",
        "data.batch_size=4",
        "model.architecture=shufflenet_v2_x0_5",
    ),
    *("schedule.warmup=0steps", "trainer.num_threads=1", "logging=quiet"),
]


def task(root: Path, *overrides: str) -> ClassificationTask:
    return ClassificationTask(
        load_config("train", [*SMALL, f"data.root={root}", *overrides]), SingleDeviceStrategy("cpu")
    )


def test_it_keeps_the_contract(drawn: Path) -> None:
    mixed = [
        "data.mixup=0.2",
        "data.cutmix=1",
        "data.class_weights=auto",
        "model.label_smoothing=0.1",
        "model.norm=frozen_bn",
        "data.image_size=32",
        "data.val_resize=32",
    ]
    task_contract(ClassificationTask, load_config("train", [*SMALL, f"data.root={drawn}", *mixed]))


def test_it_trains_resumes_and_leaves_its_files(drawn: Path, tmp_path: Path) -> None:
    """A run that was stopped and resumed ends with the bits of one that was not."""

    def run(name: str, *overrides: str) -> dict[str, float]:
        overrides = (*overrides, f"output_dir={tmp_path / name}", f"data.root={drawn}")
        return train(
            load_config(
                "train",
                [*SMALL, "trainer.max_duration=2epochs", "trainer.ema_decay=0.9", *overrides],
            )
        )

    metrics = run("whole", "data.mixup=0.2", "logging.plots=true")
    run("half", "data.mixup=0.2", "trainer.stop_after=3steps")
    assert run("half", "data.mixup=0.2", "resume=auto") == metrics
    one, two = (
        load_checkpoint(tmp_path / name / "checkpoints" / "last.pt") for name in ("whole", "half")
    )
    assert equal(one["model"], two["model"])
    assert one["classes"] == list(CLASSES)
    assert task_of_checkpoint(one) == "classification"
    assert {"first_batch.jpg", "details.json", "metrics.json", "report.html"} <= {
        p.name for p in (tmp_path / "whole").iterdir()
    }
    result = json.loads((tmp_path / "whole" / "metrics.json").read_text())
    assert result["top1"] == metrics["val/top1"]
    assert np.array(result["confusion"]).sum() == 7


def test_it_trains_on_noise_and_reads_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    noise = [
        "data=synthetic",
        "data.synthetic={num_classes: 5, num_images: 8}",
        "data.image_size=32",
    ]
    small = [override for override in SMALL if not override.startswith("data.")]
    assert (
        train(
            load_config("train", [*small, *noise, "trainer.max_duration=2steps", "output_dir=run"])
        )
        == {}
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not Path("run/first_batch.jpg").exists()
    last = load_checkpoint(Path("run/checkpoints/last.pt"))
    assert (last["step"], last["classes"][-1]) == (2, "class 4")


def test_the_analysis_is_that_of_the_best_validation_before_a_resume(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falling = iter([0.9, 0.8])

    def evaluate(rows: np.ndarray, classes: Sequence[str]) -> ClassificationResult:
        found = evaluate_rows(rows, classes)
        return replace(found, metrics=found.metrics | {"val/top1": next(falling)})

    monkeypatch.setattr(metrics, "evaluate_rows", evaluate)
    overrides = [
        *SMALL,
        f"data.root={drawn}",
        f"output_dir={tmp_path}",
        "trainer.max_duration=2epochs",
    ]
    train(load_config("train", [*overrides, "logging.plots=true", "trainer.stop_after=1epoch"]))
    before = (tmp_path / "analysis.json").read_text() + " "
    (tmp_path / "analysis.json").write_text(before)
    train(load_config("train", [*overrides, "logging.plots=true", "resume=auto"]))
    assert next(falling, None) is None
    assert (tmp_path / "analysis.json").read_text() == before
    assert json.loads((tmp_path / "metrics.json").read_text())["top1"] == 0.8


def test_a_training_outlives_its_report(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(*_: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr(ClassificationTask, "draw_results", draw)
    overrides = [
        f"data.root={drawn}",
        f"output_dir={tmp_path}",
        "trainer.max_duration=1step",
        "logging.plots=true",
    ]
    assert "val/top1" in train(load_config("train", [*SMALL, *overrides]))
    text = (
        f"no report: RuntimeError: no font; python -m retina_dist.report run={tmp_path} tries again"
    )
    assert text in "".join(capsys.readouterr())
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "ok"


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (DataError("<one>.jpg is damaged."), False),
        (DataError("x."), True),
        (Preempted("y."), False),
    ],
)
def test_a_run_that_fails_writes_its_report(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, fails: bool
) -> None:
    """It says at its top why; a preempted one has no time for it, and no failure of the report
    hides the error.
    """

    def evaluate(*_: object) -> None:
        raise error

    monkeypatch.setattr(metrics, "evaluate_rows", evaluate)
    if fails:
        monkeypatch.setattr(run_report, "RunFiles", lambda folder: 1 / 0)
    overrides = [
        f"data.root={drawn}",
        f"output_dir={tmp_path}",
        "trainer.max_duration=1epoch",
        "logging.plots=true",
    ]
    with pytest.raises(type(error), match=str(error)):
        train(load_config("train", [*SMALL, *overrides]))
    page = tmp_path / "report.html"
    assert page.exists() == (type(error) is DataError and not fails)
    if page.exists():
        header, main = page.read_text().split("<main", 1)
        assert "<strong>The run failed:</strong> &lt;one&gt;.jpg is damaged." in header
        assert "<figcaption>Loss</figcaption>" in main


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.monitor=val/roc_auc", "is of two classes, and the data has 6"),
        (
            "model.architecture=vit_b_16 data.val_image_size=8 data.val_resize=8",
            "16 and data.val_image_size=8",
        ),
        (
            "model.architecture=resnet19",
            "^model.architecture=resnet19 is not torchvision's; did you mean resnet18",
        ),
        (
            "model.architecture=vgg11 model.zero_gamma=true",
            "zero_gamma=true is for ResNets, not vgg11",
        ),
        ("model.architecture=maxvit_t", "does not take images of data.image_size=16"),
    ],
)
def test_settings_that_the_data_forbids(drawn: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task(drawn, *override.split())


def test_a_checkpoint_of_other_classes_is_refused(drawn: Path) -> None:
    now = task(drawn)
    now.load_checkpoint_state({"classes": list(CLASSES)}, "last.pt")
    with pytest.raises(
        CheckpointError,
        match=r"trained on other classes than data=drawn_classes has \(in one alone: 'heart'\)",
    ):
        now.load_checkpoint_state({"classes": [*CLASSES, "heart"]}, "last.pt")
