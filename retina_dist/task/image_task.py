"""The evaluator and the part of a `Task` that the tasks of the package share."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from torch import nn
from typing_extensions import TypeVar

from retina_dist.base.errors import CheckpointError, ConfigError, set_status
from retina_dist.base.files import write_json
from retina_dist.base.text import truncate
from retina_dist.data.class_weights import class_weights
from retina_dist.data.module import TensorBatch
from retina_dist.data.sources import Source, contents_digest, files_digest
from retina_dist.data.synthetic import SyntheticData
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.phase_timer import cpu_seconds
from retina_dist.engine.precision import autocast
from retina_dist.engine.task import Task, TaskData, Validator
from retina_dist.strategies.base import DistributedStrategy

MAX_LOGGED_CLASSES = 20  # whose metric is logged at the end

Result = TypeVar("Result", default=Any)


class Evaluator(ABC, Generic[Result]):
    """Metrics of a model over the validation images `val`: call it with the model, on every rank.

    A subclass says what it keeps of a batch (`update`) and what it makes of all that is kept
    (`compute`), as torchmetrics does.

    Args:
        val: the validation images of all ranks.
        batches: makes the batches of this rank.
        strategy: what gathers the parts of the ranks.
        autocast: the context of the forward passes, for their precision.
        best: the metric that chooses `best_result` among the results of several validations.

    `temperature` divides the logits of the scores. With `fixed_order` sums over images have one
    order, on any number of ranks.
    """

    temperature = 1.0
    fixed_order = False

    def __init__(
        self,
        val: Any,
        batches: Callable[[], Iterable[Any]],
        strategy: DistributedStrategy,
        autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        best: BestMetric | None = None,
    ) -> None:
        self.val = val
        self.batches = batches
        self.strategy = strategy
        self.autocast = autocast
        self.best = best
        self.times: dict[str, float] = {}
        self.last_result: Result | None = None
        self.best_result: Result | None = None

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The metrics by name, NaN where undefined; the same on every rank."""
        self.last_result, metrics = self.compute(self.collect(model))
        if self.best:
            before = self.best.value
            self.best.update(metrics)
            if self.best.value != before:
                self.best_result = self.last_result
        return metrics

    def evaluate(self, model: nn.Module) -> Result:
        """The result behind the metrics; `times` are then this rank's seconds and all ranks' CPU
        seconds of reading and judging the images.

        Every rank calls it.
        """
        self(model)
        self.times["cpu_s"] = sum(self.strategy.gather_objects(self.times["cpu_s"]))
        assert self.last_result is not None
        return self.last_result

    def collect(self, model: nn.Module) -> list[Any]:
        """The `parts` of this rank, with the model in evaluation mode; without communication."""
        was_training = model.training
        started = time.perf_counter()
        cpu_started = cpu_seconds()
        model.eval()
        with torch.inference_mode():
            parts = list(self.parts(model))
        model.train(was_training)
        self.times = {
            "s": time.perf_counter() - started,
            "cpu_s": cpu_seconds() - cpu_started,
        }
        return parts

    def parts(self, model: nn.Module) -> Iterator[object]:
        """`update` of each batch."""
        images = 0
        set_status("validation, 0 images")
        for batch in self.batches():
            images += len(batch)
            set_status(f"validation, {images * self.strategy.world_size} images")
            if batch.weight > 0:  # else none of its images could be read
                yield self.update(model, batch.to(self.strategy.device, non_blocking=True))

    @abstractmethod
    def update(self, model: Any, batch: Any) -> Any:
        """A batch's part, for `compute`."""

    @abstractmethod
    def compute(self, parts: list[Any]) -> tuple[Result, dict[str, float]]:
        """The result and the metrics by name, of the `parts` of all ranks; every rank calls it."""


