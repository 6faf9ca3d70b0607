"""The task `classification`: labelled images, one of torchvision's classifiers and its metrics, from the settings of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from retina_dist.classification.dataset import ClassificationDataModule, ImageBatch, draw_first_batch
from retina_dist.classification.drawn import draw_classes, synthetic_batch, synthetic_samples
from retina_dist.classification.metrics import BINARY, METRICS, ClassificationEvaluator, metric_names
from retina_dist.classification.model import build_classifier, check_sizes, load_weights
from retina_dist.classification.samples import Samples, read_samples, root_of
from retina_dist.classification.settings import ClassificationData, ClassificationSettings, ClassifierConfig
from retina_dist.data.images import read_image
from retina_dist.data.synthetic import SyntheticData
from retina_dist.engine.checkpoint.store import located
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.precision import autocast
from retina_dist.errors import CheckpointError, ConfigError
from retina_dist.files import Url, write_json
from retina_dist.model.weights import find_weights
from retina_dist.reporting.pictures import write_details
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task import Task
from retina_dist.text import truncate

logger = logging.getLogger(__name__)

MAX_LOGGED_CLASSES = 20  # whose accuracy is logged at the end


class ClassificationTask(Task):
    """Data, model and evaluator of one run. Listing the images happens here, everything else on demand."""

    settings: ClassVar[type] = ClassificationSettings
    metric_names: Sequence[str] = (*METRICS, *BINARY)  # BINARY of two classes only, which the data decides
    default_monitor: ClassVar[str] = "val/top1"
    headline_metrics: ClassVar[Sequence[str]] = ("val/top1", "val/top5", "val/balanced_accuracy")
    locked_settings: ClassVar[frozenset[str]] = frozenset(("data.balanced", "data.image_size", "model.architecture"))

    def __init__(self, config: Any, strategy: DistributedStrategy) -> None:
        super().__init__(config, strategy)
        data: ClassificationData = config.data
        weights = config.model.weights
        if weights and "://" not in weights and strategy.is_main and not config.resume:
            find_weights(str(located(weights)))  # a missing file is an error before the data is read
        self.val: Samples | None = None
        if data.synthetic:
            self.train = synthetic_samples(data.synthetic, config.seed)
        else:
            self.train, self.val = read_splits(data)
        check_trainable(config.model, data, self.train)
        if config.trainer.overfit_batches:
            self.train = self.val = self.train.subsample(config.trainer.overfit_batches * data.batch_size)
        elif config.trainer.fast_dev_run and self.val is not None:
            self.val = self.val.subsample(2 * data.val_batch_size)
        self.validates = self.val is not None
        self.evaluator: ClassificationEvaluator | None = None
        self.metric_names = metric_names(len(self.classes))
        monitor = config.trainer.monitor
        if monitor in BINARY and monitor not in self.metric_names:
            raise ConfigError(f"trainer.monitor={monitor} is of two classes, and the data has {len(self.classes)}.")

    @staticmethod
    def prepare(config: Any) -> None:
        """Draw the data set of shapes."""
        if not config.data.synthetic:
            draw_data(config.data)

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names, in the order of the labels."""
        return self.train.classes

    @property
    def num_images(self) -> int:
        return len(self.train)

    def describe(self) -> str:
        data, model = self.config.data, self.config.model
        lines = [] if data.synthetic else [f"  {'data':<9}{self.train.form}, in {data.root}"]
        lines.append(f"  {'train':<9}{self.train.describe()}")
        none = "none: no metric, no best checkpoint; data.val_fraction=0.1 holds images out"
        lines.append(f"  {'val':<9}{self.val.describe() if self.val else none}")
        lines.append(f"  {'model':<9}{model.architecture}; weights: {model.weights or 'none, from scratch'}")
        size = f"crops of {data.image_size} px; validation: {data.val_size} px of {data.val_short_side}"
        noise = f"{data.image_size} px of noise on the device, the same at every step"
        lines.append(f"  {'size':<9}{noise if data.synthetic else size}")
        lines.append(f"  {'classes':<9}{len(self.classes)}: {truncate(self.classes, 8)}")
        lines += [f"  warning: {text}" for part in (self.train, self.val) if part for text in part.warnings]
        return "\n".join(lines)

    def checkpoint_state(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """The classes that a checkpoint's labels number."""
        return {"classes": list(checkpoint.get("classes", ()))}

    def load_checkpoint_state(self, state: Mapping[str, Any], source: object) -> None:
        """Raise CheckpointError unless the checkpoint's classes are those of the data."""
        if list(state["classes"]) != list(self.classes):
            apart = truncate(sorted(set(map(str, state["classes"])) ^ set(self.classes))) or "their order"
            raise CheckpointError(
                f"{source} was trained on other classes than data={self.config.data.name} has ({apart}); resume with the same "
                f"data, or start a new run with model.weights={source}."
            )

    def build_data(self) -> ClassificationDataModule | SyntheticData[ImageBatch]:
        data, seed, device = self.config.data, self.config.seed, self.strategy.device
        share = {
            "accumulate": self.config.trainer.micro_batches,
            "rank": self.strategy.rank,
            "world_size": self.strategy.world_size,
        }
        if data.synthetic:
            make_batch = partial(synthetic_batch, self.train, size=data.image_size, seed=seed, device=device)
            return SyntheticData(make_batch, num_images=self.num_images, batch_size=data.batch_size, **share)
        if self.config.trainer.overfit_batches:
            data = unaugmented(data)
        pin = device.type == "cuda"
        return ClassificationDataModule(data, train=self.train, val=self.val, seed=seed, pin_memory=pin, **share)

    def build_model(self, resumed: bool = False, checkpoint: Mapping[str, Any] | None = None) -> nn.Module:
        """The classifier, on the CPU; pretrained weights on the main rank only, which broadcasts them."""
        weights = self.config.model.weights

        def build() -> nn.Module:
            model = build_classifier(**self.model_arguments())
            if weights and self.strategy.is_main and not resumed:
                logger.info(str(load_weights(model, str(located(weights)), self.classes)))
            return model

        return self.strategy.run_collectively(build)

    def model_arguments(self) -> dict[str, Any]:
        """The arguments of `build_classifier`."""
        settings: ClassifierConfig = self.config.model
        return {
            "architecture": settings.architecture,
            "num_classes": len(self.classes),
            "norm": settings.norm,
            "zero_gamma": settings.zero_gamma,
            "label_smoothing": settings.label_smoothing,
            "image_size": self.config.data.val_size,
        }

    def build_evaluator(self, data: ClassificationDataModule) -> ClassificationEvaluator | None:
        """Metrics of a model over the validation set; None without one."""
        if self.val is not None:
            trainer = self.config.trainer
            arithmetic = autocast(self.strategy.device, trainer.precision)
            best = BestMetric(trainer.monitor or self.default_monitor, trainer.monitor_mode)
            self.evaluator = ClassificationEvaluator(
                self.classes, data.val_batches, len(self.val), self.strategy, arithmetic, best
            )
        return self.evaluator

    def largest_batch(self, size: int, device: torch.device) -> ImageBatch:
        """Of the largest crops of the training."""
        side = self.config.data.image_size
        images = torch.zeros(size, 3, side, side, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
        numbers = [torch.zeros(size, dtype=torch.int64) for _ in range(3)]
        return ImageBatch(images, numbers[0], numbers[1], torch.ones(size), numbers[2])

    def fingerprint(self) -> str:
        """A digest of the training images' names and classes: the same order of images needs the same images."""
        return self.train.fingerprint()

    def metadata(self, model: nn.Module) -> dict[str, Any]:
        data = self.config.data
        return super().metadata(model) | {
            "model_arguments": self.model_arguments(),
            "classes": list(self.classes),
            "input": {"image_size": data.val_size, "short_side": data.val_short_side},
        }

    def inspect(self, model: nn.Module, batch: ImageBatch) -> list[dict[str, Any]]:
        """The loss of each real image alone, with its name."""
        batch = batch.to(self.strategy.device)
        ids = [(int(batch.indices[i]), losses) for i, losses in batch.losses_of_each(model)]
        return [{"image_id": i, "file_name": self.train.names[i], "losses": losses} for i, losses in ids]

    def draw_inputs(self, data: ClassificationDataModule, folder: Path) -> None:
        """first_batch.jpg: the images of the first step as the model sees them, with their classes; not of noise."""
        if not self.config.data.synthetic:
            draw_first_batch(data, self.classes, folder / "first_batch.jpg")

    def draw_results(self, model: nn.Module, data: ClassificationDataModule, folder: Path) -> None:
        """metrics.json of the last validation; an analysis, and details.json and images/ for the report, of the best one.

        Those of an earlier start of the run stay where no validation since was better.
        """
        from retina_dist.classification.analysis import analyse

        evaluator, val = self.evaluator, self.val
        if evaluator and evaluator.last_result and val:
            write_json(folder / "metrics.json", evaluator.last_result.to_dict())
            if evaluator.best_result is None and (folder / "analysis.json").is_file():
                return
            analyse(evaluator.best_result or evaluator.last_result, val.names, folder)
            write_details(folder, lambda image_id: read_image(val.sources[image_id], None, self.config.data.max_pixels))

    def describe_results(self, folder: Path) -> list[str]:
        """Accuracy of each class, or the file that has it if there are many."""
        if self.evaluator is None or self.evaluator.last_result is None:
            return []
        accuracy = self.evaluator.last_result.per_class
        if len(accuracy) > MAX_LOGGED_CLASSES:
            return [f"  accuracy of {len(accuracy)} classes: {folder / 'metrics.json'}"]
        return [f"  {name:<24}accuracy {'-' if x is None else format(x, '.3f')}" for name, x in accuracy.items()]


def draw_data(data: ClassificationData) -> None:
    """Draw the data set of shapes where the settings ask for it and it is not there yet."""
    if data.drawn is not None:
        root = root_of(data.root, data.name)
        if isinstance(root, Url):
            raise ConfigError(
                f"data.root={root} is a URL, and data.drawn draws into local folders only; give a folder."
            )
        draw_classes(root, **asdict(data.drawn))


def read_splits(data: ClassificationData) -> tuple[Samples, Samples | None]:
    """The training and validation images that data settings name; None for a validation set that is not there."""
    draw_data(data)
    root = root_of(data.root, data.name)
    train = read_samples(root, "train")
    assert train is not None, "a missing train split is an error"
    val = read_samples(root, "val", classes=train.classes)
    return train.split(data.val_fraction) if val is None and data.val_fraction else (train, val)


def unaugmented(data: ClassificationData) -> ClassificationData:
    """The settings with the whole image as the crop and nothing else random in it."""
    off: dict[str, Any] = {"hflip": 0.0, "vflip": 0.0, "augment": None, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0}
    return replace(data, crop_scale=[1.0, 1.0], **off)


def check_trainable(model: ClassifierConfig, data: ClassificationData, train: Samples) -> None:
    """Raise ConfigError where settings and data do not go together."""
    if len(train.classes) < 2:
        raise ConfigError(f"data={data.name} has one class only, {train.classes[0]}; a classifier needs two.")
    check_sizes(model.architecture, data.image_size, data.val_size)
