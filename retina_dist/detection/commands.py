"""Detection's commands; a training imports none of them."""

import hashlib
import os
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import to_pil_image

from retina_dist.base.console import heartbeat, print_redacted
from retina_dist.base.errors import ConfigError
from retina_dist.base.files import is_packed, write_json, write_text
from retina_dist.base.text import pluralize, truncate
from retina_dist.data.shards import Member, ShardSplit, write_splits
from retina_dist.detection import evaluation
from retina_dist.detection.batch import Detections
from retina_dist.detection.certificate import certify as certify
from retina_dist.detection.coco_metrics import detections_to_rows, write_results
from retina_dist.detection.detector import Detector
from retina_dist.detection.doctor import examine as examine
from retina_dist.detection.evaluation import predictor_of as predictor_of
from retina_dist.detection.export import export as export
from retina_dist.detection.pictures import draw_boxes
from retina_dist.detection.predictions import TOOLS, Predicted
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.settings import DetectionData
from retina_dist.detection.splits import read_splits, sized_coco
from retina_dist.detection.suspicious import examine_labels as examine_labels
from retina_dist.task.predict_files import plan_predictions, predict_files
from retina_dist.task.settings import EvaluateConfig, PredictConfig, ShardsConfig

SHOWN_FROM = 0.3  # a score; a detector gives many less sure objects, for its metrics


def evaluate(config: EvaluateConfig) -> str:
    """COCO metrics and errors as a table, on the main rank; every rank calls it.

    Raises ConfigError where `annotations` or `results` is a folder or an archive.
    """
    if config.annotations:
        others = ""
        if config.checkpoint:
            others = f", or the folder of a data set: root={config.annotations}"
        _check_json("annotations", config.annotations, others)
    if config.results:
        _check_json("results", config.results)
    return evaluation.evaluate(config)[1]


def _check_json(key: str, path: str, others: str = "") -> None:
    """Raise ConfigError for a folder or an archive; `others` is what else may be given."""
    if is_packed(path):
        raise ConfigError(f"{key}={path} is an archive; unpack it, and give its COCO json.")
    if Path(path).is_dir():
        example = ""
        files = sorted(Path(path).rglob("*.json"))
        # `predict` and `evaluate` write results.json beside others
        for found in sorted(files, key=lambda file: file.stem != key)[:1]:
            example = f", such as {key}={found}"
        raise ConfigError(f"{key}={path} is a folder; give a COCO json{example}{others}.")


def predict(config: PredictConfig) -> Path:
    """Write a NAME.jpg of each image, results.json and images.json; return their folder.

    results.json holds every detection in COCO's form, images.json the names of its ids. Pictures
    and the file of a tool (`format`) show the same, or those from `SHOWN_FROM` on where no
    `score_threshold` is given.
    """
    shown_from = config.score_threshold
    if shown_from is None:
        shown_from = SHOWN_FROM
    plan = plan_predictions(config.input, config.output_dir)
    detector = predictor_of(config, config.device)
    predicted = []

    def draw(pixels: Tensor, output: Detections) -> tuple[Image.Image, str]:
        objects = detector.to_dict(output, shown_from)["detections"]
        predicted.append(Predicted("", pixels.shape[2], pixels.shape[1], objects))
        return _picture_of(detector, pixels, output, shown_from)

    outputs = predict_files(detector, plan, draw, config.max_pixels)
    files = [file for file, _ in outputs.values()]
    detections = [output for _, output in outputs.values()]
    rows = detections_to_rows(detections, list(outputs), detector.categories)
    results = plan.folder / "results.json"
    write_results(rows, results)
    images = [{"id": number, "file_name": str(file)} for number, (file, _) in outputs.items()]
    write_json(
        plan.folder / "images.json",
        {
            "info": {"results_sha256": hashlib.sha256(results.read_bytes()).hexdigest()},
            "images": images,
            "categories": list(detector.metadata()["categories"].values()),
        },
    )

    written = "results.json"
    if config.format != "coco":
        name, make = TOOLS[config.format]
        write_text(
            plan.folder / name, make(_named_below(config, predicted, files), detector.class_names)
        )
        written += f" and {name}"
    num_images = pluralize(len(outputs), "image")
    names = []
    unsure = []
    for file, output in outputs.values():
        scores = output["scores"].tolist()
        if max(scores, default=0) < shown_from:
            names.append(file.name)
            unsure += scores
    if names:
        highest = f" (the highest score is {max(unsure):.2f})" if unsure else ""
        print(
            f"nothing in {len(names)} of {num_images} at score_threshold={shown_from}{highest}: "
            f"{truncate(names)}"
        )
    print(f"{num_images} and {written} in {plan.folder}")
    return plan.folder


def _picture_of(
    detector: Detector, pixels: Tensor, output: Detections, threshold: float
) -> tuple[Image.Image, str]:
    """The image with the boxes that score at least `threshold`, and how many there are of each."""
    names = detector.categories.names
    scores = output["scores"]
    kept = scores >= threshold
    labels = output["labels"][kept]
    picture = draw_boxes(pixels, output["boxes"][kept], labels, names, scores[kept])

    counts = sorted(Counter(labels.tolist()).items())
    words = ", ".join(f"{count} {names[label]}" for label, count in counts)
    return to_pil_image(picture), words


def _named_below(
    config: PredictConfig, predicted: list[Predicted], files: list[Path]
) -> list[Predicted]:
    """`predicted` with the paths of their files below the folder that the tool will know."""
    top = config.input
    if not Path(top).is_dir():
        top = os.path.commonpath([file.parent for file in files])
    if config.format == "label_studio":  # which takes no folder as its root that is a storage too
        top = os.path.dirname(os.path.abspath(top))
    named = []
    for image, file in zip(predicted, files, strict=True):
        named.append(image._replace(name=os.path.relpath(file, top)))
    return named


@heartbeat()
def write_shards(config: ShardsConfig) -> None:
    """Write both splits to `output`."""
    data = replace(cast(DetectionData, config.data), keep_empty_images=True)
    train, val = read_splits(data)
    splits = {"train": _split(train, data.max_pixels)}
    if val is not None:
        splits["val"] = _split(val, data.max_pixels)
    write_splits(config.output, splits, config.shard_mb, print_redacted)


def _split(part: Annotations, max_pixels: int) -> ShardSplit:
    members = [Member(record.image_id, record.path) for record in part.records]
    return ShardSplit(members, partial(sized_coco, part, max_pixels), part.warnings)
