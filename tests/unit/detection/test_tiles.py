"""Detection in windows: what is whole stays whole, what is seen twice counts once, and small
objects are found.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from retina_dist.base.errors import ConfigError
from retina_dist.classification.commands import predictor_of
from retina_dist.detection.batch import Detections
from retina_dist.detection.coco_metrics import evaluate_rows
from retina_dist.detection.detector import Detector
from retina_dist.detection.evaluation import evaluate
from retina_dist.detection.tiles import merge, windows_of
from retina_dist.serving.scoring import Scorer
from retina_dist.task.settings import EvaluateConfig, PredictConfig
from tests.coco_files import write_coco
from tests.commands import run_command
from tests.unit.serving.server import make_image, small_detector


def draw_scenes(
    root: Path, num_train: int, num_val: int, side: int, num_objects: tuple[int, int]
) -> Path:
    """COCO data of scenes as from the air: discs, squares and crosses of 8 to 20 px, all of one
    category, on a mottled ground.

    `num_objects` are those of a scene to train on and of one to validate on.
    """
    rng = np.random.default_rng(0)
    for split, count, objects in (
        ("train", num_train, num_objects[0]),
        ("val", num_val, num_objects[1]),
    ):
        (root / split).mkdir(parents=True)
        images, boxes = [], []
        for number in range(1, count + 1):
            coarse = rng.integers(60, 140, (side // 32, side // 32, 3), dtype=np.uint8)
            scene = Image.fromarray(coarse).resize((side, side), Image.Resampling.BILINEAR)
            scene = Image.fromarray(
                np.asarray(scene) + rng.integers(0, 20, (side, side, 3), dtype=np.uint8)
            )
            draw = ImageDraw.Draw(scene)
            for _ in range(objects):
                size, kind = int(rng.integers(8, 21)), int(rng.integers(3))
                x, y = rng.integers(0, side - size, 2).tolist()
                colour = tuple(rng.integers(180, 256, 3).tolist())
                corners = (x, y, x + size - 1, y + size - 1)
                if kind == 2:
                    draw.line((x, y + size // 2, x + size - 1, y + size // 2), colour, size // 4)
                    draw.line((x + size // 2, y, x + size // 2, y + size - 1), colour, size // 4)
                else:
                    (draw.ellipse, draw.rectangle)[kind](corners, fill=colour)
                boxes.append((number, 1, [x, y, size, size], 0))
            scene.save(root / split / f"{number}.jpg", quality=95)
            images.append(
                {"id": number, "file_name": f"{number}.jpg", "width": side, "height": side}
            )
        write_coco(root / "annotations" / f"instances_{split}.json", images, boxes, {1: "object"})
    return root


@pytest.fixture(scope="module")
def detector() -> Detector:
    return small_detector()


def test_windows_cover_the_image_by_equal_ones() -> None:
    assert windows_of(200, 300, 128, 0.2) == [
        (0, 0, 128, 128),
        (102, 0, 230, 128),
        (172, 0, 300, 128),
        (0, 72, 128, 200),
        (102, 72, 230, 200),
        (172, 72, 300, 200),
    ]
    assert windows_of(200, 100, 128, 0.2) == [(0, 0, 100, 128), (0, 72, 100, 200)]
    assert windows_of(128, 90, 128, 0.5) == [(0, 0, 90, 128)]
    assert windows_of(256, 128, 128, 0.0) == [(0, 0, 128, 128), (0, 128, 128, 256)]


def test_no_more_detections_than_of_the_whole_image(detector: Detector) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    tiled = detector.tiled(64)
    every = tiled.predict(pixels)[0]
    most = len(every["scores"]) // 2
    some = small_detector().tiled(64).set_limits(detections_per_image=most).predict(pixels)[0]
    assert len(every["scores"]) > len(some["scores"]) == most
    assert some["scores"].tolist() == every["scores"][: len(some["scores"])].tolist()


def found(*rows: tuple[list[float], float, int]) -> Detections:
    boxes, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    return Detections(
        boxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        scores=torch.tensor(scores, dtype=torch.float32),
        labels=torch.tensor(labels, dtype=torch.int64),
    )


def test_merging_by_hand() -> None:
    """Two windows of 100 px that share 20: x from 80 to 100."""
    left = found(
        ([10, 10, 30, 30], 0.9, 0),
        ([82, 40, 98, 60], 0.8, 0),  # both windows see it whole
        ([90, 70, 100, 90], 0.95, 1),  # cut: the right window has all of it
        ([60, 0, 100, 20], 0.7, 2),  # cut, and no window has all of it
    )
    right = found(([2, 40, 18, 60], 0.6, 0), ([10, 70, 35, 90], 0.5, 1), ([2, 41, 18, 60], 0.55, 2))
    whole = found(([10, 11, 30, 31], 0.3, 0), ([60, 0, 140, 20], 0.4, 2))
    result = merge(whole, [left, right], torch.tensor([[0, 0, 100, 100], [80, 0, 180, 100]]), 0.5)
    assert [
        (b, round(s, 2), k)
        for b, s, k in zip(*(result[n].tolist() for n in ("boxes", "scores", "labels")))
    ] == [
        ([10, 10, 30, 30], 0.9, 0),
        ([82, 40, 98, 60], 0.8, 0),
        ([82, 41, 98, 60], 0.55, 2),
        ([90, 70, 115, 90], 0.5, 1),
        ([60, 0, 140, 20], 0.4, 2),
    ]


def test_a_sure_box_at_the_edge_of_a_window_outlives_an_unsure_larger_one() -> None:
    """An object that ends where its window ends is not lost to a false detection around it."""
    left = found(([80, 40, 100, 60], 0.9, 0))
    right = found(([0, 30, 60, 70], 0.06, 0))
    result = merge(found(), [left, right], torch.tensor([[0, 0, 100, 100], [80, 0, 180, 100]]), 0.5)
    assert [round(score, 2) for score in result["scores"].tolist()] == [0.9, 0.06]


def test_a_window_as_large_as_the_image_changes_no_bit(detector: Detector) -> None:
    image = torch.randint(
        0, 256, (3, 120, 200), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    (expected,) = detector.predict(image)
    for tile in (200, 4000):
        (whole,) = detector.tiled(tile).predict(image)
        assert all(torch.equal(whole[key], expected[key]) for key in ("boxes", "scores", "labels"))
    (tiled, alone) = detector.tiled(96).predict([image, image[:, :90, :90]])
    assert len(tiled["scores"]) > 0
    assert (tiled["scores"].diff() <= 0).all()
    assert tiled["boxes"][:, 2].max() <= 200
    assert torch.equal(alone["boxes"], detector.predict(image[:, :90, :90])[0]["boxes"])
    with pytest.raises(ConfigError, match="tile=16 tile_overlap=0.2 is invalid"):
        detector.tiled(16)


def test_a_server_answers_from_windows_and_a_classifier_has_none(detector: Detector) -> None:
    scorer = Scorer(detector.tiled(64))
    large, small = (
        scorer.prepare(make_image(size=(150, 100)), 0),
        scorer.prepare(make_image(size=(50, 40)), 1),
    )
    answers = [scorer.predict([image])[0] for image in (large, small)]
    assert [(answer["width"], answer["height"]) for answer in answers] == [(150, 100), (50, 40)]
    (expected,) = detector.tiled(64).predict(Image.open(io.BytesIO(make_image(size=(150, 100)))))
    assert answers[0]["detections"] == detector.to_dict(expected, 0.0)["detections"] != []
    assert answers[1] == Scorer(detector).predict([small])[0]
    with pytest.raises(ConfigError, match="tile=640 is for detection, and a classifier has no box"):
        predictor_of(PredictConfig(checkpoint="best.pt", input="a.jpg", tile=640), "cpu")


def metrics_of(checkpoint: Path, **tiles: float) -> dict[str, float]:
    return evaluate(
        EvaluateConfig(checkpoint=str(checkpoint), device="cpu", num_workers=0, **tiles)
    )[0].stats  # type: ignore[arg-type]


def where(root: Path, folder: Path) -> list[str]:
    return [f"data.root={root}", f"output_dir={folder / 'run'}"]


TRAINING = [
    "experiment=small_objects",
    "model.backbone=resnet18",
    "model.fpn_channels=64",
    "data.num_workers=0",
]


def test_the_recipe_trains_on_windows_and_is_evaluated_in_windows(tmp_path: Path) -> None:
    root = draw_scenes(tmp_path / "scenes", 2, 1, 128, (6, 6))
    sizes = [
        "data.min_sizes=[64]",
        "data.max_size=64",
        "data.scale_jitter=[2,2]",
        "data.batch_size=2",
    ]
    run_command(
        "retina_dist.train",
        *TRAINING,
        *sizes,
        "trainer.max_duration=2steps",
        *where(root, tmp_path),
        cwd=tmp_path,
    )
    checkpoint = tmp_path / "run" / "checkpoints" / "last.pt"
    whole = metrics_of(checkpoint, tile=128)
    assert whole == metrics_of(checkpoint)
    assert metrics_of(checkpoint, tile=64).keys() == whole.keys()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Scenes of 2048 px, and a detector of windows of 256 px at full resolution."""
    folder = tmp_path_factory.mktemp("tiles")
    root = draw_scenes(folder / "scenes", 16, 4, 2048, (600, 90))
    sizes = ["data.min_sizes=[256]", "data.max_size=256", "data.scale_jitter=[8,8]"]
    speed = [
        "trainer.precision=auto",
        "trainer.channels_last=true",
        "trainer.max_duration=300steps",
    ]
    rare = [f"trainer.{key}_every=1000epochs" for key in ("validate", "checkpoint")]
    run_command(
        "retina_dist.train",
        *TRAINING,
        *sizes,
        *speed,
        *rare,
        *where(root, folder),
        cwd=folder,
        timeout=3000,
    )
    return root, folder / "run" / "checkpoints" / "last.pt"


