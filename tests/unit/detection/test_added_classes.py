"""A trained detector learns classes of new data; what it knew stays as it was, to the bit."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.ops import box_iou

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.base.settings import validate
from retina_dist.config.compose import load_config
from retina_dist.detection.batch import Batch, Sample, collate
from retina_dist.detection.detector import Detector
from retina_dist.detection.export import export
from retina_dist.detection.model.build import build_model
from retina_dist.detection.model.weights import load_weights
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.settings import ModelConfig
from retina_dist.detection.task import DetectionTask
from retina_dist.engine.checkpoint.store import amend, load_checkpoint
from retina_dist.run.assemble import fit
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.task.settings import ExportConfig
from tests.coco_files import split_of, write_coco

SIDE = 64
LAYER = "head.classification_head.cls_logits"
COLORS = {"cat": (250, 250, 250), "dog": (5, 5, 5), "bird": (240, 20, 20)}


def draw(root: Path, *names: str) -> Path:
    """Images of noise with a square of 24 px for each class; ids count from 1 in every data set."""
    for split in ("train", "val"):
        rng = np.random.default_rng(len(split))
        images, boxes = [], []
        (root / split).mkdir(parents=True)
        for number in range(1, 5):
            pixels = rng.integers(90, 160, (SIDE, SIDE, 3), dtype=np.uint8)
            for label, name in enumerate(names, start=1):
                x, y = rng.integers(0, SIDE - 24, 2).tolist()
                pixels[y : y + 24, x : x + 24] = COLORS[name]
                boxes.append((number, label, [x, y, 24, 24], 0))
            Image.fromarray(pixels).save(root / split / f"{number}.png")
            images.append(
                {"id": number, "file_name": f"{number}.png", "width": SIDE, "height": SIDE}
            )
        file = root / "annotations" / f"instances_{split}.json"
        write_coco(file, images, boxes, dict(enumerate(names, start=1)))
    return root


def settings(root: Path, out: Path, *more: str) -> Any:
    return load_config(
        "train",
        [
            "data=coco",
            f"data.root={root}",
            f"output_dir={out}",
            "data.batch_size=2",
            "data.num_workers=0",
            "data.min_sizes=[64]",
            "data.max_size=64",
            "logging.plots=false",
            "trainer.validate_every=20steps",
            *more,
        ],
    )


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two classes whose body has live batch norms."""
    root = tmp_path_factory.mktemp("old")
    more = ("model=retinanet_tiny", "model.norm=bn", "trainer.max_duration=3steps")
    all_found = ("model.score_threshold=0.001", "model.topk_candidates=10000")
    none_cut = "model.detections_per_image=10000"
    fit(settings(draw(root / "data", "cat", "dog"), root / "run", *more, *all_found, none_cut))
    return root / "run"


