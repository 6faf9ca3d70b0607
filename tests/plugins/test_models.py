"""A detection model and an evaluator from outside the package: contract, training, and what a
checkpoint says of the model.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from retina_dist import Trainer
from retina_dist.base.errors import ConfigError
from retina_dist.config.compose import load_config
from retina_dist.detection.commands import predictor_of
from retina_dist.detection.detector import Detector
from retina_dist.detection.evaluation import evaluate as evaluate_as_cli
from retina_dist.detection.export import export
from retina_dist.detection.task import DetectionTask
from retina_dist.run.assemble import train
from retina_dist.task.predictor import task_of
from retina_dist.testing.task_contract import task_contract
from tests.metric_files import read_metrics
from tests.plugins.test_plugins import FOUND, documented

CHOSEN = [FOUND, "data=parity", "model=cells"]


def test_detection_keeps_its_contract_with_it(tmp_path: Path) -> None:
    task_contract(
        DetectionTask, load_config("train", [*CHOSEN, f"data.root={tmp_path / 'shapes'}"])
    )


def test_after_fit_it_is_evaluated_and_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its three losses are the sum that the validation reports, and any of them can choose the best
    checkpoint.
    """
    monkeypatch.chdir(tmp_path)
    run = [
        *CHOSEN,
        "model.width=8",
        "model.count_weight=0.5",
        "logging=quiet",
        "schedule=constant",
        "output_dir=run",
    ]
    run += [
        "trainer.max_duration=4steps",
        "trainer.validate_every=2steps",
        "trainer.monitor=val/loss_count",
    ]
    trainer = Trainer.from_config(load_config("train", run))
    metrics = trainer.fit()
    parts = {name: value for name, value in metrics.items() if name.startswith("val/loss_")}
    assert sorted(parts) == ["val/loss_boxes", "val/loss_count", "val/loss_objects"]
    assert metrics["val/loss"] == pytest.approx(sum(parts.values()))
    counts = read_metrics(Path("run/metrics.csv"))["val/loss_count"][1]
    assert json.loads(Path("run/result.json").read_text())["best"] == min(counts)
    evaluated, detector = trainer.evaluate(), trainer.detector()
    assert evaluated.stats.keys() == {
        name.removeprefix("coco/") for name in metrics if name.startswith("coco/")
    }
    again = Detector.from_checkpoint(trainer.checkpoint, model=trainer.model)
    image = next(Path(trainer.data.root).rglob("*.jpg"))
    (ours,), (theirs,) = detector.predict(image), again.predict(image)
    assert len(ours["boxes"]) == len(theirs["boxes"]) > 0
    assert torch.equal(ours["scores"], theirs["scores"])
    for command in (["predict", f"input={image}"], ["evaluate"], ["serve"]):
        given = [*command[1:], f"checkpoint={trainer.run_folder}"]
        config = load_config(command[0], [FOUND, "model=cells", *given])
        assert task_of(config) is DetectionTask
        with pytest.raises(ConfigError, match="from outside the package; name its entry again"):
            task_of(load_config(command[0], given))
        if command[0] == "evaluate":
            assert evaluate_as_cli(config)[0].stats == evaluated.stats
        else:
            (same,) = predictor_of(config, "cpu").predict(image)
            assert torch.equal(same["scores"], ours["scores"]), (
                "of the width that the checkpoint states"
            )
    for output, size in (("m.onnx", "null"), ("m.pt2", "[64,96]"), ("m.pt", "null")):
        given = [
            FOUND,
            "model=cells",
            f"output={output}",
            f"size={size}",
            f"checkpoint={trainer.run_folder}",
        ]
        worst = export(load_config("export", given))
        assert worst["detections"] > 9
        assert worst["boxes"] < 1e-3, output
        assert worst["scores"] < 1e-5, output


def test_an_evaluator_comes_with_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry chooses data and model, which the command line replaces."""
    monkeypatch.chdir(tmp_path)
    run = [FOUND, "task=counting", "logging=quiet", "output_dir=run"]
    run += ["trainer.max_duration=2steps", "schedule=constant"]
    config = load_config("train", run)
    assert (config.data.name, config.model.backbone, config.task.name) == (
        "parity",
        "resnet18",
        "counting",
    )
    assert load_config("train", [*run, "model=retinanet_r50"]).model.backbone == "resnet50"
    assert load_config("train", [*run, "model=cells"]).model.num_classes is None
    assert list(train(load_config("train", [*run, "model.backbone=mobilenet_v3_small"]))) == [
        "count/ratio"
    ]


@pytest.mark.long
def test_rt_detr_of_transformers_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("scipy", reason="scipy, which its loss needs, is not installed")
    documented(
        "RTDetr", "model/rtdetr.yaml", "_target_: my_package.RTDetr\n", tmp_path, monkeypatch
    )
    chosen = [f"hydra.searchpath=[file://{tmp_path}]", "model=rtdetr"]
    chosen += ["data=parity", f"data.root={tmp_path / 'shapes'}"]
    task_contract(DetectionTask, load_config("train", [*chosen, "model.norm=frozen_bn"]))
