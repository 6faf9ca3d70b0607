"""A trained model, ready to use: the base of `Detector` and `TrainedClassifier`.

Its errors are UserErrors.
"""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, get_args

import torch
from torch import nn
from typing_extensions import Self, TypeVar

from retina_dist.base.arguments import Suggests, public
from retina_dist.base.console import configure_logging, heartbeat
from retina_dist.base.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    UserError,
    describe_error,
)
from retina_dist.base.files import Url, check_folder, parse_path
from retina_dist.base.redaction import redacted
from retina_dist.base.registry import lookup, names_class, target_of
from retina_dist.base.settings import make, validate
from retina_dist.base.text import truncate
from retina_dist.base.torch_files import remedy_of
from retina_dist.config.run_config import (
    TASKS,
    ModelSettings,
    OfCheckpoint,
    command_of_task,
    data_settings_of,
    task_of_checkpoint,
)
from retina_dist.data.images import FORMS, AnyImage
from retina_dist.data.settings import ImageDataSettings
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.engine.precision import Precision, autocast
from retina_dist.engine.task import Task
from retina_dist.model.weights import is_torchvision_name
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import resolve_device
from retina_dist.strategies.select import strategy_of
from retina_dist.strategies.settings import StrategyConfig, StrategySettings
from retina_dist.task.image_task import Evaluator

logger = logging.getLogger(__name__)

# What a checkpoint says of its training.
RECORD = (
    "step",
    "metrics",
    "best",
    "config",
    "images",
    "world_size",
    "versions",
    "calibration",
    "origin",
)
# Data settings that say where files are.
PLACES = ("root", "train_annotations", "train_images", "val_annotations", "val_images", "classes")

# Settings that limit a detector's output, and torchvision's names of them in a model.
LIMITS = {
    "score_threshold": "score_thresh",
    "nms_threshold": "nms_thresh",
    "detections_per_image": "detections_per_img",
}

T = TypeVar("T")
D = TypeVar("D", bound=ImageDataSettings)
Input = TypeVar("Input", default=Any)
Output = TypeVar("Output", default=Any)
Result = TypeVar("Result", default=Any)  # of `evaluate`


