"""A trained detector, ready to use: images in, boxes out.

Pre-processing is that of the validation during training, from what the checkpoint says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from retina_dist.data.images import read_image
from retina_dist.data.sizes import resized_size
from retina_dist.detection.batch import Batch, Detections
from retina_dist.detection.data.collate import Sample, collate
from retina_dist.detection.data.transforms import EvalTransform
from retina_dist.detection.model.retinanet import RetinaNet, build_retinanet
from retina_dist.detection.model.weights import load_weights, torchvision_categories
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.settings import DetectionData, ModelConfig
from retina_dist.engine.checkpoint_store import load_checkpoint
from retina_dist.engine.precision import Precision, autocast
from retina_dist.errors import CheckpointError
from retina_dist.model.weight_sources import is_torchvision_name
from retina_dist.settings import limits_of, validate
from retina_dist.strategies.settings import StrategyConfig, StrategySettings
from retina_dist.torch_files import remedy_of

if TYPE_CHECKING:
    from retina_dist.detection.coco_metrics import Backend, CocoResult

CANVAS_DIVISOR = 32
MAX_SIZE = limits_of(DetectionData, "max_size").at_most or 0  # px


class Detector:
    """A RetinaNet with its categories and its input size.

    >>> detector = Detector.from_checkpoint("runs/shapes/checkpoints/best.pt")       # doctest: +SKIP
    >>> detector.predict(["image.jpg"])[0]["boxes"]                                # doctest: +SKIP
    """

    def __init__(
        self,
        model: RetinaNet,
        categories: Categories,
        *,
        min_size: int,
        max_size: int,
        device: torch.device,
        precision: Precision = "fp32",
    ) -> None:
        self.model = model.to(device).eval()
        self.categories = categories
        self.min_size, self.max_size = min_size, max_size
        self.device = device
        self.precision = precision
        self.autocast = autocast(device, precision)

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, device: str = "cpu", precision: Precision = "fp32") -> Detector:
        """The detector that a run saved, with averaged weights if it kept any. Raises CheckpointError.

        `path` may be a URL. A name such as `RetinaNet_ResNet50_FPN_Weights.COCO_V1` instead takes torchvision's published weights.
        """
        if is_torchvision_name(str(path)):
            return cls.from_torchvision(str(path), device=device, precision=precision)
        return cls.from_content(load_checkpoint(path), str(path), device=device, precision=precision)

    @classmethod
    def from_torchvision(cls, name: str, *, device: str = "cpu", precision: Precision = "fp32") -> Detector:
        """torchvision's own detector with its COCO weights: 91 labels, which are the category ids; 800 to 1333 px."""
        names = torchvision_categories(name)
        variant: Literal["v1", "v2"] = "v2" if "_V2_" in name else "v1"
        norm: Literal["frozen_bn", "bn"] = "bn" if variant == "v2" else "frozen_bn"
        model = build_retinanet(num_classes=len(names), variant=variant, norm=norm)
        load_weights(model, name)
        known = [label > 0 and text != "N/A" for label, text in enumerate(names)]
        ids = tuple(label if k else -1 for label, k in enumerate(known))
        categories = Categories(ids, tuple(text if k else "" for text, k in zip(names, known, strict=True)))
        return cls(model, categories, min_size=800, max_size=1333, device=torch.device(device), precision=precision)

    @classmethod
    def from_content(
        cls, content: dict[str, Any], source: str, *, device: str = "cpu", precision: Precision = "fp32"
    ) -> Detector:
        """The detector of a checkpoint already read; `source` is its name in errors."""
        try:
            validate(ModelConfig(**content["model_arguments"]), "model.")
            model = build_retinanet(**content["model_arguments"])
            weights = content["ema"]["model"] if content["ema"] else content["model"]
            model.load_state_dict(weights)
            categories = Categories.from_state(content["categories"])
            min_size, max_size = content["input"]["min_size"], content["input"]["max_size"]
            if not (type(min_size) is type(max_size) is int and 1 <= min_size <= max_size <= MAX_SIZE):
                raise ValueError(f"its input is of {min_size!r} to {max_size!r} px")
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{source} does not describe a detector ({reason}); {remedy_of(content)}.") from error
        return cls(
            model, categories, min_size=min_size, max_size=max_size, device=torch.device(device), precision=precision
        )

    def predict(self, images: Sequence[str | Path | Tensor]) -> list[Detections]:
        """Detections of each image (a file, or uint8 [3, h, w] RGB), boxes in pixels of the image as it is displayed.

        Images are taken one by one, each on its own canvas, so that no image's result depends on another.
        Raises ImageError for a file that cannot be read.
        """
        return [self.detect([self.prepare(image)])[0] for image in images]

    def evaluate(
        self, data: DetectionData, *, strategy: StrategySettings | None = None, backend: Backend = "auto"
    ) -> CocoResult:
        """COCO metrics over the validation set of `data`, of which each process takes its share; every rank calls it.

        `strategy` is by default that of the launcher, on the detector's device; `backend` is the implementation of the metrics.
        Raises ConfigError where `data` has no validation set, and DataError where its categories are not the detector's.
        """
        from retina_dist.detection.evaluation import evaluate_on

        return evaluate_on(self, data, strategy or StrategyConfig(device=str(self.device)), backend)

    def prepare(self, image: str | Path | Tensor) -> Batch:
        """The image on its canvas, as the validation had it; on the CPU, in any thread."""
        pixels = image if isinstance(image, Tensor) else read_image(Path(image))
        height, width = pixels.shape[-2:]
        resized = resized_size(height, width, self.min_size, self.max_size)
        canvas = (_round_up(resized[0]), _round_up(resized[1]))
        image, boxes, labels = EvalTransform(max_size=self.max_size)(
            pixels, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), min_size=self.min_size, canvas=canvas, key=()
        )
        return collate([Sample(image, boxes, labels, 0, (height, width))], canvas)

    def detect(self, prepared: Sequence[Batch]) -> list[Detections]:
        """Detections of what `prepare` made, those of one canvas in one pass.

        Of images that share a pass the last digits may differ from those of `predict`, since kernels depend on the batch.
        """
        together: dict[tuple[int, ...], list[int]] = {}
        for i, batch in enumerate(prepared):
            together.setdefault(tuple(batch.images.shape), []).append(i)
        found: dict[int, Detections] = {}
        for places in together.values():
            found |= zip(places, self._detect(_joined([prepared[i] for i in places])), strict=True)
        return [found[i] for i in range(len(prepared))]

    @torch.inference_mode()
    def _detect(self, batch: Batch) -> list[Detections]:
        with self.autocast():
            detections = self.model(batch.to(self.device))
        return [
            Detections(boxes=found["boxes"].cpu(), scores=found["scores"].cpu(), labels=found["labels"].cpu())
            for found in detections
        ]


def _joined(batches: Sequence[Batch]) -> Batch:
    """Batches on one canvas, none with boxes, as one."""
    columns = {f.name: [getattr(batch, f.name) for batch in batches] for f in fields(Batch)}
    tensors: dict[str, Any] = {n: torch.cat(values) for n, values in columns.items() if isinstance(values[0], Tensor)}
    return Batch(**tensors)


def _round_up(length: int) -> int:
    return -(-length // CANVAS_DIVISOR) * CANVAS_DIVISOR
