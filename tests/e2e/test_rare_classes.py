"""Repeat-factor sampling where it matters: two rare classes of a drawn data set, trained from scratch for equally many steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import retina_dist as rd
from retina_dist.detection.data.shapes import CATEGORIES, make_shapes

RARE = ("star", "cross")
KEPT = 12  # training images with a rare class


def skewed_shapes(root: Path) -> Path:
    """Shapes without most of the training images that hold a rare class."""
    make_shapes(root, num_train=900, num_val=200, image_size=64)
    path = root / "annotations" / "instances_train.json"
    coco = json.loads(path.read_text())
    ids = {number for number, name in CATEGORIES.items() if name in RARE}
    rare = sorted({each["image_id"] for each in coco["annotations"] if each["category_id"] in ids})
    left_out = set(rare[KEPT:])
    coco["images"] = [image for image in coco["images"] if image["id"] not in left_out]
    coco["annotations"] = [each for each in coco["annotations"] if each["image_id"] not in left_out]
    path.write_text(json.dumps(coco))
    return root


def train(root: Path, output: Path, seed: int, threshold: float | None, steps: int = 600) -> dict[str, float]:
    config = rd.load_config(
        "train",
        [
            *("data=coco", f"data.root={root}", "data.min_sizes=[64]", "data.max_size=64", "data.batch_size=8"),
            *("data.num_workers=0", "logging=quiet", f"output_dir={output}", f"seed={seed}"),
            *(f"trainer.max_duration={steps}steps", "trainer.num_threads=1", "trainer.validate_every=0steps"),
            f"data.repeat_threshold={'null' if threshold is None else threshold}",
        ],
    )
    trainer = rd.Trainer.from_config(config)
    trainer.fit()
    per_class = trainer.evaluate().per_class
    return {name: float(ap or 0) for name, ap in per_class.items()}


@pytest.mark.long
def test_rare_classes_gain_from_repeats(tmp_path: Path) -> None:
    root = skewed_shapes(tmp_path / "shapes")
    means: dict[float | None, list[float]] = {None: [], 0.2: []}
    for seed in range(3):
        for threshold, rare in means.items():
            found = train(root, tmp_path / f"{seed}-{threshold}", seed, threshold)
            rare.append(float(np.mean([found[name] for name in RARE])))
    assert np.mean(means[0.2]) > np.mean(means[None]) + 0.05, means
