"""The commands on a classifier: evaluate, predict, export, doctor."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from retina_dist.base.errors import CheckpointError, ConfigError, UserError
from retina_dist.classification import commands
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.drawn import CLASSES
from retina_dist.classification.samples import read_samples
from retina_dist.classification.task import ClassificationTask
from retina_dist.config.compose import load_config
from retina_dist.data.images import ENDINGS
from retina_dist.engine.checkpoint.store import load_checkpoint, sealed
from retina_dist.serving.scoring import Scorer
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.unit.classification.test_task import SMALL
from tests.unit.serving.server import score


@pytest.fixture(scope="module")
def checkpoint(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an untrained classifier."""
    task = ClassificationTask(
        load_config("train", [*SMALL, f"data.root={drawn}"]), SingleDeviceStrategy("cpu")
    )
    torch.manual_seed(0)
    model = task.build_model()
    path = tmp_path_factory.mktemp("run") / "best.pt"
    path.write_bytes(
        sealed({"model": model.state_dict(), "ema": None, "step": 1, **task.metadata(model)})
    )
    return path


def test_evaluate(checkpoint: Path, drawn: Path, tmp_path: Path) -> None:
    command = [f"checkpoint={checkpoint}", "num_workers=0", "device=cpu", f"output_dir={tmp_path}"]
    printed = commands.evaluate(load_config("evaluate", command))
    found = json.loads((tmp_path / "metrics.json").read_text())
    analysis = json.loads((tmp_path / "analysis.json").read_text())
    assert min(analysis["speed"].values()) > 0
    assert analysis["calibration"]["temperature"] is None or analysis["calibration"]["after"]
    assert printed.splitlines()[0].startswith(f"{'top1':<24}{found['top1']:.4f}")
    classifier = TrainedClassifier.from_checkpoint(checkpoint)
    val = read_samples(drawn, "val", classes=CLASSES)
    assert val is not None
    shares = classifier.predict([str(source) for source in val.sources])
    assert found["top1"] == pytest.approx(float((shares.argmax(1).numpy() == val.labels).mean()))


def test_evaluate_judges_on_the_split_that_is_given(
    checkpoint: Path, drawn: Path, tmp_path: Path
) -> None:
    """Images held out of train never stand in for a test split."""
    content = load_checkpoint(checkpoint)
    content["config"]["data"]["val_fraction"] = 0.5
    (tmp_path / "a.pt").write_bytes(sealed(content))
    shutil.copytree(drawn / "val", tmp_path / "tested" / "test")
    shutil.copytree(drawn / "train", tmp_path / "tested" / "train")
    command = [f"checkpoint={tmp_path}/a.pt", "num_workers=0", "device=cpu"]
    tested = [*command, "split=test", f"root={tmp_path}/tested"]
    expected = commands.evaluate(load_config("evaluate", [*command, "split=val"]))
    assert commands.evaluate(load_config("evaluate", tested)) == expected
    with pytest.raises(ConfigError, match="has no test images"):
        commands.evaluate(load_config("evaluate", [*command, "split=test"]))


def test_a_url_in_a_checkpoint_is_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    content = load_checkpoint(checkpoint)
    content["config"]["data"]["root"] = "http://stranger.example/images"
    (tmp_path / "theirs.pt").write_bytes(sealed(content))
    with pytest.raises(ConfigError, match="such a URL is followed only where you give it"):
        commands.evaluate(
            load_config("evaluate", [f"checkpoint={tmp_path / 'theirs.pt'}", "device=cpu"])
        )
    content["model_arguments"]["architecture"] = "os.system"
    (tmp_path / "theirs.pt").write_bytes(sealed(content))
    with pytest.raises(CheckpointError, match="does not describe a classifier"):
        TrainedClassifier.from_checkpoint(tmp_path / "theirs.pt")


