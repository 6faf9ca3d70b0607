"""A trained classifier, ready to use: images in, probabilities out."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from retina_dist.base.arguments import public
from retina_dist.base.errors import ConfigError
from retina_dist.classification.dataset import ClassificationDataModule
from retina_dist.classification.metrics import ClassificationEvaluator, ClassificationResult
from retina_dist.classification.model import Classifier, build_classifier
from retina_dist.classification.samples import Samples, absent, read_samples, root_of
from retina_dist.classification.settings import ClassificationData
from retina_dist.classification.transforms import eval_transform
from retina_dist.config.run_config import ModelSettings
from retina_dist.data.images import AnyImage, pixels_of
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task.predictor import Predictor

MAX_SIDE = 10**4  # px
MAX_CLASSES = 5  # in an answer


class ClassScore(TypedDict):
    """A class and its probability."""

    name: str
    score: float


class ImageResult(TypedDict):
    """The most probable classes of one image, best first."""

    width: int
    height: int
    classes: list[ClassScore]


class TrainedClassifier(Predictor[Tensor, Tensor, ClassificationResult]):
    """A classifier with the names of its classes and its input size.

    Examples:
        >>> run = "runs/drawn_classes/checkpoints/best.pt"
        >>> classifier = TrainedClassifier.from_checkpoint(run)  # doctest: +SKIP
        >>> classifier.predict(["image.jpg"])  # doctest: +SKIP
    """

    kind = "classifier"
    task = "classification"
    data_module = ClassificationDataModule
    evaluator_class = ClassificationEvaluator
    Answer = ImageResult

    def __init__(
        self,
        model: Classifier,
        classes: Sequence[str],
        *,
        image_size: int,
        short_side: int,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__(model, device, precision)
        self.arguments = arguments  # of `build_classifier`
        self.classes = tuple(classes)
        self.image_size = image_size
        self.short_side = short_side

    @classmethod
    def _read(
        cls, content: Mapping[str, Any], model: ModelSettings | None
    ) -> tuple[Classifier, dict[str, object]]:
        classes = list(map(str, content["classes"]))
        side = content["input"]["image_size"]
        short = content["input"]["short_side"]
        if not (type(side) is type(short) is int and 1 <= side <= short <= MAX_SIDE):
            raise ValueError(f"its input is of {side!r} of {short!r} px")
        arguments = {**content["model_arguments"], "num_classes": len(classes), "image_size": side}
        return build_classifier(**arguments), {
            "classes": classes,
            "image_size": side,
            "short_side": short,
            "arguments": arguments,
        }

    @public
    def predict(self, images: AnyImage | Iterable[AnyImage]) -> Tensor:
        """[N, K] float32 probabilities; a single image gives one row.

        For the forms of an image see `Detector.predict`.
        """
        return torch.stack([torch.zeros(len(self.classes)), *self.run_each(images)])[1:]

    __call__ = predict

    def val_of(self, data: object) -> Samples:
        if not isinstance(data, ClassificationData):
            given = type(data).__name__
            raise ConfigError(f"data is of type {given}; give ClassificationData(root=…).")
        root = root_of(data.root, data.name)
        read = partial(read_samples, root, classes=self.classes, bad_images=data.bad_images)
        val = read(data.val_split)
        if val is None and data.val_fraction:
            train = read("train")
            assert train is not None, "a missing train split is an error"
            val = train.split(data.val_fraction)[1]
        if val is None:
            raise ConfigError(absent("root", root, data.val_split))
        return val

    def evaluator_of(
        self, val: Samples, data: ClassificationData, strategy: DistributedStrategy
    ) -> ClassificationEvaluator:
        evaluator: ClassificationEvaluator = super().evaluator_of(val, data, strategy)
        evaluator.keep_logits = True
        return evaluator

    def prepare(self, image: AnyImage) -> Tensor:
        """The network's input of an image, [1, 3, S, S] uint8."""
        return eval_transform(pixels_of(image), self.image_size, self.short_side)[None]

    def run(self, prepared: Sequence[Tensor]) -> list[Tensor]:
        """[K] probabilities for each input.

        The network gets one image at a time, so that none depends on another.
        """
        return [self.probabilities(image)[0] for image in prepared]

    def to_dict(self, output: Tensor) -> dict[str, Any]:
        """The most probable classes, best first."""
        best = output.topk(min(MAX_CLASSES, len(self.classes)))
        found = []
        for label, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            found.append({"name": self.classes[label], "score": score})
        return {"classes": found}

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.classes

    def metadata(self) -> dict[str, Any]:
        return {
            "classes": list(self.classes),
            "input": "uint8 RGB [1, 3, image_size, image_size]: "
            "shorter side resized to short_side, then the centre",
            "image_size": self.image_size,
            "short_side": self.short_side,
            "temperature": self.temperature,
        }

    @torch.inference_mode()
    def probabilities(self, images: Tensor) -> Tensor:
        """[B, 3, S, S] uint8 -> [B, K] float32 on the CPU."""
        with self.autocast():
            logits = self.model.logits(images.to(self.device))
        return (logits.float() / self.temperature).softmax(1).cpu()
