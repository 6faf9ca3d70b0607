"""What a stranger's checkpoint claims is bounded before it is built, allocated or gone through."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from retina_dist.base.errors import CheckpointError, UserError
from retina_dist.base.torch_files import load_torch
from retina_dist.config.run_config import data_settings_of
from retina_dist.detection.detector import Detector
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.settings import DetectionData

SMALL = {"num_classes": 3, "backbone": "resnet18", "fpn_channels": 16}


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    model = build_retinanet(**SMALL)
    categories = {"ids": [1, 2, 3], "names": ["a", "b", "c"]}
    return {
        "step": 1,
        "model": model.state_dict(),
        "ema": None,
        "model_arguments": SMALL,
        "categories": categories,
        "input": {"min_size": 64, "max_size": 96},
    }


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_classes", 10**9, "num_classes=1000000000 is too large"),
        ("fpn_channels", 10**6, "fpn_channels=1000000 is too large"),
        ("fpn_channels", 4096, "billion parameters"),
        ("num_classes", "3", "does not describe a detector"),
        ("topk_candidates", -1, "topk_candidates=-1 is too small"),
        ("anchor_sizes", [[10**9]] * 5, "anchor_sizes=1000000000 is too large"),
        ("anchor_sizes", [[8] * 20_000] * 5, "make 60000 anchors a cell"),
        ("aspect_ratios", [1.0] * 100_000, "make 300000 anchors a cell"),
        ("norm_eps", float("nan"), "not a finite number"),
        ("backbone", "resnet1000000", "resnet1000000 is not known"),
        ("made_up", 1, "does not describe a detector"),
    ],
)
def test_model_arguments(content: dict[str, Any], key: str, value: object, words: str) -> None:
    started = time.process_time()
    with pytest.raises(CheckpointError, match=words) as caught:
        Detector.from_content({**content, "model_arguments": {**SMALL, key: value}}, "a.pt")
    assert time.process_time() - started < 10
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "size", [(10**9, 10**9), (64, 10**6), (0, 64), (96, 64), ("64", 96), (64.0, 96), (True, 96)]
)
def test_input_sizes(content: dict[str, Any], size: tuple[object, object]) -> None:
    with pytest.raises(CheckpointError, match="min_size="):
        Detector.from_content(
            {**content, "input": {"min_size": size[0], "max_size": size[1]}}, "a.pt"
        )


def test_a_zip_bomb_is_refused_before_torch_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, path = io.BytesIO(), tmp_path / "bomb.pt"
    torch.save({"w": torch.zeros(2_000_000)}, saved)
    with (
        zipfile.ZipFile(saved) as archive,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
    monkeypatch.setattr(torch, "load", lambda *arguments, **named: pytest.fail("it was unpacked"))
    with pytest.raises(
        CheckpointError, match=r"bomb\.pt is compressed, 8\d{6} bytes in \d{4,5}, which torch"
    ):
        load_torch(path)


# its settings


@pytest.mark.parametrize("data", [None, "text", {"num_workers": "many"}, {"min_sizes": [["a"]]}])
def test_settings_of_other_types(data: object) -> None:
    with pytest.raises(
        UserError, match=r"the checkpoint's|a\.pt does not say what it was trained on"
    ) as caught:
        data_settings_of({"config": {"data": data}}, DetectionData, "a.pt")
    assert "\n" not in str(caught.value)
