"""The benchmarks: the figures depend on the machine; what is compared, written and refused does
not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retina_dist.base.errors import ConfigError
from retina_dist.benchmark import data, scaling, start, step
from retina_dist.config.compose import load_config
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_split

SMALL = [
    "model=retinanet_tiny",
    "canvases=[[64,64]]",
    "batch_sizes=[2]",
    "num_classes=3",
    "boxes=2",
    "steps=1",
    "warmup=0",
    "rounds=2",
    "strategy.device=cpu",
]
CLASSES = [
    "task=classification",
    "data.synthetic={num_classes: 3, num_images: 3}",
    "data.image_size=32",
]
BOXES = ["data.synthetic={canvas: [32, 32], num_boxes: 2, num_classes: 3, num_images: 3}"]


# start


def test_a_start_is_measured_on_a_set_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "PLANNED", 3000)
    path = tmp_path / "start.json"
    data.benchmark(load_config("benchmark_data", ["annotations=200", f"output={path}"]))
    costs = json.loads(path.read_text())["start"]
    assert costs["peak_mib"] > 0
    assert costs["peak_mib_of_imports"] > 0
    assert costs["plan_s"] >= 0

    size = start.make_set(tmp_path / "set", 200)
    found = read_split(DetectionData(name="x", format="auto", root=str(tmp_path / "set")), "train")
    assert found is not None
    assert len(found.records) == 200
    assert found.truth.boxes.shape == (int(200 * start.OBJECTS), 4)
    assert size == (tmp_path / "set/annotations/instances_train2017.json").stat().st_size


# step


def test_both_take_the_same_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    step.benchmark(
        load_config("benchmark_step", [*SMALL, "paths=[torchvision,fp32,bf16]", f"output={path}"])
    )
    written = json.loads(path.read_text())
    rows = {row["path"]: row for row in written["rows"]}
    assert list(rows) == ["torchvision", "fp32", "bf16"]
    assert rows["fp32"]["first_loss"] == pytest.approx(rows["torchvision"]["first_loss"], rel=1e-5)
    assert rows["bf16"]["first_loss"] == pytest.approx(rows["torchvision"]["first_loss"], rel=2e-2)
    assert rows["torchvision"]["ratio"] == [1.0, 1.0, 1.0]
    assert written["ratios"].keys() == {"fp32 64x64 batch 2", "bf16 64x64 batch 2"}
    progress = [
        line[16:]
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("64x64, batch 2: ")
    ]
    assert progress == [
        *(f"first steps of {name}" for name in rows),
        "round 1 of 2",
        "round 2 of 2",
    ]


@pytest.mark.parametrize("canvases", ["[[128]]", "[[128,128,128]]", "[[128,100]]"])
def test_a_canvas_is_a_height_and_a_width_of_whole_strides(canvases: str) -> None:
    with pytest.raises(
        ConfigError, match="is not a list of heights and widths, each a multiple of 32"
    ):
        load_config("benchmark_step", [f"canvases={canvases}"])


# data


def test_every_part_of_reading_is_timed_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "HEIGHT", 48)
    monkeypatch.setattr(data, "WIDTH", 64)
    settings = ["num_images=5", "rounds=2", "data.min_sizes=[80]", "data.batch_size=4"]
    written = data.benchmark(load_config("benchmark_data", settings))
    assert written["ratios"].keys() == {f"{data.WHOLE} / {data.PLAIN}"}
    assert len(written["ms_an_image"]) == 3
    for row in written["ms_an_image"].values():
        assert 0 <= row["min"] <= row["median"] <= row["max"]
    assert "5 made images" in written["what"]


# scaling


@pytest.mark.parametrize("task", [BOXES, CLASSES], ids=["detection", "classification"])
def test_a_process_measures_its_steps(
    task: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = [
        "data=synthetic",
        "data.batch_size=2",
        "trainer.num_threads=1",
        "warmup=1",
        "steps=2",
        "worker=one.json",
    ]
    figures = scaling.measure(
        load_config("benchmark_scaling", [*task, *tiny, "schedule.warmup=1epoch"])
    )
    assert figures["images_per_s"] > 0
    assert figures["num_images"] == 3
    assert json.loads(Path("one.json").read_text()) == figures
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"], (
        "nothing else is written or read"
    )


def test_the_length_of_an_epoch_by_hand_and_drawn() -> None:
    speeds: dict[tuple[str, int], list[float]] = {
        ("python", 1): [10.0, 12.0, 11.0],
        ("torchrun", 2): [20.0, 22.0, 21.0],
        ("mpirun", 2): [16.0, 18.0, 17.0],
    }
    rows: list[dict[str, Any]] = [
        scaling.row_of(job, values, speeds["python", 1], 13_200) | {"backend": "a backend"}
        for job, values in speeds.items()
    ]
    assert rows[0]["epoch_minutes"] == [
        20.0,
        pytest.approx(18.3333),
        22.0,
    ]  # 13200 / (11, 12, 10) / 60
    assert (rows[1]["speedup"], rows[1]["each"]) == (pytest.approx(1.909), [2.0, 1.833, 1.909])
    ideal, torchrun, mpirun = scaling.epochs_chart(rows).data
    assert (ideal["x"], ideal["y"]) == ([1, 2], [20.0, 10.0])
    assert torchrun["name"] == "torchrun (a backend): 1.91 times as fast with 2"
    assert [line["x"] for line in (torchrun, mpirun)] == [[1, 2], [1, 2]]
    assert mpirun["error_y"]["arrayminus"] == pytest.approx(
        [20 - 220 / 12, 220 / 17 - 220 / 18], abs=1e-3
    )
