"""A trained detector: images in, boxes out, prepared as in the validation of its training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import box_convert
from typing_extensions import Self, TypedDict

from retina_dist.base.arguments import Numbers, Results, check_types, public
from retina_dist.base.errors import ConfigError, set_status
from retina_dist.base.settings import limits_of, validate
from retina_dist.config.run_config import ModelSettings
from retina_dist.data.buckets import resized_size
from retina_dist.data.images import AnyImage, pixels_of
from retina_dist.data.module import skipping
from retina_dist.detection.batch import Batch, Detections, Sample, collate, scaled, with_area
from retina_dist.detection.coco_metrics import CocoEvaluator, CocoResult, Part, detections_to_rows
from retina_dist.detection.data.dataset import CocoDataModule, DetectionDataset
from retina_dist.detection.data.transforms import Transform
from retina_dist.detection.model.build import SHAPE_DIVISOR, DetectionModel, build_model
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.detection.model.weights import load_weights
from retina_dist.detection.readers.annotations import Annotations
from retina_dist.detection.readers.categories import Categories, check_names
from retina_dist.detection.settings import DetectionData, DetectorSettings, ModelConfig
from retina_dist.detection.splits import read_split
from retina_dist.detection.tiles import merge, windows_of
from retina_dist.model.weights import published
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task.predictor import LIMITS, Predictor
from retina_dist.task.settings import DetectionLimits

WINDOWS_AT_ONCE = 8  # in a forward pass
MAX_SIZE = limits_of(DetectionData, "max_size").at_most or 0  # px


class Detection(TypedDict):
    """One object.

    `bbox` is x, y, width, height in pixels of the image as it is displayed, EXIF orientation
    applied.
    """

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
    """A RetinaNet with its categories, or a name for each label.

    Images are resized to `min_size` px on the shorter side, or less where the longer one would
    pass `max_size` px.

    Examples:
        >>> detector = Detector.from_checkpoint("runs/shapes/checkpoints/best.pt")  # doctest: +SKIP
        >>> detector.predict("image.jpg")[0]["boxes"]  # doctest: +SKIP
    """

    model: DetectionModel
    kind = "detector"
    task = "detection"
    data_module = CocoDataModule
    evaluator_class = CocoEvaluator
    Answer = ImageResult

    def __init__(
        self,
        model: DetectionModel,
        categories: Categories | Sequence[str] = (),
        *,
        min_size: int = 800,
        max_size: int = 1333,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
    ) -> None:
        if not isinstance(model, DetectionModel):
            raise ConfigError(
                f"model is of type {type(model).__module__}.{type(model).__name__}; give "
                "rd.build_retinanet(num_classes=…), which loads the state_dict of torchvision's "
                "RetinaNet, or use Detector.from_checkpoint(PATH)."
            )
        if not isinstance(categories, Categories):
            check_names(categories)
            categories = Categories(tuple(range(len(categories))), tuple(categories))
        if categories.num_classes != model.num_classes:
            raise ConfigError(
                f"{categories.num_classes} categories do not fit "
                f"a model of {model.num_classes} classes; give a name for each class."
            )
        if not (type(min_size) is type(max_size) is int and 1 <= min_size <= max_size <= MAX_SIZE):
            limits = f"1 <= min_size <= max_size <= {MAX_SIZE} px"
            raise ConfigError(f"{min_size=} {max_size=} is invalid; give {limits}.")
        super().__init__(model, device, precision)
        self.categories = categories
        self.min_size = min_size
        self.max_size = max_size

    @classmethod
    def from_torchvision(cls, name: str, **how: Any) -> Self:
        """torchvision's own detector with its COCO weights, at 800 to 1333 px.

        It has 91 labels, which are the category ids.
        """
        names = list(published(name).meta["categories"])
        variant, norm = ("v2", "bn") if "_V2_" in name else ("v1", "frozen_bn")
        model = build_retinanet(num_classes=len(names), variant=variant, norm=norm)
        load_weights(model, name)

        ids = list(range(len(names)))
        for label, text in enumerate(names):
            if label == 0 or text == "N/A":
                ids[label] = -1
                names[label] = ""
        return cls(model, Categories(tuple(ids), tuple(names)), **how)

    @classmethod
    def _read(
        cls, content: Mapping[str, Any], model: ModelSettings | None
    ) -> tuple[DetectionModel, dict[str, object]]:
        categories = Categories.from_state(content["categories"])
        if model is None or type(model) is ModelConfig:
            model = ModelConfig(**content["model_arguments"])
            validate(model, "model.")
        assert isinstance(model, DetectorSettings)
        network = build_model(model, categories.num_classes, pretrained=False)
        return network, {"categories": categories, **content["input"]}

    @public
    def predict(self, images: AnyImage | Iterable[AnyImage]) -> list[Detections]:
        """Detections of each image, boxes in pixels of the image.

        All that score above the model's `score_threshold` are given; `set_limits` changes it. No
        result depends on another image.

        Args:
            images: one or several images: a file, turned as its EXIF orientation says, a PIL
                image, an array [h, w, 3] or a tensor [3, h, w], RGB in uint8 or floats from 0 to 1.
                A single image gives a list of one.

        Raises:
            DataError: an image cannot be read.
        """
        return Results(Numbers(found) for found in self.run_each(images))  # type: ignore[misc]

    __call__ = predict

    @public
    def set_limits(
        self,
        score_threshold: float | None = None,
        nms_threshold: float | None = None,
        detections_per_image: int | None = None,
    ) -> Self:
        """Replace limits of the checkpoint, and return this detector; None keeps one.

        Args:
            score_threshold: objects score more, from 0 to below 1.
            nms_threshold: the IoU up to which objects of a class overlap, from 0 to 1.
            detections_per_image: how many objects are given at most.

        Raises:
            ConfigError: an impossible value, or a model of your own without this limit.
        """
        limits = DetectionLimits(score_threshold, nms_threshold, detections_per_image)
        check_types(limits, DetectionLimits)
        validate(limits)
        for name, value in vars(limits).items():
            if value is None:
                continue
            if LIMITS[name] not in vars(self.model):
                raise ConfigError(
                    f"{name}={value} has no effect on {type(self.model).__name__}, which does not "
                    f"set {LIMITS[name]}; leave it out."
                )
            if name == "score_threshold":  # of scores as they are given, with the temperature
                given = torch.tensor(value, dtype=torch.float64)
                value = scaled(given, 1 / self.temperature).item()
            setattr(self.model, LIMITS[name], value)
        return self

    @public
    def tiled(self, tile: int, overlap: float = 0.2) -> Detector:
        """This detector in windows of `tile` px, for small objects in large images.

        See `TiledDetector`. Raises ConfigError.
        """
        return TiledDetector(self, tile, overlap)

    def val_of(self, data: object) -> Annotations:
        if not isinstance(data, DetectionData):
            raise ConfigError(
                f"data is of type {type(data).__name__}; give DetectionData(root=FOLDER), or "
                "a TorchDatasetConfig of your own Datasets: its train, val and categories."
            )
        validate(data, "data.")
        annotations = read_split(data, "val", self.categories)
        if annotations is None:
            remedy = "give root=FOLDER or annotations=FILE"
            if read_split(data, "test", self.categories, check=False):
                remedy = "take its test set with split=test"
            raise ConfigError(f"data={data.name} has no validation set; {remedy}.")
        return annotations

    def evaluator_of(
        self, val: Annotations, data: DetectionData, strategy: DistributedStrategy
    ) -> CocoEvaluator:
        data = data.with_values(
            min_sizes=[self.min_size], val_min_size=None, max_size=self.max_size
        )
        return super().evaluator_of(val, data, strategy)

    def prepare(self, image: AnyImage) -> Batch:
        """The image, resized as for the validation, in the smallest padded shape that holds it.

        On the CPU, in any thread.
        """
        pixels = pixels_of(image)
        height, width = pixels.shape[-2:]
        resized = resized_size(height, width, self.min_size, self.max_size)
        padded = (
            resized[0] + -resized[0] % SHAPE_DIVISOR,
            resized[1] + -resized[1] % SHAPE_DIVISOR,
        )
        ready = Transform(max_size=self.max_size)(
            pixels, torch.zeros(0, 4), torch.zeros(0), min_size=self.min_size, canvas=padded
        )
        return collate([Sample(*ready, 0, (height, width))], padded)

    def run(self, prepared: Sequence[Batch]) -> list[Detections]:
        """Detections of what `prepare` made, in one pass for each padded shape.

        The last digits may differ from those of `predict`. The temperature scales the scores last:
        it changes neither which detections there are nor their order.
        """
        outputs = self.unscaled(prepared)
        for found in outputs:
            found["scores"] = scaled(found["scores"], self.temperature)
        return outputs

    def unscaled(self, prepared: Sequence[Batch]) -> list[Detections]:
        """`run` without the temperature."""
        places_of: dict[torch.Size, list[int]] = {}
        for i, batch in enumerate(prepared):
            places_of.setdefault(batch.images.shape, []).append(i)
        detections: dict[int, Detections] = {}
        for places in places_of.values():
            together = concatenate([prepared[i] for i in places])
            detections.update(zip(places, self._detect(together), strict=True))
        return [detections[i] for i in range(len(prepared))]

    def to_dict(self, output: Detections, score_threshold: float = 0.0) -> dict[str, Any]:
        """Objects of a category, best first, with boxes as x, y, width, height.

        None scores below `score_threshold`.
        """
        boxes = box_convert(output["boxes"].to(torch.float64), "xyxy", "xywh").tolist()
        found = []
        scored = zip(boxes, output["scores"].tolist(), output["labels"].tolist(), strict=True)
        for box, score, label in scored:
            category_id = self.categories.ids[label]
            if score >= score_threshold and category_id >= 0:
                found.append(
                    {
                        "category_id": category_id,
                        "category_name": self.categories.names[label],
                        "bbox": box,
                        "score": score,
                    }
                )
        return {"detections": found}

    @property
    def class_names(self) -> list[str]:
        return [category["name"] for category in self.metadata()["categories"].values()]

    def metadata(self) -> dict[str, Any]:
        categories = {}
        for label, category_id in enumerate(self.categories.ids):
            if category_id >= 0:
                categories[str(label)] = {"id": category_id, "name": self.categories.names[label]}
        limits = {}
        if self.model.detections_per_img:
            limits = {name: getattr(self.model, LIMITS[name]) for name in LIMITS}
            lowest = torch.tensor(limits["score_threshold"], dtype=torch.float64)
            limits["score_threshold"] = scaled(lowest, self.temperature).item()
        return {
            "categories": categories,
            "input": "uint8 RGB [1, 3, height, width], resized as min_size and max_size say",
            # px, the shorter side, or less where the longer would pass max_size
            "min_size": self.min_size,
            "max_size": self.max_size,
            **limits,
            "temperature": self.temperature,
        }

    @torch.inference_mode()
    def _detect(self, batch: Batch) -> list[Detections]:
        with self.autocast():
            detections = self.model(batch.to(self.device))
        return list(map(with_area, detections))


@dataclass(frozen=True)
class TiledBatch(Batch):
    """The whole image as a batch of one, and its windows as batches.

    `windows` [n, 4] xyxy are in pixels of the image.
    """

    windows: Tensor | None = None
    parts: Sequence[Batch] = ()


class TiledDetector(Detector):
    """A detector that looks at windows of an image, and at the whole image.

    An image no larger than a window gives `detector`'s own result.

    Args:
        detector: the detector of each window.
        tile: the side of a window, px.
        overlap: the share of it that neighbours have in common.

    Raises:
        ConfigError: an impossible tile or overlap.
    """

    def __init__(self, detector: Detector, tile: int, overlap: float) -> None:
        if not isinstance(tile, int) or tile < 32 or not 0 <= overlap < 0.9:
            raise ConfigError(
                f"tile={tile} tile_overlap={overlap} is invalid; "
                "give at least 32 px, and 0 to below 0.9."
            )
        vars(self).update(vars(detector))
        self.whole = detector
        self.tile = tile
        self.overlap = overlap

    def prepare(self, image: AnyImage) -> Batch:
        pixels = pixels_of(image)
        whole = super().prepare(pixels)
        windows = windows_of(pixels.shape[-2], pixels.shape[-1], self.tile, self.overlap)
        if len(windows) == 1:
            return whole

        batches = []
        for x1, y1, x2, y2 in windows:
            batches.append(super().prepare(pixels[:, y1:y2, x1:x2]))
        parts = []
        for i in range(0, len(batches), WINDOWS_AT_ONCE):
            parts.append(concatenate(batches[i : i + WINDOWS_AT_ONCE]))
        return TiledBatch(**vars(whole), windows=torch.tensor(windows), parts=parts)

    def unscaled(self, prepared: Sequence[Batch]) -> list[Detections]:
        outputs = super().unscaled(prepared)
        for i, batch in enumerate(prepared):
            if isinstance(batch, TiledBatch) and batch.windows is not None:
                outputs[i] = merge(
                    outputs[i],
                    list(chain.from_iterable(map(self._detect, batch.parts))),
                    batch.windows,
                    self.model.nms_thresh,
                    self.model.detections_per_img,
                )
        return outputs

    def evaluator_of(
        self, val: Annotations, data: DetectionData, strategy: DistributedStrategy
    ) -> TiledEvaluator:
        return TiledEvaluator(self, val, data, strategy)


class TiledEvaluator(CocoEvaluator):
    """COCO metrics of a `TiledDetector` over `val`, which is read as `data` says;
    without losses.
    """

    def __init__(
        self,
        detector: TiledDetector,
        val: Annotations,
        data: DetectionData,
        strategy: DistributedStrategy,
    ) -> None:
        super().__init__(val, tuple, strategy)
        self.dataset = DetectionDataset(
            val,
            Transform(max_size=detector.max_size),
            bad_images=data.bad_images,
            max_pixels=data.max_pixels,
        )
        self.detector = detector

    def parts(self, model: object) -> Iterator[Part]:
        for index in range(self.strategy.rank, len(self.dataset), self.strategy.world_size):
            set_status(f"validation, {index} images")
            with skipping(self.dataset.bad_images):
                pixels = self.dataset.read(index, self.dataset.fetch([index]))
                image_ids = [int(self.dataset.image_ids[index])]
                detections = self.detector.predict(pixels)
                rows = detections_to_rows(detections, image_ids, self.val.categories)
                yield Part(image_ids, rows, losses={}, num_images=1)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Batches of one padded shape, none with boxes, as one."""
    tensors: dict[str, Any] = {}
    for column in fields(Batch):  # not what a subclass has beside them
        values = [vars(batch)[column.name] for batch in batches]
        if isinstance(values[0], Tensor):
            tensors[column.name] = torch.cat(values)
    return Batch(**tensors)
