"""Classification's commands; a training imports none of them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import models
from torchvision.transforms.v2.functional import to_pil_image

from retina_dist.base.errors import ConfigError, UserError
from retina_dist.base.files import write_csv, write_json
from retina_dist.base.redaction import redacted
from retina_dist.base.text import pluralize
from retina_dist.classification.analysis import analyse
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.drawn import CLASSES, draw_shape
from retina_dist.classification.model import model_options
from retina_dist.classification.samples import Samples
from retina_dist.classification.settings import ClassificationData
from retina_dist.classification.task import check_trainable, read_splits
from retina_dist.data.file_checks import ImageCheck, check_images, file_findings
from retina_dist.data.images import AnyImage, find_images, read_image
from retina_dist.data.shards import Member, ShardSplit, write_splits
from retina_dist.reporting.analysis import lines_of
from retina_dist.reporting.findings import DoctorReport, Finding
from retina_dist.reporting.pictures import enlarged, titled, write_details
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import make_strategy
from retina_dist.task.export_formats import Exporter, Runner, check_ending
from retina_dist.task.model_card import write_card
from retina_dist.task.predictor import data_of_checkpoint, predict_files
from retina_dist.tracking.console import heartbeat, print_redacted

if TYPE_CHECKING:
    from retina_dist.evaluate import EvaluateConfig
    from retina_dist.export import ExportConfig
    from retina_dist.predict import PredictConfig
    from retina_dist.serving.server import ServeConfig

# Settings of evaluate, predict and serve that only a detector has, with the values that they have unless given.
DETECTIONS_OWN = {"format": "coco"} | dict.fromkeys(
    ("results", "annotations", "images", "box_format", "tile")
)


def evaluate(config: EvaluateConfig) -> str:
    """On the main rank, metrics and accuracies with 95 % intervals, a line each; their files and report.html in `output_dir`."""
    with make_strategy(device=config.device) as strategy, heartbeat():
        classifier, data, val = strategy.run_collectively(lambda: _opened(config, strategy.device))
        data = replace(data, val_batch_size=config.batch_size, num_workers=config.num_workers)
        result = classifier.evaluator_of(val, data, strategy).evaluate(classifier.model)
    if detect_launch().rank:
        return ""
    folder = Path(config.output_dir) if config.output_dir else None
    analysis, resampled = analyse(result, val.names, folder)
    if folder:
        write_json(folder / "metrics.json", result.to_dict())
        write_details(
            folder, lambda image_id: read_image(val.sources[image_id], None, data.max_pixels)
        )

    def line(title: str, value: float | None, name: str) -> str:
        if value is None or math.isnan(value):
            return f"{title}-"
        return f"{title}{value:.4f}   {resampled.interval(name) if name in resampled.values else ''}".rstrip()

    width = max(22, *map(len, result.classes))
    first, *others = (
        line(f"{n.removeprefix('val/'):<{width + 2}}", x, n) for n, x in result.metrics.items()
    )
    of_classes = [
        line(f"  {name:<{width}}", x, f"val/top1/{name}") for name, x in result.per_class.items()
    ]
    lines = [f"{first}   95 % interval", *others, "", "accuracy of each class", *of_classes]
    return "\n".join([*lines, *lines_of(analysis)])


def _opened(
    config: EvaluateConfig, device: torch.device
) -> tuple[TrainedClassifier, ClassificationData, Samples]:
    """The classifier and the images to judge it on."""
    classifier = predictor_of(config, device)
    data = data_of_checkpoint(
        classifier.record, ClassificationData, config.checkpoint, root=config.root
    )
    return classifier, data, classifier.val_of(data)


def predictor_of(
    config: EvaluateConfig | PredictConfig | ServeConfig, device: str | torch.device
) -> TrainedClassifier:
    """The classifier of `config.checkpoint`. Raises ConfigError for a setting that only a detector has."""
    for key, default in DETECTIONS_OWN.items():
        if (value := getattr(config, key, default)) != default:
            raise ConfigError(f"{key}={value} is for detection; leave it out for a classifier.")
    return TrainedClassifier.from_checkpoint(
        str(config.checkpoint), device=device, precision=config.precision
    )


def predict(config: PredictConfig) -> Path:
    """Write NAME.jpg of each image and predictions.csv, with the probability of each class, to `output_dir`, and return it."""

    def draw(
        classifier: TrainedClassifier, pixels: Tensor, output: Tensor
    ) -> tuple[Image.Image, str]:
        best = int(output.argmax())
        words = f"{classifier.classes[best]} {float(output[best]):.3f}"
        return to_pil_image(titled(enlarged(pixels), words)), words

    classifier, outputs = predict_files(config, predictor_of, draw)
    folder = Path(str(config.output_dir))
    rows = [["file", "class", "probability", *classifier.classes]]
    for file, output in outputs.values():
        shares, best = output.tolist(), int(output.argmax())
        rows.append(
            [str(file), classifier.classes[best], *(f"{s:.6f}" for s in (shares[best], *shares))]
        )
    write_csv(folder / "predictions.csv", rows)
    print(f"{pluralize(len(rows) - 1, 'image')} and predictions.csv in {folder}")
    return folder


def write_shards(config: Any) -> None:
    """Write both splits to `output`."""

    def split(part: Samples) -> ShardSplit:
        rows = enumerate(zip(part.names, part.labels.tolist(), strict=True))
        images = [
            {"id": i, "file_name": name, "label": part.classes[label]} for i, (name, label) in rows
        ]
        members = [Member(i, source) for i, source in enumerate(part.sources)]
        return ShardSplit(
            members, lambda: (json.dumps({"images": images}) + "\n").encode(), part.warnings
        )

    parts = zip(("train", "val"), read_splits(config.data), strict=True)
    splits = {name: split(part) for name, part in parts if part is not None}
    write_splits(config.output, splits, config.shard_mb, print_redacted)


class ExportedClassifier(nn.Module):
    """uint8 RGB [1, 3, S, S], resized and cropped -> probabilities [1, K]."""

    def __init__(self, classifier: TrainedClassifier) -> None:
        super().__init__()
        self.classifier = classifier.model

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier.logits(image).softmax(1)


def export(config: ExportConfig) -> float:
    """Write `output` if it agrees with the checkpoint's classifier, and return the largest difference of a probability."""
    output = Path(config.output)
    check_ending(output)
    if config.size is not None:
        raise ConfigError(
            f"size={config.size} is for detectors; a classifier takes its validation's size."
        )
    classifier = TrainedClassifier.from_checkpoint(config.checkpoint)
    rng, side = np.random.default_rng(0), max(16, classifier.short_side)
    images: Sequence[AnyImage] = [
        draw_shape(rng, CLASSES[i % len(CLASSES)], side) for i in range(config.num_images)
    ]
    if config.images:
        images = find_images(config.images)[: config.num_images]
    inputs = [classifier.prepare(image) for image in images]
    worst = 0.0

    def compare(run: Runner) -> None:
        nonlocal worst
        worst = max(
            float((run(image)[0] - classifier.probabilities(image)).abs().max()) for image in inputs
        )
        if not worst <= config.score_tolerance:
            differ = f"its probabilities differ by {worst:.3g}"
            raise UserError(
                f"{output} was not written: {differ}; raise score_tolerance={config.score_tolerance}."
            )

    Exporter(
        graph=lambda: torch.export.export(
            ExportedClassifier(classifier).eval(), (torch.zeros_like(inputs[0]),)
        ),
        input_name="image",
        output_names=["probabilities"],
        state=classifier.model.model.state_dict(),
        with_state=partial(_with_state, classifier),
        metadata={**classifier.metadata(), "checkpoint": redacted(config.checkpoint)},
    ).write(output, compare)
    size = output.stat().st_size / 1e6
    print(
        f"{output}: {size:.1f} MB; largest difference of a probability on {len(inputs)} images: {worst:.2g}"
    )
    print(f"described in {write_card(output, classifier, config.checkpoint, config.intended_use)}")
    return worst


