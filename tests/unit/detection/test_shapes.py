"""The drawn data set: reproducible, whole or absent, with boxes that fit what is drawn."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from retina_dist.detection.data.synthetic import CATEGORIES, make_shapes
from retina_dist.detection.readers.coco import load_annotations
from retina_dist.detection.readers.formats import find_split
from retina_dist.errors import DataError


def digest(root: Path) -> str:
    files = sorted(p for p in root.rglob("*") if p.is_file())
    return hashlib.sha256(b"".join(p.name.encode() + p.read_bytes() for p in files)).hexdigest()


def test_the_same_seed_draws_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_shapes(tmp_path / name, num_train=6, num_val=3, image_size=64, seed=seed)
        (tmp_path / name / "shapes.json").unlink()
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_it_is_a_sound_data_set_with_everything_real_ones_have(tmp_path: Path) -> None:
    make_shapes(tmp_path / "shapes", num_train=150, num_val=10, image_size=64)
    data = load_annotations(*find_split(tmp_path / "shapes", "train"))
    assert len(data.records) == 150
    assert not data.dropped
    assert not data.clipped
    assert data.num_crowd > 0
    assert any(not len(boxes) for boxes in data.boxes)
    assert len({(r.width, r.height) for r in data.records}) == 5
    assert data.categories.ids == tuple(CATEGORIES)  # with gaps
    assert set(np.concatenate(data.labels)) == set(range(6))


def test_an_existing_folder_is_reused_or_refused(tmp_path: Path) -> None:
    root = tmp_path / "shapes"
    make_shapes(root, num_train=2, num_val=1, image_size=48)
    before = digest(root)
    make_shapes(root, num_train=2, num_val=1, image_size=48)
    assert digest(root) == before
    with pytest.raises(DataError, match="num_train 2, not 3") as caught:
        make_shapes(root, num_train=3, num_val=1, image_size=48)
    assert f"with data.root={root}-num_train3, or delete the folder {root} to" in str(caught.value)
    make_shapes(tmp_path / "shapes-num_train3", num_train=3, num_val=1, image_size=48)  # as it says
