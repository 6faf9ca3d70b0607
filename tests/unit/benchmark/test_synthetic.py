"""The synthetic benchmark: Horovod's figures, and launchers compared at as many processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from retina_dist.benchmark import scaling, synthetic
from retina_dist.benchmark.report import Slower
from retina_dist.classification.settings import SyntheticClassesConfig
from retina_dist.config.compose import load_config
from retina_dist.detection.settings import SyntheticConfig
from retina_dist.run.memory import NotEstimated, StepMemory

CLASSES = ["task=classification", "data.synthetic={num_classes: 3, num_images: 3}", "data.image_size=32"]
BOXES = ["data.synthetic={canvas: [32, 32], num_boxes: 2, num_classes: 3, num_images: 3}"]
TINY = ["data.batch_size=2", "trainer.num_threads=1", "num_warmup_batches=1", "num_batches_per_iter=1", "num_iters=3"]


@pytest.mark.parametrize("task", [BOXES, CLASSES], ids=["detection", "classification"])
def test_one_process_prints_and_writes_its_speed(
    task: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [*task, *TINY, "output=found.json", "schedule.warmup=1epoch", "memory=true"]
    synthetic.benchmark(load_config("benchmark_synthetic", settings))
    said = capsys.readouterr().out
    assert len(re.findall(r"^round \d: [\d.]+ img/s a process$", said, re.M)) == 3
    assert re.search(r"^img/s a process: [\d.]+ \+-[\d.]+\nimg/s of 1 process: [\d.]+ \+-[\d.]+$", said, re.M)
    found = json.loads(Path("found.json").read_text())
    assert (found["benchmark"], found["processes"], found["batch_size"]) == ("synthetic", 1, 2)
    assert len(found["rounds"]) == 3
    assert found["memory"]["predicted_gib"] > 0
    assert found["memory"]["measured_gib"] is None, "CUDA's allocator counts"
    assert found["images_per_s"] == found["images_per_s_per_process"]
    assert found["images_per_s"] == pytest.approx(synthetic.mean_and_deviation(found["rounds"]), abs=0.002)
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"], "nothing else is written or read"


def test_what_cannot_be_estimated_is_said_and_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise NotEstimated("no reason given")

    monkeypatch.setattr(StepMemory, "__call__", refuse)
    found = synthetic.benchmark(load_config("benchmark_synthetic", [*BOXES, *TINY, "memory=true"]))
    assert found is not None
    assert found["memory"]["predicted_gib"] is None
    assert "peak memory: not estimated: no reason given" in capsys.readouterr().out


def test_a_task_brings_its_small_model_and_a_recipe_keeps_the_random_images() -> None:
    detection, classification = (load_config("benchmark_synthetic", o) for o in ([], ["task=classification"]))
    recipe = load_config("benchmark_synthetic", ["experiment=imagenet_resnet50"])
    assert [c.task.name for c in (detection, classification, recipe)] == [
        "detection",
        "classification",
        "classification",
    ]
    assert isinstance(detection.data.synthetic, SyntheticConfig)
    assert all(isinstance(c.data.synthetic, SyntheticClassesConfig) for c in (classification, recipe))
    assert detection.model.backbone == classification.model.architecture == "resnet18"
    assert recipe.model.architecture == "resnet50"
    assert all(c.data.batch_size == 8 for c in (detection, classification))


@pytest.mark.parametrize(
    ("overrides", "task", "data"),
    [
        ([], "detection", "shapes"),
        (["task=classification"], "classification", "drawn_classes"),
        (["task=classification", "data=synthetic"], "classification", "synthetic"),
    ],
)
def test_scaling_takes_the_task(overrides: list[str], task: str, data: str) -> None:
    config = load_config("benchmark_scaling", overrides)
    assert (config.task.name, config.data.name, config.data.batch_size) == (task, data, 8)


def test_a_slower_process_than_in_an_earlier_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    earlier = {"benchmark": "synthetic", "ratios": {"images_per_s_per_process": 1e12}}
    Path("one.json").write_text(json.dumps(earlier))
    with pytest.raises(Slower, match="images_per_s_per_process is 0.00 of"):
        synthetic.benchmark(load_config("benchmark_synthetic", [*BOXES, *TINY, "baseline=one.json"]))


def test_mean_and_deviation_by_hand() -> None:
    assert synthetic.mean_and_deviation([10.0]) == {"mean": 10.0, "deviation": 0.0}
    assert synthetic.mean_and_deviation([1.0, 2.0, 6.0]) == {"mean": 3.0, "deviation": 4.234}  # 1.96 * sqrt(14 / 3)


def test_launchers_are_compared_round_by_round() -> None:
    speeds = {("python", 1): [1.0, 1.0, 1.0], ("torchrun", 1): [4.0, 2.0, 1.0], ("torchrun", 2): [4.0, 4.0, 4.0],
              ("horovodrun", 1): [2.0, 2.0, 2.0], ("horovodrun", 2): [3.0, 2.0, 1.0]}  # fmt: skip
    assert scaling.compared(speeds) == {"horovodrun / torchrun 1": 1.0, "horovodrun / torchrun 2": 0.5}
    assert scaling.compared({key: value for key, value in speeds.items() if key[0] != "horovodrun"}) == {}
