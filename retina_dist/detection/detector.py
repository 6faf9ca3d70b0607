"""A trained detector, ready to use: images in, boxes out, pre-processed as in the validation of its training."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self, TypedDict

from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import class_of, is_custom
from retina_dist.base.settings import limits_of, validate
from retina_dist.config.run_config import ModelSettings
from retina_dist.data.buckets import resized_size
from retina_dist.data.images import AnyImage, pixels_of
from retina_dist.detection.batch import Batch, Detections, Sample, collate
from retina_dist.detection.coco_metrics import CocoEvaluator, CocoResult
from retina_dist.detection.data.dataset import CocoDataModule
from retina_dist.detection.data.transforms import EvalTransform
from retina_dist.detection.model.retinanet import RetinaNet, build_retinanet
from retina_dist.detection.model.weights import load_weights
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.categories import Categories, check_names
from retina_dist.detection.settings import DetectionData, ModelConfig
from retina_dist.detection.splits import describe_split, read_split
from retina_dist.engine.precision import autocast
from retina_dist.model.weights import published
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task.predictor import Predictor

logger = logging.getLogger(__name__)

CANVAS_DIVISOR = 32  # the ResNet's stride: canvases are multiples of it
MAX_SIZE = limits_of(DetectionData, "max_size").at_most or 0  # px


class Detection(TypedDict):
    """One object; `bbox` is x, y, width, height in pixels of the image as it is displayed (EXIF orientation applied)."""

    category_id: int
    category_name: str
    bbox: tuple[float, float, float, float]
    score: float


class ImageResult(TypedDict):
    """The objects in one image, best first."""

    width: int
    height: int
    detections: list[Detection]


class Detector(Predictor[Batch, Detections, CocoResult]):
    """A RetinaNet with its categories, or a name for each label. Images are resized to `min_size` px on the shorter side.

    Examples:
        >>> detector = Detector.from_checkpoint("runs/shapes/checkpoints/best.pt")  # doctest: +SKIP
        >>> detector.predict("image.jpg")[0]["boxes"]  # doctest: +SKIP
    """

    kind, task, Answer = "detector", "detection", ImageResult

    def __init__(
        self,
        model: nn.Module,
        categories: Categories | Sequence[str],
        *,
        min_size: int = 800,
        max_size: int = 1333,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
    ) -> None:
        if not hasattr(model, "evaluate"):
            raise ConfigError(
                f"model is of type {type(model).__name__}; give rd.build_retinanet(...)."
            )
        if not isinstance(categories, Categories):
            check_names(categories)
            categories = Categories(tuple(range(len(categories))), tuple(categories))
        num_classes = categories.num_classes
        if isinstance(model, RetinaNet):
            num_classes = model.head.classification_head.num_classes
        if categories.num_classes != num_classes:
            raise ConfigError(
                f"{categories.num_classes} categories do not fit a model of {num_classes} classes."
            )
        if not (type(min_size) is type(max_size) is int and 1 <= min_size <= max_size <= MAX_SIZE):
            raise ConfigError(
                f"{min_size=} {max_size=} is invalid; give 1 <= min_size <= max_size <= {MAX_SIZE} px."
            )
        super().__init__(model, device, precision)
        self.categories = categories
        self.min_size, self.max_size = min_size, max_size

    @classmethod
    def from_torchvision(cls, name: str, **how: Any) -> Self:
        """torchvision's own detector with its COCO weights: 91 labels, which are the category ids; 800 to 1333 px."""
        names = list(published(name).meta["categories"])
        variant, norm = ("v2", "bn") if "_V2_" in name else ("v1", "frozen_bn")
        model = build_retinanet(num_classes=len(names), variant=variant, norm=norm)
        load_weights(model, name)
        known = [label > 0 and text != "N/A" for label, text in enumerate(names)]
        ids = tuple(label if k else -1 for label, k in enumerate(known))
        categories = Categories(
            ids, tuple(text if k else "" for text, k in zip(names, known, strict=True))
        )
        return cls(model, categories, min_size=800, max_size=1333, **how)

    @classmethod
    def _read(
        cls, content: Mapping[str, Any], model: ModelSettings | None
    ) -> tuple[nn.Module, dict[str, Any]]:
        categories = Categories.from_state(content["categories"])
        sizes = {key: content["input"][key] for key in ("min_size", "max_size")}
        if model is not None and is_custom(model):
            network = class_of(model)(model, categories.num_classes)
            return network, {"categories": categories, **sizes}
        arguments = content["model_arguments"]
        validate(ModelConfig(**arguments), "model.")
        return build_retinanet(**arguments), {"categories": categories, **sizes}

    def predict(self, images: AnyImage | Iterable[AnyImage]) -> list[Detections]:
        """Detections of each image, boxes in pixels of the image; a single image gives a list of one.

        An image is a file, turned as its EXIF orientation says, a PIL image, an array [h, w, 3] or a tensor [3, h, w], RGB in
        uint8 or floats from 0 to 1. No image's result depends on another. Raises DataError.
        """
        return self.run_each(images)

    def tiled(self, tile: int, overlap: float = 0.2) -> Detector:
        """This detector in windows of `tile` px, for small objects in large images; see `TiledDetector`. Raises ConfigError."""
        from retina_dist.detection.tiles import TiledDetector

        return TiledDetector(self, tile, overlap)

    def val_of(self, data: Any) -> Annotations:
        if not isinstance(data, DetectionData):
            raise ConfigError(
                f"data is of type {type(data).__name__}; give DetectionData(root=FOLDER)."
            )
        validate(data, "data.")
        annotations = read_split(data, "val", self.categories)
        if annotations is None:
            raise ConfigError(
                f"data={data.name} has no validation set; give root=FOLDER or val_annotations=FILE."
            )
        return annotations

    def evaluator_of(
        self, val: Annotations, data: DetectionData, strategy: DistributedStrategy
    ) -> CocoEvaluator:
        if val.held_out:
            logger.info(f"evaluating on {describe_split(val)}")
        sized = data.with_values(
            min_sizes=[self.min_size], val_min_size=None, max_size=self.max_size
        )
        job: dict[str, Any] = {
            name: getattr(strategy, name) for name in ("rank", "world_size", "device")
        }
        module = CocoDataModule(sized, train=None, val=val, **job)
        return CocoEvaluator(
            val, module.val_batches, strategy, autocast(strategy.device, self.precision)
        )

    def prepare(self, image: AnyImage) -> Batch:
        """The image, resized as for the validation, on the smallest canvas that holds it; on the CPU, in any thread."""
        pixels = pixels_of(image)
        height, width = pixels.shape[-2:]
        resized = resized_size(height, width, self.min_size, self.max_size)
        canvas = (_round_up(resized[0]), _round_up(resized[1]))
        boxes, labels = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
        sample = EvalTransform(max_size=self.max_size)(
            pixels, boxes, labels, min_size=self.min_size, canvas=canvas
        )
        return collate([Sample(*sample, 0, (height, width))], canvas)

    def run(self, prepared: Sequence[Batch]) -> list[Detections]:
        """Detections of what `prepare` made, one pass for a canvas; so the last digits may differ from `predict`'s."""
        together: dict[tuple[int, ...], list[int]] = {}
        for i, batch in enumerate(prepared):
            together.setdefault(tuple(batch.images.shape), []).append(i)
        detections: dict[int, Detections] = {}
        for places in together.values():
            detections |= zip(
                places, self._detect(joined([prepared[i] for i in places])), strict=True
            )
        return [detections[i] for i in range(len(prepared))]

    def to_dict(self, output: Detections, score_threshold: float) -> dict[str, Any]:
        """Objects of a category, best first, with boxes as x, y, width, height."""
        boxes = output["boxes"].to(torch.float64)
        boxes[:, 2:] -= boxes[:, :2]
        rows = zip(
            boxes.tolist(), output["scores"].tolist(), output["labels"].tolist(), strict=True
        )
        ids, names = self.categories.ids, self.categories.names
        return {
            "detections": [
                {
                    "category_id": ids[label],
                    "category_name": names[label],
                    "bbox": box,
                    "score": score,
                }
                for box, score, label in rows
                if score >= score_threshold and ids[label] >= 0
            ]
        }

    @property
    def class_names(self) -> list[str]:
        return [
            name
            for i, name in zip(self.categories.ids, self.categories.names, strict=True)
            if i >= 0
        ]

    def metadata(self) -> dict[str, Any]:
        labelled = enumerate(zip(self.categories.ids, self.categories.names, strict=True))
        metadata = {
            "categories": {
                str(label): {"id": i, "name": name} for label, (i, name) in labelled if i >= 0
            },
            "input": "uint8 RGB [1, 3, height, width], resized as min_size and max_size say",
            "min_size": self.min_size,  # px, the shorter side, or less where the longer would pass max_size
            "max_size": self.max_size,
        }
        if isinstance(self.model, RetinaNet):
            metadata["score_threshold"] = self.model.score_thresh
            metadata["nms_threshold"] = self.model.nms_thresh
            metadata["detections_per_image"] = self.model.detections_per_img
        return metadata

    @torch.inference_mode()
    def _detect(self, batch: Batch) -> list[Detections]:
        with self.autocast():
            detections = self.model(batch.to(self.device))
        return [
            Detections(
                boxes=each["boxes"].cpu(), scores=each["scores"].cpu(), labels=each["labels"].cpu()
            )
            for each in detections
        ]


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches on one canvas, none with boxes, as one."""
    columns = {f.name: [getattr(batch, f.name) for batch in batches] for f in fields(Batch)}
    tensors: dict[str, Any] = {
        n: torch.cat(values) for n, values in columns.items() if isinstance(values[0], Tensor)
    }
    return Batch(**tensors)


def _round_up(length: int) -> int:
    return -(-length // CANVAS_DIVISOR) * CANVAS_DIVISOR