class Predictor(Suggests, ABC, Generic[Input, Output, Result]):
    """A network in evaluation mode on a device.

    Images are prepared as in the training's validation.

    `kind` is its name in messages, `task` the task that trains it, `Answer` the TypedDict of
    `to_dict`. `record` is what its checkpoint says of the training, `source` where that lies.
    `whole` is the predictor of whole images, of one that looks at tiles.
    """

    kind: ClassVar[str]
    task: ClassVar[str]
    Answer: ClassVar[type]
    data_module: ClassVar[type]
    evaluator_class: ClassVar[type[Evaluator]]
    record: Mapping[str, Any] = {}
    source: str | None = None
    whole: Predictor | None = None

    def __init__(
        self, model: nn.Module, device: str | torch.device = "cpu", precision: str = "fp32"
    ) -> None:
        self.device = _checked(device, precision)
        self.precision = precision
        self.autocast = autocast(self.device, precision)
        self.model: Any = model.to(self.device).eval()

    def __repr__(self) -> str:
        """Classes, input and limits, device, and the checkpoint without what gives access."""
        facts = [f"{len(self.class_names)} classes: {truncate(self.class_names)}"]
        for name, value in self.metadata().items():
            if isinstance(value, int | float):
                facts.append(f"{name}={value:g}")
        facts += (f"device={self.device}", f"precision={self.precision}")
        if self.source:
            facts.append(f"checkpoint={redacted(self.source)}")
        return f"{type(self).__name__}({', '.join(facts)})"

    @property
    def temperature(self) -> float:
        """What divides the logits of scores: 1, or what `evaluate calibrate=true` has fitted."""
        return float(self.record.get("calibration", {}).get("temperature", 1))

    @classmethod
    @public
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
        model: ModelSettings | type[ModelSettings] | None = None,
    ) -> Self:
        """The model that a run saved, with averaged weights if it kept any.

        Args:
            path: a run folder or a .pt file, which may be a URL. A detector also takes the name of
                torchvision's weights, such as `RetinaNet_ResNet50_FPN_Weights.COCO_V1`.
            device: such as cpu, cuda:1 or auto.
            precision: auto, fp32, tf32, bf16 or fp16.
            model: the settings of a model from outside the package, which a checkpoint does not
                name, or their class for the checkpoint's values.

        Raises CheckpointError for a file that does not hold such a model.
        """
        if not isinstance(path, str | Path):
            raise ConfigError(
                f"checkpoint is of type {type(path).__name__}; give the path of a .pt file."
            )
        if is_torchvision_name(str(path)):
            return cls.from_torchvision(str(path), device=device, precision=precision)
        content = load_checkpoint(path)
        return cls.from_content(content, str(path), model, device=device, precision=precision)

    @classmethod
    def from_torchvision(cls, name: str, **how: Any) -> Self:
        """The model of torchvision's published weights; `how` are device and precision.

        Raises CheckpointError for a task without any.
        """
        raise CheckpointError(
            f"{name} are torchvision's weights; give a trained {cls.kind}'s checkpoint."
        )

    @classmethod
    def from_content(
        cls,
        content: Mapping[str, Any],
        source: str,
        model: ModelSettings | type[ModelSettings] | None = None,
        **how: Any,
    ) -> Self:
        """As `from_checkpoint`, of a checkpoint that was read already.

        `source` is its name in errors.
        """
        task = task_of_checkpoint(content)
        if task != cls.task:
            raise CheckpointError(
                f"{source} is a checkpoint of task={task}, not of a {cls.kind}; "
                f"give a {cls.kind}'s, or use its class, rd.Detector or rd.TrainedClassifier."
            )
        _checked(**how)  # here, so that the error does not blame the checkpoint

        try:
            if isinstance(model, type):
                section = dict(content["config"]["model"])
                section.pop("_target_", None)  # the class is named again, not looked up
                model = make(model, section)
                validate(model, "model.")
            network, arguments = cls._read(content, model)
            weights = content["model"]
            if content["ema"]:
                weights = content["ema"]["model"]
            network.load_state_dict(weights)
            predictor = cls(network, **arguments, **how)
            predictor.record = {name: content[name] for name in RECORD if name in content}
            if not 0 < predictor.temperature < math.inf:
                raise ValueError(f"its temperature is {predictor.temperature}")
        except Exception as error:  # of whatever the file holds instead
            reason = describe_error(error)
            if isinstance(error, UserError):
                reason = str(error).split(";")[0].rstrip(".")
            if "model_arguments" not in content and not target_of(model):
                reason = "its model is from outside the package, which a checkpoint does not name"
            raise CheckpointError(
                f"{source} does not describe a {cls.kind} ({reason}); {remedy_of(content)}."
            ) from error

        predictor.source = source
        return predictor

    @classmethod
    @abstractmethod
    def _read(
        cls, content: Mapping[str, object], model: ModelSettings | None
    ) -> tuple[nn.Module, dict[str, Any]]:
        """The network without its weights, and the other arguments of the class.

        Raises any error for a wrong value.
        """

    @abstractmethod
    def prepare(self, image: AnyImage) -> Input:
        """The network's input of one image; on the CPU, in any thread."""

    @abstractmethod
    def run(self, prepared: Sequence[Input]) -> list[Output]:
        """The output for each of what `prepare` made, on the CPU."""

    @abstractmethod
    def to_dict(self, output: Output) -> dict[str, Any]:
        """The output as plain values, an `Answer`."""

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes that an answer can have."""
        return ()

    def metadata(self) -> dict[str, Any]:
        """The model's input and classes as JSON values, for an exported file and the model card."""
        return {}

    def val_of(self, data: Any) -> object:
        """The validation set of `data`.

        Raises ConfigError where there is none, and DataError where it has other classes.
        """
        raise NotImplementedError

    def evaluator_of(self, val: Any, data: Any, strategy: DistributedStrategy) -> Any:
        """What evaluates the model on the strategy's device over `val`, read as `data` says."""
        if val.held_out:
            logger.info(f"evaluating on {val.describe()}")
        module = self.data_module(
            data,
            train=None,
            val=val,
            rank=strategy.rank,
            world_size=strategy.world_size,
            device=strategy.device,
        )
        evaluator = self.evaluator_class(
            val, module.val_batches, strategy, autocast(strategy.device, self.precision)
        )
        evaluator.temperature = self.temperature
        return evaluator

    @public
    def evaluate(self, data: object, *, strategy: StrategySettings | None = None) -> Result:
        """The metrics over the validation set of `data`; every rank calls it.

        The processes share the images. `strategy` is by default the launcher's, on this model's
        device. Raises the errors of `val_of`.
        """
        settings = strategy or StrategyConfig(device=str(self.device))
        with strategy_of(settings) as job, configure_logging(job.rank), heartbeat():
            val = job.run_collectively(lambda: self.val_of(data))
            with self.on(job.device):
                return self.evaluator_of(val, data, job).evaluate(self.model)

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """The model on `device`, and back on its own afterwards."""
        before = self.device
        self.device = device
        self.model.to(device)
        try:
            yield
        finally:
            self.device = before
            self.model.to(before)

    def run_each(self, images: AnyImage | Iterable[AnyImage]) -> list[Output]:
        """The output for each image, taken one by one, so that none depends on another.

        Raises DataError for what is no image, and ConfigError in training mode.
        """
        if self.model.training:
            raise ConfigError("the model is in training mode; call model.eval() before.")
        if isinstance(images, AnyImage):
            images = [images]
        if not isinstance(images, Iterable) or isinstance(images, bytes | Mapping):
            raise DataError(
                f"images is of type {type(images).__name__}; give {FORMS}, or a list of them."
            )
        return [self.run([self.prepare(image)])[0] for image in images]