@pytest.mark.long
def test_small_objects_are_detected_in_windows(trained: tuple[Path, Path]) -> None:
    """They have 1 to 3 px in the whole image at the size that the model was trained at."""
    whole, tiled = metrics_of(trained[1]), metrics_of(trained[1], tile=256)
    print({name: (whole[name], tiled[name]) for name in ("AP", "AP50", "APs", "AR100")})
    assert whole["AP"] < 0.01
    assert tiled["AP"] > 0.2


@pytest.mark.long
def test_windows_are_as_good_as_sahis(trained: tuple[Path, Path]) -> None:
    pytest.importorskip("sahi", reason="compared where it is installed: pip install sahi")
    from sahi.models.base import DetectionModel
    from sahi.predict import get_sliced_prediction
    from sahi.prediction import ObjectPrediction
    from sahi.utils.compatibility import fix_full_shape_list, fix_shift_amount_list

    root, checkpoint = trained
    detector = Detector.from_checkpoint(checkpoint)

    class Ours(DetectionModel):  # type: ignore[misc]
        def load_model(self) -> None:
            self.model = detector

        def perform_inference(self, image: np.ndarray) -> None:
            (self.detections,) = detector.predict(np.ascontiguousarray(image))

        def _create_object_prediction_list_from_original_predictions(
            self, shift_amount_list: Any, full_shape_list: Any = None
        ) -> None:
            (shift,) = fix_shift_amount_list(shift_amount_list)
            (shape,) = fix_full_shape_list(full_shape_list) or [None]
            values = zip(
                self.detections["boxes"].tolist(), self.detections["scores"].tolist(), strict=True
            )
            kept = [
                (box, score)
                for box, score in values
                if box[2] - box[0] >= 1 and box[3] - box[1] >= 1
            ]
            self._object_prediction_list_per_image = [
                [
                    ObjectPrediction(
                        box, 0, "object", score=score, shift_amount=shift, full_shape=shape
                    )
                    for box, score in kept
                ]
            ]

    truth = json.loads((root / "annotations" / "instances_val.json").read_text())
    truth["annotations"] = [e | {"area": e["bbox"][2] * e["bbox"][3]} for e in truth["annotations"]]
    model, rows = Ours(model_path="-", confidence_threshold=0.05, device="cpu"), []
    for image in truth["images"]:
        pixels = np.asarray(Image.open(root / "val" / image["file_name"]))
        sliced = get_sliced_prediction(pixels, model, 256, 256, 0.2, 0.2, verbose=0)
        for found in sliced.object_prediction_list:
            x1, y1, x2, y2 = found.bbox.to_xyxy()
            rows.append([image["id"], x1, y1, x2 - x1, y2 - y1, found.score.value, 1])
    theirs, ours = evaluate_rows(truth, np.array(rows)).stats, metrics_of(checkpoint, tile=256)
    print({name: (theirs[name], ours[name]) for name in ("AP", "AP50", "APs", "AR100")})
    assert ours["AP"] > theirs["AP"] - 0.01
