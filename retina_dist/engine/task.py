"""The contract between a training and what it trains: data, model and metrics of one task."""

# ruff: noqa: B027  a task overrides the empty methods that it needs

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import StateDict

from retina_dist.base.redaction import redacted_tree
from retina_dist.base.registry import as_dict
from retina_dist.strategies.base import DistributedStrategy

Metrics = dict[str, float]  # a validation's, by name
Validator = Callable[[nn.Module], Metrics]


class TrainBatch(Protocol):
    """A micro-batch; `weight` is its share in the step's mean loss."""

    @property
    def weight(self) -> float: ...
    def to(self, device: torch.device, non_blocking: bool = False) -> Any: ...


MicroBatches = Sequence[TrainBatch]  # of one rank in a step
Facts = dict[str, object]  # for a file
Scalars = dict[str, Tensor]  # on the device, by name
TakeStep = Callable[[MicroBatches], Scalars]


class TaskData(Protocol):
    """The batches of one rank, a pure function of the optimizer step."""

    def train_steps(self, start: int, stop: int) -> Iterator[MicroBatches]:
        """The micro-batches of each step from `start` up to `stop`."""

    def position(self, step: int) -> tuple[int, int]:
        """The epoch, and the images taken of it, before `step`."""


class Task(ABC):
    """A task as a run needs it. The assembler calls the methods in the order below, on every rank
    unless stated otherwise.

    `settings` is a dataclass: its fields are the task's sections of the configuration, such as
    `data` (a subclass of `run_config.DataSettings`) and `model`. `metric_names` are what a
    validation returns; `default_monitor` is the one that chooses the best checkpoint where
    `trainer.monitor` is null. `headline_metrics` are those on the progress line, () means all. A
    resume must find `locked_settings`, dotted keys, as they were.
    """

    settings: ClassVar[type]
    commands: ClassVar[str]  # the module of its commands, such as evaluate; by default its own
    validates: bool = True  # whether there is validation data
    metric_names: Sequence[str] = ("val/loss",)
    default_monitor: ClassVar[str] = "val/loss"
    headline_metrics: ClassVar[Sequence[str]] = ()
    locked_settings: ClassVar[frozenset[str]] = frozenset()

    @staticmethod
    def prepare(config: Any) -> None:
        """Write data that the settings ask to be made; on the main rank, before any rank reads."""

    @staticmethod
    def planned_images(config: Any) -> int | None:
        """Images of an epoch where the settings alone tell, so that an impossible plan is an error
        before `prepare`.
        """
        return None

    def __init__(self, config: Any, strategy: DistributedStrategy) -> None:
        """Read the data. Must not communicate."""
        self.config = config
        self.strategy = strategy

    @property
    @abstractmethod
    def num_images(self) -> int:
        """Images of an epoch."""

    def describe(self) -> str:
        """What was read, as lines of the log."""
        return f"  {'train':<9}{self.num_images} images"

    def checkpoint_state(self, checkpoint: StateDict) -> StateDict:
        """The argument of `load_checkpoint_state` on every rank, plain values. On the main rank."""
        return {}

    def load_checkpoint_state(self, state: StateDict, source: object) -> None:
        """Adapt to the checkpoint `source`. Raises CheckpointError where its data is other data.
        Must not communicate.
        """

    @abstractmethod
    def build_data(self) -> TaskData:
        """The batches of this rank. Must not communicate."""

    @abstractmethod
    def build_model(self, resumed: bool = False, checkpoint: StateDict | None = None) -> nn.Module:
        """The model on the CPU: in training mode it maps a batch to a dict of losses, means over
        the batch's examples.

        Pretrained weights are loaded on the main rank only, and not when the run is `resumed`. To
        estimate memory it is called on a copy of the task on the main rank, before `build_data`; an
        error then leaves out the estimate.
        """

    @abstractmethod
    def build_evaluator(self, data: object) -> Validator | None:
        """Metrics of a model over the whole validation set, the main rank's count; None without
        validation data.
        """

    def largest_batch(self, size: int, device: torch.device) -> TrainBatch | None:
        """A micro-batch of `size` examples of the largest shape that a training on `device` can
        have; None: not known.

        Called on fake tensors, to estimate a step's memory, before `build_data`: shapes and types
        count, values do not.
        """
        return None

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of the training data, which a resume must find again."""

    def data_digests(self) -> dict[str, str]:
        """Digests of data whose change a resume warns of, by its name; called on the main rank.

        Unlike `fingerprint` it may be other data: corrected labels, or images that were saved
        again.
        """
        return {}

    def content_digests(self) -> dict[str, str]:
        """Digests of labels and of the content of images, by name, equal wherever the data lie; for
        `logging.digest`. Called on the main rank.
        """
        return {}

    def metadata(self, model: nn.Module) -> StateDict:
        """Plain values of a checkpoint beside the state: "config", "images" (`fingerprint`), and
        values for inference.
        """
        return {"config": redacted_tree(as_dict(self.config)), "images": self.fingerprint()}

    def inspect(self, model: nn.Module, batch: Any) -> list[Facts]:
        """Each example of a batch with its losses, for the report of a step that is not finite."""
        return []

    def draw_inputs(self, data: Any, folder: Path) -> None:
        """Draw the first training batch into the run folder; on the main rank."""

    def draw_results(self, model: nn.Module, data: object, folder: Path) -> None:
        """Write what the report shows of the best validation, see docs/extending.md; on the main
        rank.
        """

    def describe_results(self, folder: Path) -> list[str]:
        """The last validation in detail, as lines of the log."""
        return []