def _checked(device: str | torch.device = "cpu", precision: str = "fp32") -> torch.device:
    """The device by its name. Raises ConfigError for a device or precision that cannot be used."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision={precision} is not one of {', '.join(get_args(Precision))}.")
    return resolve_device(str(device))


def changed(value: T, **attributes: object) -> T:
    """A copy of a predictor or a model with other attributes, such as its method `prepare`."""
    other = copy.copy(value)
    vars(other).update(attributes)
    return other


def task_of(config: OfCheckpoint) -> type[Task]:
    """The class of the task that the command's `checkpoint` was trained for.

    Without a checkpoint, and for torchvision's weights, it is detection's. Raises ConfigError where
    the task is from outside the package and not named again.
    """
    if config.outside_task is not None:
        return config.outside_task
    checkpoint = config.checkpoint
    if checkpoint is None or is_torchvision_name(checkpoint):
        return lookup("task", TASKS[0])

    content = load_checkpoint(checkpoint)
    settings = content.get("config")
    if isinstance(settings, dict):
        named_again = {"task": config.outside_task, "model": config.outside_model}
        for group, given in named_again.items():
            section: Any = settings.get(group)
            if names_class(section) and given is None:
                raise ConfigError(
                    f"{checkpoint} is of {section['_target_']} from outside the package; "
                    f"name its entry again: {group}=NAME --config-dir FOLDER."
                )
    return lookup("task", task_of_checkpoint(content))


def command_of(config: OfCheckpoint, name: str) -> Callable[..., Any]:
    """The command NAME of the task that the command's `checkpoint` was trained for.

    Raises ConfigError as `task_of` and `command_of_task`.
    """
    return command_of_task(task_of(config), name)


def data_of_checkpoint(
    content: Mapping[str, object], schema: type[D], source: object, **places: str | None
) -> D:
    """The data settings that the checkpoint `source` holds.

    `places`, such as root=FOLDER, replace all that it names. Without any, local files are read
    where it says. A URL is not followed, since the checkpoint's author would decide which server
    is asked, with this machine's credentials; nor is anything drawn. Raises ConfigError.
    """
    data = data_settings_of(content, schema, source)
    values = vars(data)
    data = data.with_values(**dict.fromkeys(values.keys() & {"shapes", "drawn"}))
    named: dict[str, str | None] = {key: values[key] for key in PLACES if key in values}

    if set(places.values()) - {None}:
        root = places.get("root")
        if root is not None and not isinstance(parse_path(root), Url):
            check_folder(root)
        return data.with_values(**dict.fromkeys(named) | places)

    for key, value in named.items():
        if value is not None and isinstance(parse_path(value), Url):
            raise ConfigError(
                f"{source} has data.{key}={value}, and such a URL is followed only where you give "
                "it; give root=URL or FOLDER."
            )
    root = named["root"]
    if root is not None and not parse_path(root).is_dir():
        raise ConfigError(
            f"{source} has its data in {root}, which is not a folder here; give root=FOLDER."
        )
    return data
