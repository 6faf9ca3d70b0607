"""The README's commands, run as a user runs them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from tests.commands import run_command
from tests.e2e.conftest import SMALL

RUN = Path("runs") / "shapes"


def test_a_run_folder_has_everything(trained: Path) -> None:
    expected = "analysis.json checkpoints command.json config.yaml details.json first_batch.jpg"
    expected += " images images.csv metrics.csv"
    expected += " metrics.json report.html resamples.npz result.json timings.json tensorboard"
    assert {p.name for p in (trained / RUN).iterdir()} == set(expected.split())
    assert {p.name for p in (trained / RUN / "checkpoints").glob("*.pt")} >= {"best.pt", "last.pt"}
    assert list((trained / RUN / "tensorboard").iterdir())


def test_the_first_batch_is_drawn(trained: Path) -> None:
    with Image.open(trained / RUN / "first_batch.jpg") as image:
        assert min(image.size) > 200
        assert len(image.convert("L").resize((64, 64)).getcolors()) > 10  # not blank


def test_every_step_has_a_row_and_every_validation_its_metrics(trained: Path) -> None:
    rows = list(csv.DictReader((trained / RUN / "metrics.csv").open()))
    assert {row["step"] for row in rows} == {str(i) for i in range(1, 13)}
    assert sum(bool(row["coco/AP"]) for row in rows) == 2
    speeds = [float(row["time/images_per_s"]) for row in rows if row["time/images_per_s"]]
    result = json.loads((trained / RUN / "result.json").read_text())
    without_start = speeds[1:]
    assert result["images_per_s"] == pytest.approx(sum(without_start) / len(without_start))


def test_evaluate_repeats_the_last_validation_and_its_own_results(trained: Path) -> None:
    last = [
        row for row in csv.DictReader((trained / RUN / "metrics.csv").open()) if row["coco/AP"]
    ][-1]
    checkpoint = f"checkpoint={RUN}/checkpoints/last.pt"
    output = run_command(
        "retina_dist.evaluate",
        checkpoint,
        "output_dir=eval",
        "batch_size=3",
        "num_workers=0",
        cwd=trained,
    ).stdout
    assert "AP50   IoU .50" in output
    metrics = json.loads((trained / "eval" / "metrics.json").read_text())
    for name in ("AP", "AP50", "AR100"):
        assert metrics[name] == pytest.approx(float(last[f"coco/{name}"]), abs=1e-9)
    assert set(metrics["per_class_AP"]) == {"circle", "square", "triangle", "star", "cross", "ring"}
    annotations = "annotations=datasets/shapes/annotations/instances_val.json"
    run_command(
        "retina_dist.evaluate",
        "results=eval/results.json",
        annotations,
        "output_dir=again",
        cwd=trained,
    )
    again = json.loads((trained / "again" / "metrics.json").read_text())
    assert again["AP50"] == pytest.approx(
        metrics["AP50"], abs=5e-3
    )  # boxes in the file are rounded


def test_predict_draws_and_writes_results(trained: Path) -> None:
    checkpoint = f"checkpoint={RUN}/checkpoints/best.pt"
    result = run_command(
        "retina_dist.predict",
        checkpoint,
        "input=datasets/shapes/val",
        "score_threshold=0.01",
        "output_dir=out",
        cwd=trained,
    )
    assert len(list((trained / "out").glob("*.jpg"))) == 10
    found = json.loads((trained / "out" / "results.json").read_text())
    listed = json.loads((trained / "out" / "images.json").read_text())
    images = listed["images"]
    assert len(images) == 10
    assert {"id": 11, "name": "ring"} in listed["categories"]
    assert {entry["image_id"] for entry in found} <= {image["id"] for image in images}
    assert {entry["category_id"] for entry in found} <= {1, 2, 4, 7, 8, 11}
    assert "10 images and results.json in out" in result.stdout


def test_predict_names_what_it_cannot_read(trained: Path, tmp_path: Path) -> None:
    source = next((trained / "datasets/shapes/val").glob("*.jpg"))
    (tmp_path / "good.jpg").write_bytes(source.read_bytes())
    (tmp_path / "cut.jpg").write_bytes(source.read_bytes()[:-1000])
    checkpoint = f"checkpoint={trained}/{RUN}/checkpoints/best.pt"
    result = run_command("retina_dist.predict", checkpoint, f"input={tmp_path}/*.jpg", cwd=tmp_path)
    assert "cut.jpg cannot be decoded" in result.stderr
    assert "1 image and results.json" in result.stdout
    (tmp_path / "good.jpg").unlink()
    result = run_command(
        "retina_dist.predict", checkpoint, f"input={tmp_path}/cut.jpg", cwd=tmp_path, check=False
    )
    assert result.returncode == 2


def test_fine_tuning_takes_what_fits(trained: Path, tmp_path: Path) -> None:
    weights = f"model.weights={trained}/{RUN}/checkpoints/best.pt"
    small = [s for s in SMALL if not s.startswith("data.shapes")]
    run_command(
        "retina_dist.convert", "format=csv", *_csv_data(tmp_path), "output=coco.json", cwd=tmp_path
    )
    assert json.loads((tmp_path / "coco.json").read_text())["categories"] == [
        {"id": 0, "name": "thing"}
    ]
    result = run_command(
        "retina_dist.train",
        "data=csv",
        "data.root=csv",
        *small,
        weights,
        "trainer=debug",
        cwd=tmp_path,
    )
    assert (
        "misfits    head.classification_head.cls_logits.weight: "
        "[54, 64, 3, 3] in the file, [9, 64, 3, 3]" in result.stdout
    )


def _csv_data(folder: Path) -> list[str]:
    (folder / "csv").mkdir()
    for name in ("a", "b", "c", "d"):
        Image.new("RGB", (64, 48), name == "a" and "red" or "blue").save(
            folder / "csv" / f"{name}.png"
        )
    rows = "a.png,5,5,30,30,thing\nb.png,10,10,40,40,thing\nc.png,,,,,\nd.png,1,1,20,20,thing\n"
    (folder / "csv" / "train.csv").write_text(rows)
    (folder / "csv" / "val.csv").write_text(rows)
    (folder / "csv" / "classes.csv").write_text("thing,0\n")
    return ["annotations=csv/train.csv", "classes=csv/classes.csv"]