def _with_state(classifier: TrainedClassifier, state: Mapping[str, Tensor]) -> Runner:
    """torchvision's own class with these weights, whose batch norms are not ours."""
    name = classifier.arguments["architecture"]
    extra = model_options(name, classifier.arguments["image_size"])
    theirs = models.get_model(name, weights=None, num_classes=len(classifier.classes), **extra)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(
        name.endswith("num_batches_tracked") for name in missing
    )  # which a frozen norm does not count
    theirs.eval()
    return lambda image: [theirs(classifier.model.normalized(image)).softmax(1)]


MOST_IMBALANCE = 5.0  # images of the largest class for one of the smallest
FEWEST = 10  # images of a class


def examine(config: Any) -> DoctorReport:
    """Read the data that the settings name, and look at every image. Raises UserError where it cannot be read at all."""
    if config.sheets:
        raise ConfigError(f"sheets={config.sheets} is for detection; leave it out.")
    data: ClassificationData = config.data
    train, val = read_splits(data)
    parts = {"train": train} | ({"val": val} if val else {})
    findings = [
        Finding("warning", split, text) for split, part in parts.items() for text in part.warnings
    ]
    if val is None:
        findings.append(
            Finding("info", "val", "no validation split", "set data.val_fraction=0.1 for metrics")
        )
    try:
        check_trainable(config.model, data, train)
    except ConfigError as error:
        findings.append(Finding("error", "train", str(error)))
    findings += [finding for split, part in parts.items() for finding in _balance(split, part)]
    checked = {}
    for split, part in parts.items():
        files = [
            (name, source, None) for name, source in zip(part.names, part.sources, strict=True)
        ]
        checks = check_images(files, split, config.images, data.max_pixels)
        # a listed file that is gone since is left out by the same setting as a damaged one
        checked[split] = [
            replace(c, problem="unreadable") if c.problem == "missing" else c for c in checks
        ]
    findings += [
        Finding(*f)
        for f in file_findings(checked, {"unreadable"} if data.bad_images == "skip" else ())
    ]
    findings += _of_other_labels(checked, parts)
    if sizes := [check.size for checks in checked.values() for check in checks if check.size]:
        low, middle, high = np.percentile(np.array(sizes).min(axis=1), (0, 50, 100)).astype(int)
        what = (
            f"shorter sides of {low} to {high} px, median {middle}; crops of {data.image_size} px"
        )
        findings.append(Finding("info", "images", what))
    counts = {n: dict(zip(p.classes, p.counts().tolist(), strict=True)) for n, p in parts.items()}
    facts = [f"data={data.name}: {train.form}, in {data.root}"]
    for split, part in parts.items():
        facts.append(
            f"  {split:<8}{pluralize(len(part), 'image')} of {pluralize(len(part.classes), 'class')}"
        )
    return DoctorReport(facts, findings, {"images": counts})