class ImageTask(Task):
    """A task on the labelled images `train`, and `val` if it validates."""

    train: Any
    val: Any = None
    evaluator: Evaluator | None = None
    evaluator_class: ClassVar[type[Evaluator]]
    data_module: ClassVar[type]
    class_weights: np.ndarray | None = None  # [K] in the loss, float64
    class_metric: ClassVar[str]  # what a result has `per_class`
    labels: ClassVar[str]  # what `data_digests` calls them

    @property
    @abstractmethod
    def class_names(self) -> Sequence[str]:
        """The name of each label."""

    @abstractmethod
    def class_counts(self) -> np.ndarray:
        """[K] the examples of each class in an epoch."""

    @abstractmethod
    def file_names(self) -> Mapping[int, str]:
        """The training images' files by their ids."""

    @abstractmethod
    def facts(self) -> Iterator[tuple[str, str]]:
        """The lines of `describe`: a short name, and what it is."""

    def without_validation(self) -> str:
        """`val` of `facts` where there is none."""
        remedy = "; give val images with labels, or data.val_fraction=0.1 holds images of train out"
        if self.config.data.synthetic:
            remedy = ""
        return f"none: no metric, no best checkpoint{remedy}"

    @abstractmethod
    def synthetic_batch(self, images: Sequence[int], weight: float) -> Any:
        """The batch of these random images, see `SyntheticData`."""

    @abstractmethod
    def unaugmented(self) -> object:
        """The settings of the data with nothing random in them, for `trainer.overfit_batches`."""

    @abstractmethod
    def classes_in(self, state: Mapping[str, object], source: object) -> Sequence[str]:
        """The name of each label of the checkpoint `source`, whose `checkpoint_state` is `state`.

        Raises CheckpointError where it does not say.
        """

    @abstractmethod
    def write_results(self, result: Any, folder: Path) -> None:
        """An analysis of `result`, and details.json and images/ for the report."""

    def data_digests(
        self, of_files: Callable[[Sequence[Source]], str] = files_digest
    ) -> dict[str, str]:
        """Of the labels of both splits, and of the image files; by default of their sizes and
        times.
        """
        digests = {}
        for split, part in (("train", self.train), ("val", self.val)):
            if part is not None and not self.config.data.synthetic:
                digests[f"the {self.labels} of {split}"] = part.digest()
                digests[f"the image files of {split}"] = of_files(part.sources)
        return digests

    def content_digests(self) -> dict[str, str]:
        return self.data_digests(contents_digest)

    def describe(self) -> str:
        lines = [f"  {name:<9}{text}" for name, text in self.facts()]
        augmentation = self.config.augmentation.name
        if augmentation != "none":
            lines.append(f"  {'augment':<9}{augmentation}, before the flips and others of data")
        if self.class_weights is not None:
            shown = []
            for name, weight in zip(self.class_names, self.class_weights, strict=True):
                if name:
                    shown.append(f"{name} {weight:.3g}")
            lines.append(f"  {'loss':<9}class weights {truncate(shown, 8)}")
        for part in (self.train, self.val):
            if part:
                lines += [f"  warning: {text}" for text in part.warnings]
        return "\n".join(dict.fromkeys(lines))  # both splits can have the same warning

    def load_checkpoint_state(self, state: Mapping[str, Any], source: object) -> None:
        """Raise CheckpointError unless the checkpoint `source` has the same names of labels."""
        theirs = list(self.classes_in(state, source))
        ours = list(self.class_names)
        if theirs == ours:
            return

        only_one_has = sorted({*theirs} ^ {*ours}, key=[*theirs, *ours].index)
        difference = "another order"
        if only_one_has:
            difference = f"in one alone: {', '.join(map(repr, only_one_has[:3]))}"
        raise CheckpointError(
            f"{source} was trained on other classes than data={self.config.data.name} has "
            f"({difference}); resume with the same data, or start a new run with the model of that "
            f"and model.weights={source}."
        )

    def shorten(self, first: Callable[[Any, int], object]) -> None:
        """Keep the images that `trainer.overfit_batches` and `fast_dev_run` want.

        `first` gives so many of a split.
        """
        data = self.config.data
        trainer = self.config.trainer
        if trainer.overfit_batches:
            self.train = first(self.train, trainer.overfit_batches * data.batch_size)
            self.val = self.train
        elif trainer.fast_dev_run and self.val is not None:
            self.val = first(self.val, 2 * data.val_batch_size)

    def check_class_weights(self) -> None:
        """Set `class_weights`, once the data is read. Raises ConfigError for an unknown name."""
        given = self.config.data.class_weights
        if given is not None:
            self.class_weights = class_weights(given, self.class_names, self.class_counts())

    def weigh_classes(self, model: nn.Module) -> None:
        """Give the model the weights of the classes, if there are any.

        Raises ConfigError for a model without a buffer `class_weights`.
        """
        if self.class_weights is None:
            return
        if "class_weights" not in model._buffers:
            raise ConfigError(
                f"data.class_weights={self.config.data.class_weights} has no effect on "
                f"{type(model).__name__}, which has no buffer class_weights; leave it out."
            )
        model.class_weights = torch.tensor(self.class_weights.tolist(), dtype=torch.float64)

    def build_data(self) -> TaskData:
        """The batches of this rank: of random images on the device, or of those that are read."""
        config = self.config
        share: dict[str, Any] = {
            "accumulate": config.trainer.micro_batches,
            "rank": self.strategy.rank,
            "world_size": self.strategy.world_size,
            "virtual_ranks": config.trainer.virtual_ranks,
        }
        if config.data.synthetic:
            return SyntheticData(
                self.synthetic_batch,
                num_images=self.num_images,
                batch_size=config.data.batch_size,
                **share,
            )

        data = config.data
        augmentation = config.augmentation.name
        if config.trainer.overfit_batches:
            data = self.unaugmented()
            augmentation = "none"
        if augmentation != "none":
            from retina_dist.data.augmentation import augmentation_of

            share["augment"] = augmentation_of(config.augmentation)
        return self.data_module(
            data,
            train=self.train,
            val=self.val,
            seed=config.seed,
            device=self.strategy.device,
            **share,
        )

    def build_evaluator(self, data: Any) -> Validator | None:
        """Metrics of a model over the validation set; None without one."""
        if self.val is not None:
            trainer = self.config.trainer
            best = BestMetric(trainer.monitor or self.default_monitor, trainer.monitor_mode)
            autocast_context = autocast(self.strategy.device, trainer.precision)
            self.evaluator = self.evaluator_class(
                self.val, data.val_batches, self.strategy, autocast_context, best
            )
            self.evaluator.fixed_order = bool(trainer.virtual_ranks)
        return self.evaluator

    def inspect(self, model: nn.Module, batch: TensorBatch) -> list[dict[str, object]]:
        """Each real image of a batch by id and file, with the losses that it has on its own."""
        names = self.file_names()
        batch = batch.to(self.strategy.device)
        images = []
        for row in batch.real_rows():
            image_id = int(batch.image_ids[row])
            losses = {name: float(loss) for name, loss in model(batch.image(row)).items()}
            images.append({"image_id": image_id, "file_name": names[image_id], "losses": losses})
        return images

    def draw_results(self, model: nn.Module, data: object, folder: Path) -> None:
        """Write metrics.json of the last validation, and `write_results` of the best one.

        The results of an earlier start stay where it had a better validation.
        """
        if self.evaluator is None or self.evaluator.last_result is None:
            return
        last = self.evaluator.last_result
        best = self.evaluator.best_result
        write_json(folder / "metrics.json", last.to_dict())
        if best is not None or not (folder / "analysis.json").is_file():
            self.write_results(best or last, folder)

    def describe_results(self, folder: Path) -> list[str]:
        """The metric of each class, or the file that has it if there are many."""
        if self.evaluator is None or self.evaluator.last_result is None:
            return []
        values = self.evaluator.last_result.per_class
        if len(values) > MAX_LOGGED_CLASSES and (folder / "metrics.json").is_file():
            return [f"  {self.class_metric} of {len(values)} classes: {folder / 'metrics.json'}"]
        lines = []
        for name, value in values.items():
            number = "-" if value is None else f"{value:.3f}"
            lines.append(f"  {name:<24}{self.class_metric} {number}")
        return lines
