"""Boxes drawn on images, and a COCO results json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from retina_dist.config.commands import PredictConfig
from retina_dist.data.image_files import find_images, read_images
from retina_dist.detection.coco_metrics import detections_to_rows, write_results
from retina_dist.detection.detector import Detector
from retina_dist.detection.draw_boxes import draw_boxes
from retina_dist.detection.readers.categories import Categories
from retina_dist.files import write_atomically
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.text import escape


def predict(config: PredictConfig) -> Path:
    """Write `output_dir`/NAME.jpg for each image and `output_dir`/results.json; return the folder.

    results.json is in COCO's results form; its image ids are the places in the sorted list of files, as `images.json` says, which
    also names its category ids, those of the training data.
    """
    files = find_images(config.input)
    device = SingleDeviceStrategy(config.device).device
    detector = Detector.from_checkpoint(config.checkpoint, device=str(device), precision=config.precision)  # type: ignore[arg-type]
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    rows, done, names = [], {}, detector.categories.names
    for image_id, file, pixels, name in read_images(files, config.input, config.max_pixels):
        done[image_id] = file
        found = detector.predict([pixels])[0]
        rows.append(detections_to_rows([found], [image_id], detector.categories))
        shown = found["scores"] >= config.score_threshold
        image = draw_boxes(pixels, found["boxes"][shown], found["labels"][shown], names, found["scores"][shown])
        target = folder / f"{name}.jpg"
        image.save(target, quality=92)
        counts = torch.bincount(found["labels"][shown], minlength=len(names)).tolist()
        what = ", ".join(f"{n} {label}" for n, label in zip(counts, names, strict=True) if n) or "nothing"
        print(escape(f"{file}: {what} -> {target}"))
    write_results(np.concatenate(rows), folder / "results.json")
    write_image_list(done, detector.categories, folder / "images.json")
    left_out = f", {len(files) - len(done)} unreadable files left out" if len(done) < len(files) else ""
    print(f"{len(done)} images and results.json in {folder}{left_out}")
    return folder


def write_image_list(files: Mapping[int, Path], categories: Categories, path: Path) -> None:
    """Which image id of results.json is which file and which category id has which name, in COCO's form."""
    images = [{"id": i, "file_name": str(f)} for i, f in files.items()]
    named = [{"id": i, "name": name} for i, name in zip(categories.ids, categories.names, strict=True) if i >= 0]
    text = json.dumps({"images": images, "categories": named}, indent=1) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))
