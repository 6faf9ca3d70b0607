"""The benchmarks: the figures depend on the machine; what is compared, written and refused does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from retina_dist.benchmark import data, scaling, step, synthetic
from retina_dist.config.compose import load_config
from retina_dist.errors import ConfigError

SMALL = [
    "model=retinanet_tiny", "canvases=[[64,64]]", "batch_sizes=[2]", "num_classes=3", "boxes=2", "steps=1", "warmup=0",
    "rounds=2", "strategy.device=cpu",
]  # fmt: skip
CLASSES = ["task=classification", "data.synthetic={num_classes: 3, num_images: 3}", "data.image_size=32"]
BOXES = ["data.synthetic={canvas: [32, 32], num_boxes: 2, num_classes: 3, num_images: 3}"]
TINY = ["data.batch_size=2", "trainer.num_threads=1", "num_warmup_batches=1", "num_batches_per_iter=1", "num_iters=3"]


# step


def test_both_take_the_same_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    step.benchmark(load_config("benchmark_step", [*SMALL, f"output={path}"]))
    written = json.loads(path.read_text())
    rows = {row["path"]: row for row in written["rows"]}
    assert list(rows) == ["torchvision", "fp32", "bf16"]
    assert rows["fp32"]["first_loss"] == pytest.approx(rows["torchvision"]["first_loss"], rel=1e-5)
    assert rows["bf16"]["first_loss"] == pytest.approx(rows["torchvision"]["first_loss"], rel=2e-2)
    assert rows["torchvision"]["ratio"] == [1.0, 1.0, 1.0]
    assert written["ratios"].keys() == {"fp32 64x64 batch 2", "bf16 64x64 batch 2"}
    progress = [line[16:] for line in capsys.readouterr().err.splitlines() if line.startswith("64x64, batch 2: ")]
    assert progress == [*(f"first steps of {name}" for name in rows), "round 1 of 2", "round 2 of 2"]
    with pytest.raises(ConfigError, match="is not a list of torchvision, torchvision-tf32"):
        step.benchmark(load_config("benchmark_step", [*SMALL, "paths=[torchvision,fp64]"]))


# data


def test_every_part_of_reading_is_timed_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "HEIGHT", 48)
    monkeypatch.setattr(data, "WIDTH", 64)
    settings = ["num_images=5", "rounds=2", "data.min_sizes=[80]", "data.batch_size=4"]
    written = data.benchmark(load_config("benchmark_data", settings))
    assert written["ratios"].keys() == {f"{faster} / {slower}" for faster, slower in data.COMPARED}
    assert len(written["ms_an_image"]) == 4
    for row in written["ms_an_image"].values():
        assert 0 <= row["min"] <= row["median"] <= row["max"]
    assert "5 made images" in written["what"]


# synthetic


@pytest.mark.parametrize("task", [BOXES, CLASSES], ids=["detection", "classification"])
def test_one_process_prints_and_writes_its_speed(
    task: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    synthetic.benchmark(load_config("benchmark_synthetic", [*task, *TINY, "output=one.json", "schedule.warmup=1epoch"]))
    printed = capsys.readouterr().out
    assert len(re.findall(r"^round \d: [\d.]+ img/s a process$", printed, re.M)) == 3
    assert re.search(r"^img/s a process: [\d.]+ \+-[\d.]+\nimg/s of 1 process: [\d.]+ \+-[\d.]+$", printed, re.M)
    written = json.loads(Path("one.json").read_text())
    assert (written["benchmark"], written["processes"], written["batch_size"]) == ("synthetic", 1, 2)
    assert written["images_per_s"] == written["images_per_s_per_process"]
    assert written["images_per_s"] == pytest.approx(synthetic.mean_and_deviation(written["rounds"]), abs=0.002)
    assert synthetic.mean_and_deviation([1.0, 2.0, 6.0]) == {"mean": 3.0, "deviation": 4.234}  # 1.96 * sqrt(14 / 3)
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"], "nothing else is written or read"


# scaling


def test_the_length_of_an_epoch_by_hand_and_drawn() -> None:
    speeds: dict[tuple[str, int], list[float]] = {
        ("python", 1): [10.0, 12.0, 11.0], ("torchrun", 2): [20.0, 22.0, 21.0], ("mpirun", 2): [16.0, 18.0, 17.0]
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        scaling.row_of(job, values, speeds["python", 1], 13_200) | {"backend": "a backend"}
        for job, values in speeds.items()
    ]
    assert rows[0]["epoch_minutes"] == [20.0, pytest.approx(18.3333), 22.0]  # 13200 / (11, 12, 10) / 60
    assert (rows[1]["speedup"], rows[1]["each"]) == (pytest.approx(1.909), [2.0, 1.833, 1.909])
    ideal, torchrun, mpirun = scaling.epochs_chart(rows).data
    assert (ideal["x"], ideal["y"]) == ([1, 2], [20.0, 10.0])
    assert torchrun["name"] == "torchrun (a backend): 1.91 times as fast with 2"
    assert [line["x"] for line in (torchrun, mpirun)] == [[1, 2], [1, 2]]
    assert mpirun["error_y"]["arrayminus"] == pytest.approx([20 - 220 / 12, 220 / 17 - 220 / 18], abs=1e-3)
