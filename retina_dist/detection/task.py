"""Detection: annotations, batches, a RetinaNet, COCO metrics and images, from the settings of a
run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from retina_dist.base.errors import CheckpointError, UserError
from retina_dist.base.registry import class_of, is_custom
from retina_dist.base.text import pluralize, truncate
from retina_dist.data.digests import files_digest
from retina_dist.data.samplers import images_per_epoch
from retina_dist.detection.batch import Batch, blank_batch
from retina_dist.detection.coco_metrics import CocoEvaluator, CocoResult
from retina_dist.detection.data.dataset import CocoDataModule, buckets_of, repeats_of
from retina_dist.detection.data.synthetic import (
    draw_data,
    synthetic_annotations,
    synthetic_batch,
)
from retina_dist.detection.model.backbone import children_of
from retina_dist.detection.model.build import DetectionModel, build_model, count_classes, weights_of
from retina_dist.detection.model.weights import (
    batch_norm_eps,
    eps_of_checkpoint,
    set_batch_norm_eps,
)
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.settings import DetectionData, DetectionRunConfig, DetectionSettings
from retina_dist.detection.splits import (
    describe_split,
    first_images_with_objects,
    read_split,
)
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task.image_task import NO_VALIDATION, ImageTask

logger = logging.getLogger(__name__)


class DetectionTask(ImageTask):
    """Data, model and evaluator of one run. The constructor reads the annotations, without
    communication.
    """

    settings: ClassVar[type] = DetectionSettings
    commands = "retina_dist.detection.commands"
    evaluator_class = CocoEvaluator
    data_module = CocoDataModule
    class_metric = "AP"
    metric_names: Sequence[str] = CocoEvaluator.metric_names
    default_monitor = "coco/AP"
    headline_metrics = tuple(
        f"coco/{name}" for name in ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR100")
    )
    locked_settings = frozenset(
        [f"data.{key}" for key in ("min_sizes", "max_size", "num_buckets", "repeat_threshold")]
        + [
            f"model.{key}"
            for key in ("backbone", "variant", "fpn_channels", "anchor_sizes", "aspect_ratios")
        ]
    )

    def __init__(self, config: DetectionRunConfig, strategy: DistributedStrategy) -> None:
        super().__init__(config, strategy)
        self.outside_model: type[DetectionModel] | None = None
        if is_custom(config.model):
            self.outside_model = class_of(config.model)
        if self.outside_model:  # it names its losses itself
            self.metric_names = [
                name for name in self.metric_names if not name.startswith("val/loss_")
            ]
        else:
            children_of(config.model.backbone)  # a wrong name is an error before the data is read
            if strategy.is_main and not config.resume:
                weights_of(config.model)
        synthetic = config.data.synthetic
        train = (
            synthetic_annotations(synthetic, config.seed)
            if synthetic
            else read_split(config.data, "train")
        )
        assert train is not None, "a missing train split is an error"
        self.train = train
        if config.model.num_classes:
            self.train.categories = self.train.categories.padded(config.model.num_classes)
        self.val = None if synthetic else read_split(config.data, "val", self.train.categories)
        if config.trainer.overfit_batches:
            wanted = config.trainer.overfit_batches * config.data.batch_size
            self.train = self.val = first_images_with_objects(self.train, wanted)
        elif config.trainer.fast_dev_run and self.val is not None:
            self.val = first_images_with_objects(self.val, 2 * config.data.val_batch_size)
        overfits = config.trainer.overfit_batches or synthetic
        self.repeats = None if overfits else repeats_of(config.data, self.train)
        self.validates = self.val is not None

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
        all_of_them = (
            data.keep_empty_images
            and not data.repeat_threshold
            and not config.trainer.overfit_batches
        )
        return config.data.shapes.num_train if config.data.shapes and all_of_them else None

    def checkpoint_state(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """The categories that a checkpoint's labels number."""
        state: dict[str, Any] = checkpoint.get(
            "categories", {}
        )  # of any type: `load_checkpoint_state` checks it
        return state

    def classes_in(self, state: Mapping[str, Any], source: object) -> Sequence[str]:
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
        return len(self.train.records) if self.repeats is None else images_per_epoch(self.repeats)

    def facts(self) -> Iterator[tuple[str, str]]:
        data = self.config.data
        yield "train", describe_split(self.train)
        if self.repeats is not None:
            rare, most = int((self.repeats > 1).sum()), float(self.repeats.max())
            yield (
                "repeats",
                f"{pluralize(rare, 'image')} with rare classes, up to {most:.3g} times an epoch",
            )
        yield "val", describe_split(self.val) if self.val else NO_VALIDATION
        yield "model", self._describe_model()
        sides = (
            f"{min(data.min_sizes)} to {max(data.min_sizes)}"
            if len(data.min_sizes) > 1
            else f"{data.min_sizes[0]}"
        )
        scale = f"short side {sides} px, long side at most {data.max_size} px"
        if data.synthetic:
            scale = "{} x {} px of noise on the device, the same at every step".format(
                *data.synthetic.canvas
            )
        yield "scale", scale
        names = [name for name in self.class_names if name]
        shown = truncate(names, 8)
        if spare := len(self.class_names) - len(names):
            stated = self.config.model.num_classes
            shown += f"; {pluralize(spare, 'label')} without a category"
            shown += (
                f" (model.num_classes={stated}; there is no background class)" if stated else ""
            )
        yield "classes", f"{len(names)}: {shown}"

    def _describe_model(self) -> str:
        if self.outside_model:
            return self.outside_model.__name__
        model = self.config.model
        body = model.backbone_weights and f"body {model.backbone_weights}"
        weights = model.weights or body or "none, from scratch"
        return f"RetinaNet {model.variant}, {model.backbone}, pyramid of {model.fpn_channels}; weights: {weights}"

    def synthetic_batch(self, images: Sequence[int], weight: float) -> Batch:
        return synthetic_batch(
            self.train, images, weight, seed=self.config.seed, device=self.strategy.device
        )

    def unaugmented(self) -> DetectionData:
        data: DetectionData = self.config.data
        off: dict[str, Any] = dict.fromkeys(("hflip", "vflip", "photometric"), 0.0)
        return data.with_values(
            min_sizes=[max(data.min_sizes)], scale_jitter=None, repeat_threshold=None, **off
        )

    def build_model(
        self, resumed: bool = False, checkpoint: Mapping[str, Any] | None = None
    ) -> nn.Module:
        """The detector, on the CPU, with pretrained weights on the main rank only, and not when
        `resumed`; every rank calls it.

        What no tensor carries, the epsilon of the batch norms, is the main rank's, or its
        `checkpoint`'s, on every rank.
        """
        settings, labels, outside = self.config.model, self.train.categories, self.outside_model
        run = self.strategy.run_collectively
        if outside:
            return run(lambda: outside(settings, count_classes(settings, labels.num_classes)))
        if resumed or not self.strategy.is_main:
            settings = replace(settings, weights=None, backbone_weights=None)
        model = run(lambda: build_model(settings, labels.num_classes, labels.names))
        if settings.norm_eps is None:
            eps = self.strategy.on_main(
                lambda: eps_of_checkpoint(checkpoint) if checkpoint else batch_norm_eps(model)
            )
            if eps is not None:
                set_batch_norm_eps(model, eps)
        return model

    def file_names(self) -> dict[int, str]:
        return {record.image_id: record.file_name for record in self.train.records}

    def metadata(self, model: nn.Module) -> dict[str, Any]:
        settings, data = self.config.model, self.config.data
        described = super().metadata(model) | {
            "categories": self.train.categories.state(),
            "input": {
                "min_size": data.val_min_size or max(data.min_sizes),
                "max_size": data.max_size,
            },
        }
        if not self.outside_model:
            arguments = {
                k: v
                for k, v in asdict(settings).items()
                if k not in ("weights", "backbone_weights")
            }
            arguments["num_classes"] = settings.num_classes or self.train.categories.num_classes
            arguments["norm_eps"] = batch_norm_eps(model)
            described["model_arguments"] = arguments
        return described

    def largest_batch(self, size: int, device: torch.device) -> Batch:
        """The largest canvas with the rows of boxes of the fullest image."""
        data, sizes = (
            self.config.data,
            [(record.height, record.width) for record in self.train.records],
        )
        most_boxes = max(len(labels) for labels in self.train.labels)
        if data.synthetic:
            return blank_batch(
                size, (data.synthetic.canvas[0], data.synthetic.canvas[1]), most_boxes
            )
        buckets = buckets_of(data, sizes)
        canvas = max(buckets.all_padded_shapes(), key=lambda sides: sides[0] * sides[1])
        return blank_batch(size, canvas, most_boxes)

    def fingerprint(self) -> str:
        """A digest of the training images' ids and names: the same order of images needs the same
        images.
        """
        listed = "\n".join(f"{record.image_id} {record.file_name}" for record in self.train.records)
        return hashlib.sha256(listed.encode()).hexdigest()

    def data_digests(self) -> dict[str, str]:
        """Of the boxes of both splits, and of the image files' sizes and times."""
        digests = {}
        for split, part in (("train", self.train), ("val", self.val)):
            if part is not None and not self.config.data.synthetic:
                digests[f"the annotations of {split}"] = part.digest()
                paths = [record.path for record in part.records]
                digests[f"the image files of {split}"] = files_digest(paths)
        return digests

    def draw_inputs(self, data: CocoDataModule, folder: Path) -> None:
        """first_batch.jpg: the images of the first step as the model sees them; nothing
        of noise.
        """
        if self.config.data.synthetic:
            return
        from retina_dist.detection.pictures import draw_first_batch

        draw_first_batch(data, self.class_names, self.file_names(), folder / "first_batch.jpg")

    def write_results(self, result: CocoResult, folder: Path) -> None:
        from retina_dist.detection.analysis import analyse
        from retina_dist.detection.pictures import write_report_details

        assert self.val is not None, "there is a validation"
        analyse(result, folder)
        write_report_details(result, self.val, folder, self.config.data.max_pixels)
