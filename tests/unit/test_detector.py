"""The detector of a checkpoint sees what validation saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from retina_dist.data.categories import Categories
from retina_dist.detector import Detector
from retina_dist.errors import CheckpointError, ImageError
from retina_dist.model.retinanet import build_retinanet

ARGUMENTS = {"num_classes": 2, "backbone": "resnet18", "fpn_channels": 32, "score_threshold": 0.0}


def content(**changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = build_retinanet(**ARGUMENTS)  # type: ignore[arg-type]
    return {
        "model": model.state_dict(),
        "ema": None,
        "model_arguments": ARGUMENTS,
        "categories": Categories((3, 8), ("cat", "dog")).state(),
        "input": {"min_size": 64, "max_size": 96},
        **changes,
    }


def test_boxes_are_in_pixels_of_the_file(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (128, 256, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    detector = Detector.from_content(content(), "a checkpoint")
    (found,) = detector.predict([tmp_path / "a.png"])
    assert len(found["scores"]) > 0
    assert found["boxes"][:, 2].max() <= 256
    assert found["boxes"][:, 2].max() > 128  # the picture was reduced to 96 px for the network
    assert found["boxes"][:, 3].max() <= 128
    assert (found["scores"].diff() <= 0).all()
    again = detector.predict([torch.from_numpy(pixels).permute(2, 0, 1)])[0]
    assert torch.equal(found["boxes"], again["boxes"])


def test_the_average_is_preferred() -> None:
    plain = content()
    average = {name: value + 0.5 if "cls_logits.bias" in name else value for name, value in plain["model"].items()}
    detector = Detector.from_content(content(ema={"model": average, "updates": 3}), "a checkpoint")
    bias = detector.model.head.classification_head.cls_logits.bias
    assert torch.equal(bias, average["head.classification_head.cls_logits.bias"])


@pytest.mark.parametrize("missing", ["model_arguments", "categories", "input", "model"])
def test_what_describes_no_detector_is_named(missing: str) -> None:
    incomplete = content()
    incomplete.pop(missing)
    with pytest.raises(CheckpointError, match="other.pt"):
        Detector.from_content(incomplete, "other.pt")
    with pytest.raises(CheckpointError, match="other.pt"):
        Detector.from_content(content(model_arguments={**ARGUMENTS, "num_classes": 5}), "other.pt")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("no picture")
    with pytest.raises(ImageError, match="a.jpg"):
        Detector.from_content(content(), "a checkpoint").predict([tmp_path / "a.jpg"])