def _balance(split: str, part: Samples) -> Iterator[Finding]:
    counts = part.counts()
    if few := tuple(
        f"{name} ({n})" for name, n in zip(part.classes, counts.tolist(), strict=True) if n < FEWEST
    ):
        yield Finding(
            "warning",
            split,
            f"classes with fewer than {FEWEST} images",
            "add images",
            len(few),
            few,
        )
    if split == "train" and counts.max() > MOST_IMBALANCE * counts.min():
        most, least = (part.classes[int(i)] for i in (counts.argmax(), counts.argmin()))
        what = f"{most} has {counts.max()} images, {least} {counts.min()}"
        remedy = "data.balanced=true evens them out; trainer.monitor=val/balanced_accuracy counts each class alike"
        yield Finding("warning", split, what, remedy)


def _of_other_labels(
    checked: Mapping[str, Sequence[ImageCheck]], parts: Mapping[str, Samples]
) -> Iterator[Finding]:
    """Files of equal content that have different labels."""
    groups: dict[str, dict[int, str]] = defaultdict(
        dict
    )  # content -> label -> the first file with it
    for split, part in parts.items():
        for check, label in zip(checked[split], part.labels.tolist(), strict=True):
            if check.digest:
                groups[check.digest].setdefault(label, f"{split}/{check.name}")
    if unclear := tuple(" = ".join(names.values()) for names in groups.values() if len(names) > 1):
        what = "images with different labels"
        yield Finding("error", "labels", what, "keep the right one", len(unclear), unclear)
