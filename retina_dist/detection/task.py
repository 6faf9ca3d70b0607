"""Detection: annotations, batches, a RetinaNet, COCO metrics and images, from the settings of a run."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from retina_dist.data.canvases import make_buckets
from retina_dist.data.samplers import images_per_epoch
from retina_dist.data.synthetic import SyntheticData
from retina_dist.detection.batch import Batch, blank_batch
from retina_dist.detection.coco_metrics import CocoEvaluator
from retina_dist.detection.data.dataset import CocoDataModule, repeats_of
from retina_dist.detection.data.synthetic import synthetic_annotations, synthetic_batch
from retina_dist.detection.model.body import children_of
from retina_dist.detection.model.build import DetectionModel, build_model, count_classes, weights_of
from retina_dist.detection.model.weights import batch_norm_eps, eps_of_checkpoint, set_batch_norm_eps
from retina_dist.detection.readers.categories import Categories
from retina_dist.detection.settings import DetectionRunConfig, DetectionSettings
from retina_dist.detection.splits import describe_split, draw_data, first_images_with_objects, read_split
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.precision import autocast
from retina_dist.errors import CheckpointError, UserError
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.task import Task
from retina_dist.text import format_bytes, pluralize

logger = logging.getLogger(__name__)

MAX_LOGGED_CLASSES = 20  # whose AP is logged at the end


class DetectionTask(Task):
    """Data, model and evaluator of one run. Reading the annotations happens here, everything else on demand.

    Making one does not communicate.
    """

    settings: ClassVar[type] = DetectionSettings
    metric_names: Sequence[str] = CocoEvaluator.metric_names
    default_monitor: ClassVar[str] = "coco/AP"
    headline_metrics: ClassVar[Sequence[str]] = tuple(
        f"coco/{n}" for n in ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR100"]
    )
    locked_settings: ClassVar[frozenset[str]] = frozenset(
        [f"data.{key}" for key in ("min_sizes", "max_size", "num_buckets", "repeat_threshold")]
        + [f"model.{key}" for key in ("backbone", "variant", "fpn_channels", "anchor_sizes", "aspect_ratios")]
    )

    def __init__(self, config: DetectionRunConfig, strategy: DistributedStrategy) -> None:
        super().__init__(config, strategy)
        self.outside_model: type[DetectionModel] | None = getattr(config.model, "implementation", None)
        if self.outside_model:  # it names its losses itself
            self.metric_names = [name for name in self.metric_names if not name.startswith("val/loss_")]
        if not self.outside_model:
            children_of(config.model.backbone)  # a wrong name is an error before the data is read
            if strategy.is_main and not config.resume:
                weights_of(config.model)
        synthetic = config.data.synthetic
        train = synthetic_annotations(synthetic, config.seed) if synthetic else read_split(config.data, "train")
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
        self.evaluator: CocoEvaluator | None = None

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
        all_of_them = data.keep_empty_images and not data.repeat_threshold and not config.trainer.overfit_batches
        return config.data.shapes.num_train if config.data.shapes and all_of_them else None

    def checkpoint_state(self, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        """The categories that a checkpoint's labels number."""
        state: dict[str, Any] = checkpoint.get("categories", {})  # of any type: `load_checkpoint_state` checks it
        return state

    def load_checkpoint_state(self, state: Mapping[str, Any], source: object) -> None:
        """Raise CheckpointError unless the labels of the checkpoint `source` have the same names; ids may differ."""
        try:
            theirs = Categories.from_state(state).names
        except UserError as error:
            raise CheckpointError(f"{source} does not say which categories it was trained on ({error}).") from error
        if theirs != self.train.categories.names:
            other = [repr(a or b) for a, b in zip_longest(theirs, self.train.categories.names) if a != b]
            raise CheckpointError(
                f"{source} was trained on other categories than data={self.config.data.name} has ({', '.join(other[:3])}); resume "
                f"with the same annotations, or start a new run with model.weights={source}."
            )

    @property
    def num_images(self) -> int:
        return len(self.train.records) if self.repeats is None else images_per_epoch(self.repeats)

    def describe(self) -> str:
        lines = [f"  {'train':<9}{describe_split(self.train)}"]
        if self.repeats is not None:
            rare, most = int((self.repeats > 1).sum()), float(self.repeats.max())
            lines.append(
                f"  {'repeats':<9}{pluralize(rare, 'image')} with rare classes, up to {most:.3g} times an epoch"
            )
        none = "none: no metric, no best checkpoint; data.val_fraction=0.1 holds images out"
        lines.append(f"  {'val':<9}{describe_split(self.val) if self.val else none}")
        names = [name for name in self.train.categories.names if name]
        data = self.config.data
        lines.append(f"  {'model':<9}{self._describe_model()}")
        sides = f"{min(data.min_sizes)} to {max(data.min_sizes)}" if len(data.min_sizes) > 1 else f"{data.min_sizes[0]}"
        scale = f"short side {sides} px, long side at most {data.max_size} px"
        if data.synthetic:
            scale = "{} x {} px of noise on the device, the same at every step".format(*data.synthetic.canvas)
        lines.append(f"  {'scale':<9}{scale}")
        if data.cache:
            records = [record for part in (self.train, self.val) if part for record in part.records]
            size = sum({str(record.path): 3 * record.height * record.width for record in records}.values())
            lines.append(f"  {'cache':<9}up to {format_bytes(size)} of decoded pixels in {data.cache}")
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        if spare := len(self.train.categories.names) - len(names):
            stated = self.config.model.num_classes
            shown += f"; {pluralize(spare, 'label')} without a category"
            shown += f" (model.num_classes={stated}; there is no background class)" if stated else ""
        lines.append(f"  {'classes':<9}{len(names)}: {shown}")
        lines += [f"  warning: {text}" for part in (self.train, self.val) if part for text in part.warnings]
        return "\n".join(lines)

    def _describe_model(self) -> str:
        if self.outside_model:
            return self.outside_model.__name__
        model = self.config.model
        weights = model.weights or (
            f"body {model.backbone_weights}" if model.backbone_weights else "none, from scratch"
        )
        return f"RetinaNet {model.variant}, {model.backbone}, pyramid of {model.fpn_channels}; weights: {weights}"

    def build_data(self) -> CocoDataModule | SyntheticData[Batch]:
        data, trainer = self.config.data, self.config.trainer
        if data.synthetic:
            return SyntheticData(
                partial(synthetic_batch, self.train, seed=self.config.seed, device=self.strategy.device),
                num_images=self.num_images,
                batch_size=data.batch_size,
                accumulate=trainer.micro_batches,
                rank=self.strategy.rank,
                world_size=self.strategy.world_size,
            )
        return self.build_image_data()

    def build_image_data(self) -> CocoDataModule:
        """The batches of this rank, of images that are read."""
        data, trainer = self.config.data, self.config.trainer
        if trainer.overfit_batches:
            off: dict[str, Any] = dict.fromkeys(("hflip", "vflip", "photometric"), 0.0)
            data = data.with_values(min_sizes=[max(data.min_sizes)], scale_jitter=None, repeat_threshold=None, **off)
        return CocoDataModule(
            data,
            train=self.train,
            val=self.val,
            accumulate=trainer.micro_batches,
            seed=self.config.seed,
            rank=self.strategy.rank,
            world_size=self.strategy.world_size,
            device=self.strategy.device,
        )

    def build_model(self, resumed: bool = False, checkpoint: Mapping[str, Any] | None = None) -> nn.Module:
        """The detector, on the CPU. Every rank calls it.

        Pretrained weights are loaded on the main rank only, from which the others will have them, and not in a run that is
        `resumed`: its `checkpoint`, which the main rank holds, brings them. What no tensor carries, the epsilon of the batch
        norms, is the main rank's on every rank.
        """
        settings, labels = self.config.model, self.train.categories
        if outside := self.outside_model:
            return self.strategy.run_collectively(
                lambda: outside(settings, count_classes(settings, labels.num_classes))
            )
        if resumed or not self.strategy.is_main:
            settings = replace(settings, weights=None, backbone_weights=None)
        model = self.strategy.run_collectively(lambda: build_model(settings, labels.num_classes, labels.names))
        if settings.norm_eps is None:
            eps = self.strategy.on_main(lambda: eps_of_checkpoint(checkpoint) if checkpoint else batch_norm_eps(model))
            if eps is not None:
                set_batch_norm_eps(model, eps)
        return model

    def build_evaluator(self, data: CocoDataModule) -> Callable[[nn.Module], dict[str, float]] | None:
        """COCO metrics of a model over the validation set; None without one."""
        if self.val is None:
            return None
        self.evaluator = CocoEvaluator(
            annotations_coco=self.val.coco,
            categories=self.val.categories,
            batches=data.val_batches,
            strategy=self.strategy,
            autocast=autocast(self.strategy.device, self.config.trainer.precision),
            best=BestMetric(self.config.trainer.monitor or self.default_monitor, self.config.trainer.monitor_mode),
        )
        return self.evaluator

    def inspect(self, model: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """Each real image of a batch by id and file, with the losses that it has on its own."""
        names = {record.image_id: record.file_name for record in self.train.records}
        batch = batch.to(self.strategy.device)
        ids = [(int(batch.image_ids[i]), losses) for i, losses in batch.losses_of_each(model)]
        return [{"image_id": i, "file_name": names[i], "losses": losses} for i, losses in ids]

    def metadata(self, model: nn.Module) -> dict[str, Any]:
        settings = self.config.model
        described: dict[str, Any] = {}
        if not self.outside_model:
            arguments = {k: v for k, v in asdict(settings).items() if k not in ("weights", "backbone_weights")}
            arguments["num_classes"] = settings.num_classes or self.train.categories.num_classes
            arguments["norm_eps"] = batch_norm_eps(model)
            described["model_arguments"] = arguments
        return (
            described
            | super().metadata(model)
            | {
                "categories": self.train.categories.state(),
                "input": {"min_size": self.val_min_size, "max_size": self.config.data.max_size},
            }
        )

    def largest_batch(self, size: int, device: torch.device) -> Batch:
        """The largest canvas with the rows of boxes of the fullest image."""
        data, sizes = self.config.data, [(record.height, record.width) for record in self.train.records]
        most_boxes = max(len(labels) for labels in self.train.labels)
        if data.synthetic:
            return blank_batch(size, (data.synthetic.canvas[0], data.synthetic.canvas[1]), most_boxes)
        buckets = make_buckets(sizes, min_sizes=data.min_sizes, max_size=data.max_size, num_buckets=data.num_buckets)
        canvas = max(buckets.all_canvases(), key=lambda sides: sides[0] * sides[1])
        return blank_batch(size, canvas, most_boxes)

    def fingerprint(self) -> str:
        """A digest of the training images' ids and names: the same order of images needs the same images."""
        listed = "\n".join(f"{record.image_id} {record.file_name}" for record in self.train.records)
        return hashlib.sha256(listed.encode()).hexdigest()

    @property
    def val_min_size(self) -> int:
        """Shorter side in pixels at which the model is judged and used."""
        return self.config.data.val_min_size or max(self.config.data.min_sizes)

    def draw_inputs(self, data: CocoDataModule, folder: Path) -> None:
        """first_batch.jpg: the images of the first step as the model sees them; nothing of noise."""
        if self.config.data.synthetic:
            return
        from retina_dist.detection.pictures import draw_first_batch

        draw_first_batch(data, 0, self.train.categories.names, folder / "first_batch.jpg")

    def describe_results(self, folder: Path) -> list[str]:
        """AP of each class, or where it stands if there are many."""
        if self.evaluator is None or self.evaluator.last_result is None:
            return []
        classes = self.evaluator.last_result.per_class
        if len(classes) > MAX_LOGGED_CLASSES:
            return [f"  AP of {len(classes)} classes: {folder / 'report.html'}, or python -m retina_dist.evaluate"]
        return [f"  {name:<24}AP {'-' if ap is None else format(ap, '.3f')}" for name, ap in classes.items()]

    def draw_results(self, model: nn.Module, data: CocoDataModule, folder: Path) -> None:
        """An analysis, and details.json and images/ for the report, of the best validation.

        Those of an earlier start of the run stay where no validation since was better.
        """
        from retina_dist.detection.analysis import analyse
        from retina_dist.detection.pictures import write_report_details

        if self.evaluator is None or self.evaluator.last_result is None or self.val is None:
            return
        if self.evaluator.best_result is None and (folder / "analysis.json").is_file():
            return
        result = self.evaluator.best_result or self.evaluator.last_result
        analyse(result, folder)
        write_report_details(result, self.val, folder, self.config.data.max_pixels)
