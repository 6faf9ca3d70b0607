"""Crops are the boxes' pixels, in a folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retina_dist.base.errors import DataError
from scripts.crop_boxes import crop_boxes
from tests.coco_files import write_coco


def data(folder: Path) -> tuple[Path, Path]:
    """One image whose pixels tell their column, with boxes [x, y, width, height] of two classes and
    one without an area.
    """
    folder.mkdir()
    pixels = np.broadcast_to(np.arange(40, dtype=np.uint8)[None, :, None], (30, 40, 3))
    Image.fromarray(pixels.copy()).save(folder / "a.png")
    images = [{"id": 1, "file_name": "a.png", "width": 40, "height": 30}]
    boxes = [(1, 1, [4.5, 2, 10, 6], 0), (1, 2, [30, 20, 10, 10], 0), (1, 1, [3, 3, 0, 5], 0)]
    write_coco(folder / "coco.json", images, boxes, {1: "cell", 2: "disc"})
    return folder / "coco.json", folder


@pytest.mark.parametrize(("margin", "first"), [(0.0, (4, 15, 6)), (0.1, (3, 16, 8))])
def test_crops_are_the_pixels_of_the_boxes(
    tmp_path: Path, margin: float, first: tuple[int, int, int]
) -> None:
    counts = crop_boxes(*data(tmp_path / "data"), tmp_path / "crops", margin)
    assert counts == {"cell": 1, "disc": 1}
    with Image.open(tmp_path / "crops" / "cell" / "a-1-0.png") as crop:
        left, right, height = first
        assert np.asarray(crop)[0, :, 0].tolist() == list(range(left, right))
        assert crop.size == (right - left, height)
    with Image.open(
        tmp_path / "crops" / "disc" / "a-1-1.png"
    ) as crop:  # at the corner of the image, where a margin ends
        assert np.asarray(crop)[0, -1, 0] == 39


def test_the_folder_that_file_names_start_from_is_asked_for(
    tmp_path: Path,
) -> None:
    annotations, images = data(tmp_path / "data")
    (images / "train").mkdir()
    with pytest.raises(DataError, match=f"give, in place of {images}/train, the folder that the"):
        crop_boxes(annotations, images / "train", tmp_path / "crops")
