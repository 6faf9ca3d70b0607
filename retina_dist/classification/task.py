"""The task `classification`, from the settings of a run.

It has labelled images, one of torchvision's classifiers and its metrics.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from retina_dist.base.errors import ConfigError, DataError
from retina_dist.base.text import truncate
from retina_dist.classification.dataset import ClassificationDataModule, ImageBatch
from retina_dist.classification.drawn import draw_data, synthetic_samples
from retina_dist.classification.metrics import (
    BINARY,
    METRICS,
    ClassificationEvaluator,
    ClassificationResult,
)
from retina_dist.classification.model import build_classifier, check_sizes, load_weights
from retina_dist.classification.pictures import draw_first_batch
from retina_dist.classification.samples import Samples, absent, opened, read_samples, root_of
from retina_dist.classification.settings import (
    ClassificationData,
    ClassificationRunConfig,
    ClassificationSettings,
    ClassifierConfig,
)
from retina_dist.data.synthetic import noise
from retina_dist.engine.checkpoint.store import located
from retina_dist.model.weights import find_weights
from retina_dist.reporting.pictures import write_details
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task.image_task import ImageTask

logger = logging.getLogger(__name__)


class ClassificationTask(ImageTask):
    """Data, model and evaluator of one run.

    Listing the images happens here, everything else on demand.
    """

    settings: ClassVar[type] = ClassificationSettings
    commands = "retina_dist.classification.commands"
    evaluator_class = ClassificationEvaluator
    data_module = ClassificationDataModule
    class_metric = "accuracy"
    labels = "classes"
    # BINARY of two classes only, which the data decides.
    metric_names: Sequence[str] = (*METRICS, *BINARY)
    default_monitor = "val/top1"
    headline_metrics = ("val/top1", "val/top5", "val/balanced_accuracy")
    locked_settings = frozenset(("data.balanced", "data.image_size", "model.architecture"))

    def __init__(self, config: ClassificationRunConfig, strategy: DistributedStrategy) -> None:
        super().__init__(config, strategy)
        data = config.data
        weights = config.model.weights
        if weights and "://" not in weights and strategy.is_main and not config.resume:
            find_weights(str(located(weights)))  # an error before the data is read

        if data.synthetic:
            self.train = synthetic_samples(data.synthetic, config.seed)
        else:
            self.train, self.val = read_splits(data)
        check_trainable(config.model, data, self.train)
        self.shorten(Samples.subsample)
        self.validates = self.val is not None
        self.check_class_weights()

        self.metric_names = METRICS
        if len(self.class_names) == 2:
            self.metric_names = (*METRICS, *BINARY)
        monitor = config.trainer.monitor
        if monitor in BINARY and monitor not in self.metric_names:
            raise ConfigError(
                f"trainer.monitor={monitor} is of two classes, "
                f"and the data has {len(self.class_names)}; give val/balanced_accuracy."
            )

    @staticmethod
    def prepare(config: ClassificationRunConfig) -> None:
        """Draw the data set of shapes."""
        if not config.data.synthetic:
            draw_data(config.data)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def num_images(self) -> int:
        return len(self.train)

    def class_counts(self) -> np.ndarray:
        return self.train.counts()

    def facts(self) -> Iterator[tuple[str, str]]:
        data = self.config.data
        if not data.synthetic:
            yield "data", f"{self.train.form}, in {data.root}"
        yield "train", self.train.describe()
        yield "val", self.val.describe() if self.val else self.without_validation()
        yield "model", self.config.model.describe()
        if data.synthetic:
            yield "size", f"{data.image_size} px of noise on the device, the same at every step"
        else:
            validation = f"{data.val_size} px of {data.val_short_side}"
            yield "size", f"crops of {data.image_size} px; validation: {validation}"
        yield "classes", f"{len(self.class_names)}: {truncate(self.class_names, 8)}"

    def checkpoint_state(self, checkpoint: Mapping[str, Any]) -> dict[str, object]:
        """The classes that a checkpoint's labels number."""
        return {"classes": list(checkpoint.get("classes", ()))}

    def classes_in(self, state: Mapping[str, Any], source: object) -> list[str]:
        return list(map(str, state["classes"]))

    def synthetic_batch(self, images: Sequence[int], weight: float) -> ImageBatch:
        side = self.config.data.image_size
        pixels = torch.stack([noise(side, side, self.config.seed, i) for i in images])
        labels = torch.from_numpy(self.train.labels[list(images)])
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        share = torch.ones(len(images))
        batch = ImageBatch(pixels, labels, labels, share, torch.tensor(images), weight)
        return batch.to(self.strategy.device)

    def unaugmented(self) -> ClassificationData:
        return self.config.data.with_values(
            crop_scale=[1.0, 1.0],
            hflip=0.0,
            vflip=0.0,
            augment=None,
            erasing=0.0,
            mixup=0.0,
            cutmix=0.0,
        )

    def build_model(
        self, resumed: bool = False, checkpoint: Mapping[str, Any] | None = None
    ) -> nn.Module:
        """The classifier, on the CPU.

        Pretrained weights are loaded on the main rank only, which broadcasts them.
        """
        weights = self.config.model.weights

        def build() -> nn.Module:
            model = build_classifier(**self.model_arguments())
            self.weigh_classes(model)
            if weights and self.strategy.is_main and not resumed:
                logger.info(str(load_weights(model, str(located(weights)), self.class_names)))
            return model

        return self.strategy.run_collectively(build)

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of `build_classifier`."""
        arguments = asdict(self.config.model)
        del arguments["weights"]
        return arguments | {
            "num_classes": len(self.class_names),
            "image_size": self.config.data.val_size,
        }

    def largest_batch(self, size: int, device: torch.device) -> ImageBatch:
        """A batch of the training's largest crops."""
        side = self.config.data.image_size
        images = torch.zeros(size, 3, side, side, dtype=torch.uint8)
        images = images.contiguous(memory_format=torch.channels_last)
        labels, other_labels, image_ids = torch.zeros(3, size, dtype=torch.int64)
        return ImageBatch(images, labels, other_labels, torch.ones(size), image_ids)

    def fingerprint(self) -> str:
        """A digest of the training images' names and classes, which their order depends on."""
        return self.train.digest()

    def metadata(self, model: nn.Module) -> dict[str, object]:
        data = self.config.data
        return super().metadata(model) | {
            "model_arguments": self.model_arguments(),
            "classes": list(self.class_names),
            "input": {"image_size": data.val_size, "short_side": data.val_short_side},
        }

    def file_names(self) -> dict[int, str]:
        return dict(enumerate(self.train.names))

    def draw_inputs(self, data: ClassificationDataModule, folder: Path) -> None:
        """Draw first_batch.jpg: the images of the first step as the model sees them.

        Their classes are above them. Of noise nothing is drawn.
        """
        if not self.config.data.synthetic:
            draw_first_batch(data, self.class_names, folder / "first_batch.jpg")

    def write_results(self, result: ClassificationResult, folder: Path) -> None:
        from retina_dist.classification.analysis import analyse

        analyse(result, self.val.names, folder)
        write_details(folder, partial(self.val.read_image, max_pixels=self.config.data.max_pixels))


def read_splits(data: ClassificationData) -> tuple[Samples, Samples | None]:
    """The training and validation images that data settings name.

    None stands for a validation set that is not there.
    """
    draw_data(data)
    root = root_of(data.root, data.name)
    place = opened(root)
    train = read_samples(place, "train", bad_images=data.bad_images)
    assert train is not None, "a missing train split is an error"
    val = read_samples(place, data.val_split, classes=train.classes, bad_images=data.bad_images)
    if val is None and data.val_fraction:
        return train.split(data.val_fraction)
    if val is None and data.val_split != "val":
        raise DataError(absent("data.root", root, data.val_split))
    return train, val


def check_trainable(model: ClassifierConfig, data: ClassificationData, train: Samples) -> None:
    """Raise ConfigError where settings and data do not go together."""
    if len(train.classes) < 2:
        said = "".join(f" ({warning})" for warning in train.warnings)
        raise ConfigError(
            f"data={data.name} has one class only, {train.classes[0]}; a classifier "
            f"needs two: add images of another, or head the columns of a table file and "
            f"label{said}."
        )
    check_sizes(model.architecture, model.zero_gamma, data.image_size, data.val_size)
