"""The detector of a checkpoint sees what validation saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from retina_dist.base.errors import CheckpointError, ConfigError, DataError
from retina_dist.detection.detector import Detector
from retina_dist.engine.checkpoint.store import CheckpointStore, sealed
from tests.unit.serving import server


def content(**changes: Any) -> dict[str, Any]:
    return server.content(score_threshold=0.0) | changes


def test_no_image_changes_the_result_of_another() -> None:
    generator = torch.Generator().manual_seed(0)
    wide, tall = (
        torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=generator)
        for h, w in ((9, 70), (80, 40))
    )
    detector = Detector.from_content(content(), "a checkpoint")
    together = detector.predict([wide, tall])
    for alone, found in zip(
        [*detector.predict([wide]), *detector.predict([tall])], together, strict=True
    ):
        for name in ("boxes", "scores", "labels"):
            assert torch.equal(alone[name], found[name])
    assert detector.predict([]) == []


def test_a_file_of_the_checkpoint_folder(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(content(), 1)
    store.wait()
    path = tmp_path / "last.pt"
    detector = Detector.from_checkpoint(path)
    assert detector.categories.ids == (3, -1, 8)
    assert (detector.min_size, detector.max_size, detector.model.training) == (64, 96, False)
    with pytest.raises(
        ConfigError, match="checkpoint is of type NoneType; give the path of a .pt file"
    ):
        Detector.from_checkpoint(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="^device=gpu is not a device"):
        Detector.from_checkpoint(path, device="gpu")


def test_the_average_is_preferred() -> None:
    plain = content()
    average = {
        name: value + 0.5 if "cls_logits.bias" in name else value
        for name, value in plain["model"].items()
    }
    detector = Detector.from_content(content(ema={"model": average, "updates": 3}), "a checkpoint")
    bias = detector.model.head.classification_head.cls_logits.bias
    assert torch.equal(bias, average["head.classification_head.cls_logits.bias"])


def test_forms_of_an_image(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (40, 80, 3), dtype=np.uint8)
    image, tensor = Image.fromarray(array), torch.from_numpy(array).permute(2, 0, 1)
    stored = Image.fromarray(np.rot90(array))
    stored.getexif()[0x0112] = 6  # turned when it is shown
    stored.save(tmp_path / "a.png", exif=stored.getexif())
    detector = Detector.from_content(content(), "a checkpoint")
    path = tmp_path / "a.png"
    forms = [
        path,
        str(path),
        image,
        image.convert("RGBA"),
        array,
        array[:, ::-1][:, ::-1],
        tensor,
        tensor / 255,
    ]
    alone = [detector.predict(form) for form in forms]
    assert all(len(detections) == 1 for detections in alone)
    for (detections,), expected in zip(alone, detector.predict(forms), strict=True):
        assert torch.equal(detections["boxes"], expected["boxes"])
        assert torch.equal(detections["boxes"], alone[0][0]["boxes"])
    grey = detector.predict(
        [array[..., 0], image.getchannel(0), image.getchannel(0).convert("RGB")]
    )
    assert torch.equal(grey[0]["boxes"], grey[1]["boxes"])
    assert torch.equal(grey[0]["boxes"], grey[2]["boxes"])


PIXELS = torch.zeros(3, 8, 8)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (PIXELS + 255, "an image has floats from 255 to 255; give uint8 or floats from 0 to 1"),
        (PIXELS[None], r"an image has the shape \[1, 3, 8, 8\]"),
        (None, "images is of type NoneType; give a file, .* or a list of them"),
        ("absent.jpg", "absent.jpg is not a local file; give the path of one"),
        (".", r"\. is not a local file; give .* or a list of paths"),
    ],
)
def test_anything_but_an_image_is_an_error(images: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Detector.from_content(content(), "a checkpoint").predict(images)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model_arguments": {**server.ARGUMENTS, "num_classes": 5}},
        {"input": None},
        {"categories": {"ids": [1], "names": ["cat"]}},
        {"ema": {"updates": 1}},
    ],
)
def test_what_does_not_fit_together_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="other.pt does not describe a detector"):
        Detector.from_content(content(**wrong), "other.pt")


def test_a_checkpoint_of_another_task_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(
        sealed({**content(config={"task": {"name": "classification"}}), "step": 1})
    )
    with pytest.raises(
        CheckpointError, match="task=classification, not of a detector; give a detector's, or use"
    ):
        Detector.from_checkpoint(tmp_path / "a.pt")
