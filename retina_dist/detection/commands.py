"""Detection's commands; a training imports none of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import to_pil_image

from retina_dist.base.files import write_json
from retina_dist.base.text import pluralize
from retina_dist.data.shards import Member, ShardSplit, write_splits
from retina_dist.detection import evaluation
from retina_dist.detection.batch import Detections
from retina_dist.detection.coco_metrics import detections_to_rows, write_results
from retina_dist.detection.detector import Detector
from retina_dist.detection.doctor import examine as examine
from retina_dist.detection.evaluation import predictor_of as predictor_of
from retina_dist.detection.export import export as export
from retina_dist.detection.pictures import draw_boxes
from retina_dist.detection.predictions import TOOLS, Predicted
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.splits import read_split, sized_coco
from retina_dist.detection.suspicious import examine_labels as examine_labels
from retina_dist.task.predictor import predict_files
from retina_dist.tracking.console import print_redacted

if TYPE_CHECKING:
    from retina_dist.evaluate import EvaluateConfig
    from retina_dist.predict import PredictConfig
    from retina_dist.shards import ShardsConfig


def evaluate(config: EvaluateConfig) -> str:
    """COCO metrics and errors as a table, on the main rank; every rank calls it."""
    return evaluation.evaluate(config)[1]


def predict(config: PredictConfig) -> Path:
    """Write `output_dir`/NAME.jpg for each image, COCO's results.json and images.json, which names its ids; return the folder."""
    predicted: list[Predicted] = []

    def draw(detector: Detector, pixels: Tensor, output: Detections) -> tuple[Image.Image, str]:
        names, kept = detector.categories.names, output["scores"] >= config.score_threshold
        labels = output["labels"][kept]
        counts = torch.bincount(labels, minlength=len(names)).tolist()
        words = ", ".join(f"{n} {name}" for n, name in zip(counts, names, strict=True) if n)
        if not words:
            best = (
                f"the highest score is {output['scores'].max():.2f}"
                if len(kept)
                else "there is no candidate"
            )
            words = f"nothing at score_threshold={config.score_threshold}; {best}"
        objects = detector.to_dict(output, config.score_threshold)["detections"]
        predicted.append(Predicted("", pixels.shape[2], pixels.shape[1], objects))
        picture = draw_boxes(pixels, output["boxes"][kept], labels, names, output["scores"][kept])
        return to_pil_image(picture), words

    detector, outputs = predict_files(config, predictor_of, draw)
    rows = detections_to_rows(
        [output for _, output in outputs.values()], list(outputs), detector.categories
    )
    folder = Path(str(config.output_dir))
    write_results(rows, folder / "results.json")
    images = [{"id": i, "file_name": str(file)} for i, (file, _) in outputs.items()]
    named = {
        i: n
        for i, n in zip(detector.categories.ids, detector.categories.names, strict=True)
        if i >= 0
    }
    lists = {"images": images, "categories": [{"id": i, "name": name} for i, name in named.items()]}
    write_json(folder / "images.json", lists)
    written = "results.json"
    if config.format != "coco":
        name, write = TOOLS[config.format]
        files = [file for file, _ in outputs.values()]
        top = (
            config.input
            if Path(config.input).is_dir()
            else os.path.commonpath([file.parent for file in files])
        )
        if (
            config.format == "label_studio"
        ):  # which takes no folder as its root that is a storage itself
            top = os.path.dirname(os.path.abspath(top))
        named_images = [
            one._replace(name=os.path.relpath(f, top))
            for one, f in zip(predicted, files, strict=True)
        ]
        text = write(named_images, list(named.values()))
        (folder / name).write_text(text, encoding="utf-8")
        written += f" and {name}"
    print(f"{pluralize(len(outputs), 'image')} and {written} in {folder}")
    return folder


def write_shards(config: ShardsConfig) -> None:
    """Write both splits to `output`."""
    data = replace(config.data, keep_empty_images=True)
    train = read_split(data, "train")
    assert train is not None, "a missing train split is an error"
    parts = {"train": train, "val": read_split(data, "val", train.categories)}
    splits = {
        split: _split(part, data.max_pixels) for split, part in parts.items() if part is not None
    }
    write_splits(config.output, splits, config.shard_mb, print_redacted)


def _split(part: Annotations, max_pixels: int) -> ShardSplit:
    members = [Member(record.image_id, record.path) for record in part.records]
    return ShardSplit(
        members, lambda: (json.dumps(sized_coco(part, max_pixels)) + "\n").encode(), part.warnings
    )
