"""Boxes drawn on images, and a COCO results json."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from retina_dist.config.commands import PredictConfig
from retina_dist.data.image_files import find_images
from retina_dist.data.images import read_image
from retina_dist.detection.coco_metrics import detections_to_rows, write_results
from retina_dist.detection.detector import Detector
from retina_dist.detection.draw_boxes import draw_boxes
from retina_dist.detection.readers.categories import Categories
from retina_dist.errors import DataError, ImageError
from retina_dist.files import write_atomically
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.words import showable


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
    rows, failures, names = [], [], detector.categories.names
    for image_id, file in enumerate(files):
        try:
            pixels = read_image(file, max_pixels=config.max_pixels)
        except ImageError as error:
            failures.append(file)
            print(f"warning: {showable(str(error).split(';')[0])}; left out", file=sys.stderr)
            continue
        found = detector.predict([pixels])[0]
        rows.append(detections_to_rows([found], [image_id], detector.categories))
        shown = found["scores"] >= config.score_threshold
        image = draw_boxes(pixels, found["boxes"][shown], found["labels"][shown], names, found["scores"][shown])
        target = folder / f"{file.stem}.jpg"
        if target.exists() and any(f.stem == file.stem for f in files[:image_id]):
            target = folder / f"{file.stem}_{image_id}.jpg"
        image.save(target, quality=92)
        counts = torch.bincount(found["labels"][shown], minlength=len(names)).tolist()
        what = ", ".join(f"{n} {name}" for n, name in zip(counts, names, strict=True) if n) or "nothing"
        print(showable(f"{file}: {what} -> {target}"))
    if len(failures) == len(files):
        raise DataError(f"none of the {len(files)} files of input={config.input} is a readable image.")
    write_results(np.concatenate(rows), folder / "results.json")
    write_image_list(files, failures, detector.categories, folder / "images.json")
    left_out = f", {len(failures)} unreadable files left out" if failures else ""
    print(f"{len(files) - len(failures)} images and results.json in {folder}{left_out}")
    return folder


def write_image_list(files: list[Path], left_out: list[Path], categories: Categories, path: Path) -> None:
    """Which image id of results.json is which file and which category id has which name, in COCO's form."""
    import json

    images = [{"id": i, "file_name": str(f)} for i, f in enumerate(files) if f not in left_out]
    named = [{"id": i, "name": name} for i, name in zip(categories.ids, categories.names, strict=True) if i >= 0]
    text = json.dumps({"images": images, "categories": named}, indent=1) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))