def test_predict(checkpoint: Path, drawn: Path, tmp_path: Path) -> None:
    shutil.copytree(drawn / "val" / "circle", tmp_path / "images")
    (tmp_path / "images" / "bad.jpg").write_bytes(b"no image")
    places = [f"input={tmp_path / 'images'}", f"output_dir={tmp_path / 'out'}"]
    command = [f"checkpoint={checkpoint}", *places, "device=cpu"]
    commands.predict(load_config("predict", command))
    with (tmp_path / "out" / "predictions.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["file", "class", "probability", *CLASSES]
    assert [Path(row[0]).name for row in rows] == ["000000.png", "000006.png"]
    for row in rows:
        shares = [float(x) for x in row[3:]]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert (row[1], float(row[2])) == (CLASSES[shares.index(max(shares))], max(shares))
    assert (tmp_path / "out" / "000000.jpg").stat().st_size
    photo = tmp_path / "out" / "000000.jpg"
    before = photo.read_bytes()
    with pytest.raises(ConfigError, match="000000.jpg exists and would be overwritten; give"):
        commands.predict(load_config("predict", [*command, f"input={photo}"]))
    assert photo.read_bytes() == before


@pytest.mark.parametrize("ending", ["pt", "pt2", pytest.param("onnx", marks=pytest.mark.long)])
def test_an_export_is_compared_before_it_has_its_name(
    checkpoint: Path, tmp_path: Path, ending: str
) -> None:
    output = tmp_path / f"model.{ending}"
    command = [f"checkpoint={checkpoint}", f"output={output}"]
    if ending == "onnx":
        pytest.importorskip("onnxruntime")
    commands.export(load_config("export", command))
    assert output.stat().st_size
    if ending == "pt":
        other = tmp_path / "other.pt"
        strict = load_config("export", [f"checkpoint={checkpoint}", f"output={other}"])
        strict.score_tolerance = -1.0  # which nothing meets
        with pytest.raises(UserError, match=r"was not written: its probabilities differ"):
            commands.export(strict)
        assert not other.exists()


def test_an_export_is_compared_on_images_that_are_given(
    checkpoint: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [f"checkpoint={checkpoint}", f"output={tmp_path}/model.pt", f"images={drawn}/val"]
    commands.export(load_config("export", [*command, "num_images=2"]))
    assert "of a probability on 2 images" in capsys.readouterr().out


def test_a_temperature_divides_the_logits_everywhere(
    checkpoint: Path, drawn: Path, tmp_path: Path
) -> None:
    """Of the images of val, one of three is of the class that is predicted."""
    run = tmp_path / "best.pt"
    shutil.copy(checkpoint, run)
    classifier = TrainedClassifier.from_checkpoint(run)
    files = sorted(map(str, (drawn / "val").rglob("*.png")))
    raw = classifier.predict(files)
    shutil.copytree(drawn / "train", tmp_path / "data/train")
    for i, (file, row) in enumerate(zip(files, raw, strict=True)):
        label = (int(row.argmax()) + (i % 3 > 0)) % len(CLASSES)
        folder = tmp_path / "data/val" / CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / f"{i}.png")
    command = [f"checkpoint={run}", f"root={tmp_path}/data", "num_workers=0", "device=cpu"]
    command.append(f"output_dir={tmp_path}/out")
    printed = commands.evaluate(load_config("evaluate", [*command, "calibrate=true"]))
    temperature = load_checkpoint(run)["calibration"]["temperature"]
    assert f"temperature {temperature:.4f}, fitted to {len(files)} images of val" in printed
    before = json.loads((tmp_path / "out/analysis.json").read_text())

    scaled = TrainedClassifier.from_checkpoint(run)
    expected = (raw.double().log() / temperature).softmax(1)
    shares = scaled.predict(files)
    assert torch.allclose(shares.double(), expected, atol=1e-6)
    assert torch.equal(shares.argmax(1), raw.argmax(1))
    (answer,) = score(Scorer(scaled), "image/png", Path(files[0]).read_bytes())
    best = [each["score"] for each in answer["classes"]]
    assert best == shares[0].sort(descending=True).values.tolist()[: len(best)]

    commands.evaluate(load_config("evaluate", command))
    after = json.loads((tmp_path / "out/analysis.json").read_text())
    assert after["metrics"] == before["metrics"]
    assert after["calibration"]["ece"] == pytest.approx(before["calibration"]["after"]["ece"])
    commands.export(load_config("export", [f"checkpoint={run}", f"output={tmp_path}/m.pt2"]))
    graph = torch.export.load(str(tmp_path / "m.pt2")).module()
    assert torch.allclose(graph(scaled.prepare(files[0]))[0], shares[0], atol=1e-6)


def test_doctor(drawn: Path, tmp_path: Path) -> None:
    shutil.copytree(drawn, tmp_path / "data")
    train, val = tmp_path / "data" / "train", tmp_path / "data" / "val"
    shutil.copy(train / "circle" / "000000.png", val / "ring" / "leak.png")
    shutil.copy(train / "cross" / "000001.png", train / "cross" / "again.png")
    (train / "star" / "bad.png").write_bytes(b"no image")
    (train / "empty").mkdir()
    for i in range(12):
        Image.new("RGB", (30 + i, 30)).save(train / "square" / f"more{i}.png")
    command = [*SMALL, f"data.root={tmp_path / 'data'}", "data.drawn=null"]
    config = load_config("doctor", command)
    found = commands.examine(config)
    by_what = {(finding.where, finding.what): finding for finding in found.findings}
    assert found.count("error") == 3
    assert by_what["train", "images unreadable"].examples[0].startswith("star/bad.png")
    assert by_what["val", "images that are in train too"].examples == (
        "ring/leak.png = circle/000000.png of train",
    )
    assert (
        by_what["train", f"no image ({ENDINGS}) in train/empty; left out of the classes"].level
        == "warning"
    )
    assert by_what["labels", "images with different labels"].level == "error"
    assert by_what["train", "images that occur more than once"].level == "warning"
    assert any(what.startswith("square has 14 images") for _, what in by_what)
    assert found.text().splitlines()[-1].startswith("3 errors, ")


def test_a_server_answers_with_classes(checkpoint: Path, drawn: Path) -> None:
    image = (drawn / "val" / "circle" / "000000.png").read_bytes()
    found = score(Scorer(TrainedClassifier.from_checkpoint(checkpoint)), "image/png", image)
    assert [(image["width"], image["height"], len(image["classes"])) for image in found] == [
        (16, 16, 5)
    ]
    scores = [entry["score"] for entry in found[0]["classes"]]
    assert scores == sorted(scores, reverse=True)
    assert {entry["name"] for entry in found[0]["classes"]} < set(CLASSES)
