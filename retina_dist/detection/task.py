"""Detection: annotations, batches, a RetinaNet, COCO metrics and images from a run's settings."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from retina_dist.base.errors import CheckpointError, ConfigError, UserError
from retina_dist.base.registry import class_of
from retina_dist.base.text import pluralize, truncate
from retina_dist.data.samplers import FloatArray, images_per_epoch
from retina_dist.detection.anchor_coverage import describe_fit
from retina_dist.detection.batch import Batch, blank_batch
from retina_dist.detection.coco_metrics import CocoEvaluator, CocoResult
from retina_dist.detection.data.dataset import CocoDataModule, buckets_of, repeats_of
from retina_dist.detection.data.synthetic import draw_data, synthetic_annotations, synthetic_batch
from retina_dist.detection.model.added_classes import differences
from retina_dist.detection.model.build import DetectionModel, build_model, check_labels
from retina_dist.detection.model.retinanet import RetinaNet
from retina_dist.detection.model.weights import source_of
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.settings import (
    DetectionData,
    DetectionRunConfig,
    DetectionSettings,
    ModelConfig,
)
from retina_dist.detection.splits import first_images_with_objects, read_splits, unread_test
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task.image_task import ImageTask


class DetectionTask(ImageTask):
    """Data, model and evaluator of one run.

    The constructor reads the annotations, without communication.
    """

    settings = DetectionSettings
    commands = "retina_dist.detection.commands"
    evaluator_class = CocoEvaluator
    data_module = CocoDataModule
    class_metric = "AP"
    labels = "annotations"
    metric_names: Sequence[str] = CocoEvaluator.metric_names
    default_monitor = "coco/AP"
    headline_metrics = (
        "coco/AP",
        "coco/AP50",
        "coco/AP75",
        "coco/APs",
        "coco/APm",
        "coco/APl",
        "coco/AR100",
    )
    locked_settings = frozenset(
        {
            "data.min_sizes",
            "data.max_size",
            "data.num_buckets",
            "data.repeat_threshold",
            "model.backbone",
            "model.variant",
            "model.fpn_channels",
            "model.anchor_sizes",
            "model.aspect_ratios",
        }
    )

    def __init__(self, config: DetectionRunConfig, strategy: DistributedStrategy) -> None:
        super().__init__(config, strategy)
        self.model_class: type[DetectionModel] = class_of(config.model)
        self.model_class.check(config.model, strategy.is_main and not config.resume)
        if not self.model_class.loss_names:  # which the first validation tells
            self.metric_names = [
                name for name in self.metric_names if not name.startswith("val/loss_")
            ]
        self.repeats: FloatArray | None = None
        self._read(config.data)
        self.validates = self.val is not None
        self.check_class_weights()

    def _read(self, data: DetectionData) -> None:
        """Set `train`, `val` and `repeats`."""
        num_classes = self.config.model.num_classes
        self.test = ""
        known = self._known_classes
        if data.synthetic:
            if known:
                raise ConfigError(
                    f"model.add_classes=true adds no class of data={data.name}, which are random "
                    "images; give a data set, or leave it out."
                )
            self.train = synthetic_annotations(data.synthetic, self.config.seed, num_classes)
            return

        reader = data.reader()
        self.train, self.val = read_splits(data, num_classes, reader=reader)
        self.test = unread_test(data, reader, validates=self.val is not None)
        if known:
            self._add_to(known)
        check_labels(self.config.model, len(self.class_names))
        alike = self.train.categories.spelt_alike
        if alike:
            self.train.warnings.append(
                f"spelt alike, but trained as different classes: {truncate(alike)}; "
                "rename them in the data if they are one class"
            )
        self.shorten(first_images_with_objects)
        if not self.config.trainer.overfit_batches:
            self.repeats = repeats_of(data, self.train)

    @property
    def _known_classes(self) -> list[str]:
        model = self.config.model
        if isinstance(model, ModelConfig):
            return list(chain.from_iterable(model.known_classes or ()))
        return []

    def _add_to(self, known: Sequence[str]) -> None:
        """Number the labels after those that the weights know."""
        own = self.train.categories
        names = self.config.data.name
        is_repeated = own.repeated_names or any(known.count(name) > 1 for name in own.names)
        if is_repeated or set(own.names) <= {*known}:
            raise ConfigError(
                f"data={names} has no new class beside {truncate(known)}, or two of one name; "
                "give data of classes to add."
            )
        self.train = self.train.with_labels(own.after(known))
        if self.val is not None:
            labels = self.train.categories.matched(self.val.truth.categories, names)
            self.val = self.val.with_labels(labels)
        weights = self.config.model.weights
        if weights and self.strategy.is_main and self.config.resume in (None, "auto"):
            self.train.warnings += differences(weights, self._input())

    @staticmethod
    def prepare(config: DetectionRunConfig) -> None:
        """Draw the data set of shapes."""
        if not config.data.synthetic:
            draw_data(config.data)

    @staticmethod
    def planned_images(config: DetectionRunConfig) -> int | None:
        """The images of random data, or of a data set of shapes that are all trained on."""
        if config.data.synthetic:
            return config.data.synthetic.num_images
        data = config.data
        if (
            not data.shapes
            or not data.keep_empty_images
            or data.repeat_threshold
            or config.trainer.overfit_batches
        ):
            return None
        return data.shapes.num_train

    def checkpoint_state(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """The categories that a checkpoint's labels number."""
        # Of any type: `load_checkpoint_state` checks it.
        return checkpoint.get("categories", {})

    def classes_in(self, state: Mapping[str, object], source: object) -> Sequence[str]:
        try:
            return Categories.from_state(state).names
        except UserError as error:
            raise CheckpointError(
                f"{source} does not say which categories it was trained on ({error})."
            ) from error

    @property
    def class_names(self) -> Sequence[str]:
        return self.train.categories.names

    @property
    def num_images(self) -> int:
        if self.repeats is None:
            return len(self.train.records)
        return images_per_epoch(self.repeats)

    def class_counts(self) -> np.ndarray:
        labels = np.concatenate([np.zeros(0, np.int64), *self.train.labels])
        repeats = np.ones(len(self.train.labels)) if self.repeats is None else self.repeats
        of_box = np.repeat(repeats, list(map(len, self.train.labels)))
        return np.bincount(labels, of_box, minlength=len(self.class_names))

    def facts(self) -> Iterator[tuple[str, str]]:
        known = self._known_classes
        yield "train", self.train.describe(known)
        if self.repeats is not None:
            rare = pluralize(int((self.repeats > 1).sum()), "image")
            most = float(self.repeats.max())
            yield "repeats", f"{rare} with rare classes, up to {most:.3g} times an epoch"
        yield "val", self.val.describe(known) if self.val else self.without_validation()
        if self.test:
            yield "test", self.test
        yield "model", self.config.model.describe()
        yield "scale", self._describe_scale()
        if not self.config.data.synthetic:
            yield from describe_fit(self.train, self.config.data, self.config.model)

        names = [name for name in self.class_names if name]
        shown = f"{len(names)}: {truncate(names, 8)}"
        spare = len(self.class_names) - len(names)
        if spare:
            shown += f"; {pluralize(spare, 'label')} without a category"
            stated = self.config.model.num_classes
            if stated:
                shown += (
                    f" (leave out model.num_classes={stated} if it counts the background, which is "
                    "no class)"
                )
        yield "classes", shown

    def _describe_scale(self) -> str:
        data = self.config.data
        if data.synthetic:
            height, width = data.synthetic.canvas
            return f"{height} x {width} px of noise on the device, the same at every step"
        sides = str(data.min_sizes[0])
        if len(data.min_sizes) > 1:
            sides = f"{min(data.min_sizes)} to {max(data.min_sizes)}"
        return f"short side {sides} px, long side at most {data.max_size} px"

    def synthetic_batch(self, images: Sequence[int], weight: float) -> Batch:
        return synthetic_batch(
            self.train, images, weight, seed=self.config.seed, device=self.strategy.device
        )

    def unaugmented(self) -> DetectionData:
        return self.config.data.with_values(
            min_sizes=[max(self.config.data.min_sizes)],
            scale_jitter=None,
            repeat_threshold=None,
            hflip=0.0,
            vflip=0.0,
            photometric=0.0,
        )

    def build_model(
        self, resumed: bool = False, checkpoint: Mapping[str, Any] | None = None
    ) -> nn.Module:
        """The detector, on the CPU; every rank calls it.

        Pretrained weights are loaded on the main rank only, and not when `resumed`. What no tensor
        carries is the main rank's, or its `checkpoint`'s, on every rank.
        """
        labels = self.train.categories
        pretrained = self.strategy.is_main and not resumed
        settings = self.config.model
        build = partial(build_model, settings, labels.num_classes, labels.names, pretrained)
        model = self.strategy.run_collectively(build)
        saved = (checkpoint or {}).get("model_arguments")
        model.take(self.strategy.on_main(lambda: saved or model.arguments()))
        self.weigh_classes(model)
        return model

    def file_names(self) -> dict[int, str]:
        return {record.image_id: record.file_name for record in self.train.records}

    def _input(self) -> dict[str, int]:
        """The size of validation's images, for a checkpoint."""
        data = self.config.data
        return {
            "min_size": data.val_min_size or max(data.min_sizes),
            "max_size": data.max_size,
        }

    def metadata(self, model: nn.Module) -> dict[str, object]:
        assert isinstance(model, DetectionModel)
        described = super().metadata(model) | {
            "categories": self.train.categories.state(),
            "origin": dict(self.train.truth.origin),
            "input": self._input(),
        }
        arguments = model.arguments()
        if arguments:
            described["model_arguments"] = arguments
        if isinstance(model, RetinaNet):
            described["origin"]["weights"] = source_of(self.config.model)
        return described

    def largest_batch(self, size: int, device: torch.device) -> Batch:
        """The largest padded shape with the rows of boxes of the fullest image."""
        data = self.config.data
        if data.synthetic:
            height, width = data.synthetic.canvas
            shapes = {(height, width)}
        else:
            sizes = [(record.height, record.width) for record in self.train.records]
            shapes = buckets_of(data, sizes).all_padded_shapes()
        return blank_batch(size, max(shapes, key=math.prod), max(map(len, self.train.labels)))

    def fingerprint(self) -> str:
        """A digest of the training images' ids and names, on which their order depends."""
        listed = "\n".join(f"{image_id} {name}" for image_id, name in self.file_names().items())
        return hashlib.sha256(listed.encode()).hexdigest()

    def draw_inputs(self, data: CocoDataModule, folder: Path) -> None:
        """first_batch.jpg: the first step's images as the model sees them; nothing of noise."""
        if self.config.data.synthetic:
            return
        from retina_dist.detection.pictures import draw_first_batch

        draw_first_batch(data, self.class_names, self.file_names(), folder / "first_batch.jpg")

    def write_results(self, result: CocoResult, folder: Path) -> None:
        from retina_dist.detection.analysis import analyse
        from retina_dist.detection.pictures import write_report_details

        analyse(result, folder)
        write_report_details(result, self.val, folder, self.config.data.max_pixels)