@pytest.fixture(scope="module")
def new(old: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that learns a third class of data that show nothing else, with decay and an average."""
    root = tmp_path_factory.mktemp("new")
    added = (f"model.weights={old}", "model.add_classes=true", "trainer.ema_decay=0.9")
    adamw = ("optimizer=adamw", "optimizer.lr=0.02", "optimizer.weight_decay=0.5")
    long = ("trainer.max_duration=40steps", "schedule=constant")
    fit(settings(draw(root / "data", "bird"), root / "run", *added, *adamw, *long))
    return root / "run"


def noise(count: int, size: tuple[int, int], rng: torch.Generator) -> Batch:
    samples = []
    for i in range(count):
        pixels = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=rng)
        samples.append(Sample(pixels, torch.zeros(0, 4), torch.zeros(0), i, size))
    return collate(samples, size)


def outputs_of(run: Path | Detector, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, A, K] and offsets [B, A, 4]."""
    detector = run if isinstance(run, Detector) else Detector.from_checkpoint(run)
    with torch.inference_mode():
        outputs, _ = detector.model.predict(batch)
    return outputs["cls_logits"], outputs["bbox_regression"]


def test_what_was_known_is_equal_to_the_bit(old: Path, new: Path) -> None:
    before, after = Detector.from_checkpoint(old), Detector.from_checkpoint(new)
    assert (before.class_names, after.class_names) == (["cat", "dog"], ["cat", "dog", "bird"])
    assert after.categories.ids == (2, 3, 1), "the data's id, and free ones"
    rng = torch.Generator().manual_seed(0)
    for count, size in ((1, (96, 128)), *[(20, (64, 64))] * 10):
        batch = noise(count, size, rng)
        (logits, offsets), (wider, same) = outputs_of(before, batch), outputs_of(after, batch)
        assert torch.equal(logits, wider[..., :2])
        assert torch.equal(offsets, same)
        assert wider.shape[-1] == 3
    state = load_checkpoint(new)
    for name, tensor in load_checkpoint(old)["model"].items():
        assert torch.equal(tensor, state["model"][name]), name
        assert torch.equal(tensor, state["ema"]["model"][name]), name


def test_detections_of_known_classes_are_equal(old: Path, new: Path) -> None:
    """As long as the limits of candidates and detections do not cut any off."""
    before, after = Detector.from_checkpoint(old), Detector.from_checkpoint(new)
    image = new.parent / "data/val/1.png"
    (expected,), (found,) = before.predict(image), after.predict(image)
    known = found["labels"] < 2
    assert len(expected["labels"]) > 10
    for name in ("boxes", "scores", "labels"):
        assert torch.equal(expected[name], found[name][known])


def test_the_new_class_is_learnt(new: Path) -> None:
    """Its score is higher where an anchor covers an object; it was the same everywhere."""
    detector = Detector.from_checkpoint(new)
    val = split_of(new.parent / "data", "val")
    on_objects, elsewhere = [], []
    for record, boxes in zip(val.records, val.boxes, strict=True):
        batch = detector.prepare(record.path)
        with torch.inference_mode():
            outputs, levels = detector.model.predict(batch)
        scores = outputs["cls_logits"][0, :, 2].sigmoid()
        ious = box_iou(torch.cat(levels), torch.from_numpy(boxes)).amax(dim=1)
        on_objects.append(scores[ious > 0.5].mean())
        elsewhere.append(scores[ious < 0.1].mean())
    assert sum(on_objects) > 3 * sum(elsewhere)


def test_a_run_continues_without_the_weights_that_it_started_from(
    new: Path, tmp_path: Path
) -> None:
    shutil.copytree(new, tmp_path / "run")
    again = (f"resume={tmp_path / 'run'}", "model.weights=gone.pt", "trainer.max_duration=41steps")
    fit(load_config("train", list(again)))
    before, after = load_checkpoint(new), load_checkpoint(tmp_path / "run/checkpoints/last.pt")
    assert after["step"] == 41
    changed = {name for name, x in before["model"].items() if not x.equal(after["model"][name])}
    assert changed == {f"{LAYER}.added.0.weight", f"{LAYER}.added.0.bias"}


def test_classes_are_added_to_added_ones(new: Path) -> None:
    settings = ModelConfig(weights=str(new), add_classes=True, backbone="resnet50")
    assert settings.known_classes == [["cat", "dog"], ["bird"]]
    assert (settings.backbone, settings.norm) == ("resnet18", "bn"), "the network is the run's"
    model = build_model(settings, 5, ["cat", "dog", "bird", "fox", "hen"])
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {f"{LAYER}.added.1.weight", f"{LAYER}.added.1.bias"}
    batch = noise(2, (64, 64), torch.Generator().manual_seed(0))
    detector = Detector(model, ["cat", "dog", "bird", "fox", "hen"])
    wider = outputs_of(detector, batch)[0]
    assert torch.equal(wider[..., :3], outputs_of(new, batch)[0])
    assert wider[..., 3:].sigmoid().mean() == pytest.approx(0.01, rel=0.2), "the focal prior"
    assert build_model(ModelConfig(**model.arguments()), 5).state_dict().keys() == (
        model.state_dict().keys()
    )


def test_a_state_dict_has_one_class_layer(new: Path, tmp_path: Path) -> None:
    """Whose rows are those of the groups by anchor: torchvision's class detects the same."""
    config = ExportConfig(
        checkpoint=str(new), output=str(tmp_path / "model.pt"), images=f"{new.parent}/data/val"
    )
    assert export(config)["scores"] < 1e-5
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert state[f"{LAYER}.weight"].shape == (9 * 3, 64, 3, 3)
    assert not [name for name in state if "added" in name]


@pytest.mark.long
def test_onnx_files_detect_the_same_known_objects(old: Path, new: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    sessions = []
    for run in (old, new):
        file = tmp_path / f"{run.parent.name}.onnx"
        # the scores of so short a training are nearly equal, and another order suppresses others
        config = ExportConfig(
            checkpoint=str(run), output=str(file), size=[64, 64], box_tolerance=math.inf
        )
        config.score_tolerance = math.inf
        export(config)
        sessions.append(onnxruntime.InferenceSession(file.read_bytes()))
    rng = np.random.default_rng(0)
    for _ in range(200):
        pixels = rng.integers(0, 256, (1, 3, 64, 64), dtype=np.uint8)
        expected, found = (session.run(None, {"images": pixels}) for session in sessions)
        known = found[2] < 2
        for one, other in zip(expected, found, strict=True):
            assert np.array_equal(one, other[known])


def test_classes_are_added_to_a_run_by_data_that_has_new_ones(old: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs model.weights, which is not given; give model.w"):
        ModelConfig(add_classes=True)
    other = tmp_path / "other"
    shutil.copytree(old, other)
    amend(str(other), {}, model_arguments=None)
    with pytest.raises(
        CheckpointError, match=r"needs the checkpoint of a RetinaNet, which .*other"
    ):
        ModelConfig(add_classes=True, weights=str(other))
    added = (f"model.weights={old}", "model.add_classes=true", "dry_run=true")
    data = draw(tmp_path / "data", "cat")
    with pytest.raises(ConfigError, match=r"data=coco has no new class beside cat, dog, or two"):
        fit(settings(data, tmp_path / "run", *added))


def test_another_training_starts_from_a_run_with_added_classes(new: Path) -> None:
    """With its rows in the order of other data; those of other classes are left out."""
    before = outputs_of(new, batch := noise(1, (64, 64), torch.Generator().manual_seed(0)))[0]
    given = dict(load_checkpoint(new)["model_arguments"], known_classes=None, add_classes=False)
    settings = ModelConfig(**{**given, "num_classes": None})
    names = ["bird", "cat", "dog"]
    model = build_model(settings, 3, names)
    report = load_weights(model, str(new / "checkpoints/best.pt"), names)
    assert [*report.misfits, *report.missing, *report.left_over] == []
    found = outputs_of(Detector(model, names), batch)[0]
    torch.testing.assert_close(found[..., [1, 2, 0]], before)
    fewer = build_model(settings, 2, ["bird", "cat"])
    report = load_weights(fewer, str(new / "checkpoints/best.pt"), ["bird", "cat"])
    assert len(report.misfits) == 2, "not those of cat and dog"


@pytest.mark.parametrize("names", ["Cat", "ca-t"])
def test_what_differs_from_the_run_is_a_warning(names: str, old: Path, tmp_path: Path) -> None:
    """Names that differ in their case, sizes of images, and a temperature."""
    run = tmp_path / "pets"
    shutil.copytree(old, run)
    amend(str(run), {}, calibration={"temperature": 2.0})
    data = draw(tmp_path / "data", "bird")
    for file in (data / "annotations").iterdir():
        file.write_text(file.read_text().replace('"bird"', f'"{names}"'))
    added = (f"model.weights={run}", "model.add_classes=true")
    single = SingleDeviceStrategy("cpu")
    plan = DetectionTask(settings(data, tmp_path / "run", *added), single).describe()
    assert f"spelt alike, but trained as different classes: 'cat' and {names!r}; rename" in plan
    assert f"the temperature of {run} is not taken over" in plan
    assert "resizes images" not in plan
    assert "without a box" not in plan, "the known classes need none"
    larger = settings(data, tmp_path / "run", *added, "data.min_sizes=[96]", "data.max_size=128")
    plan = DetectionTask(larger, single).describe()
    sizes = "resizes images to min_size 64 px, not 96 and max_size 64 px, not 128; give its"
    assert f"warning: {run} {sizes}" in plan


def test_random_images_and_repeated_names_are_refused(old: Path, tmp_path: Path) -> None:
    added = (f"model.weights={old}", "model.add_classes=true")
    with pytest.raises(ConfigError, match="model.add_classes=true adds no class of data=synth"):
        fit(load_config("train", ["data=synthetic", f"output_dir={tmp_path / 'run'}", *added]))
    with pytest.raises(ConfigError, match=r"known_classes=\[\['cat'\]\] comes from model.add_cl"):
        validate(ModelConfig(known_classes=[["cat"]]))
    config = settings(draw(tmp_path / "data", "cat", "bird"), tmp_path / "run", *added)
    config.model.known_classes = [["cat", "cat"]]
    with pytest.raises(ConfigError, match="or two of one name"):
        fit(config)


def test_labels_follow_those_that_are_known() -> None:
    grown = Categories((7, 3), ("bird", "cat")).after(["cat", "", "dog"])
    assert grown == Categories((3, -1, 10, 7), ("cat", "", "dog", "bird"))
