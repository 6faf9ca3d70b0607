"""A trained model, ready to use: the base of `Detector` and `TrainedClassifier`. Errors are a UserError."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, get_args

import PIL.Image
import torch
from torch import nn
from typing_extensions import Self, TypeVar

from retina_dist.base.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ImageError,
    UserError,
    describe_error,
)
from retina_dist.base.files import Url, check_folder, parse_path
from retina_dist.base.registry import is_custom, lookup, names_class
from retina_dist.base.settings import make, validate
from retina_dist.base.text import escape
from retina_dist.base.torch_files import remedy_of
from retina_dist.config.run_config import (
    TASKS,
    ModelSettings,
    data_settings_of,
    task_of_checkpoint,
)
from retina_dist.data.images import FORMS, SUFFIXES, AnyImage, find_images, read_image
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.engine.precision import Precision, autocast
from retina_dist.engine.task import Task
from retina_dist.model.weights import is_torchvision_name
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.devices import resolve_device
from retina_dist.strategies.select import strategy_of
from retina_dist.strategies.settings import StrategyConfig, StrategySettings
from retina_dist.task.image_task import Evaluator
from retina_dist.tracking.console import configure_logging, heartbeat

if TYPE_CHECKING:
    from retina_dist.predict import PredictConfig

# Files that predict writes beside the images.
RESULTS = (
    "results.json",
    "images.json",
    "predictions.csv",
    "labels.json",
    "label_studio.json",
    "annotations.xml",
)
# What a checkpoint says of its training.
RECORD = ("step", "metrics", "best", "config", "images", "world_size", "versions")
# Data settings that say where files are.
PLACES = ("root", "train_annotations", "train_images", "val_annotations", "val_images", "classes")

Input = TypeVar("Input")
Output = TypeVar("Output")
Result = TypeVar("Result", default=Any)  # of `evaluate`


class Predictor(ABC, Generic[Input, Output, Result]):
    """A network in evaluation mode on a device; images are prepared as in the training's validation.

    `kind` is its name in messages, `task` the task that trains it, `Answer` the TypedDict of `to_dict`.
    """

    kind: ClassVar[str]
    task: ClassVar[str]
    Answer: ClassVar[type]
    record: Mapping[str, Any] = {}  # what the checkpoint says of the training

    def __init__(
        self, model: nn.Module, device: str | torch.device = "cpu", precision: str = "fp32"
    ) -> None:
        self.device, self.precision = _checked(device, precision), precision
        self.autocast = autocast(self.device, precision)
        self.model: Any = model.to(self.device).eval()

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        *,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
        model: ModelSettings | type[ModelSettings] | None = None,
    ) -> Self:
        """The model that a run saved, with averaged weights if it kept any; `path` may be a URL. Raises CheckpointError.

        A detector also takes the name of torchvision's weights, such as `RetinaNet_ResNet50_FPN_Weights.COCO_V1`. A checkpoint does
        not name a model from outside the package: `model` are its settings, or their class for the checkpoint's values.
        """
        if not isinstance(path, str | Path):
            raise ConfigError(
                f"checkpoint is of type {type(path).__name__}; give the path of a .pt file."
            )
        if is_torchvision_name(str(path)):
            return cls.from_torchvision(str(path), device=device, precision=precision)
        return cls.from_content(
            load_checkpoint(path), str(path), model, device=device, precision=precision
        )

    @classmethod
    def from_torchvision(cls, name: str, **how: Any) -> Self:
        """The model of torchvision's published weights; `how` are device and precision. Raises CheckpointError without any."""
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
        """As `from_checkpoint`, of a checkpoint that was read already; `source` is its name in errors."""
        if (task := task_of_checkpoint(content)) != cls.task:
            raise CheckpointError(
                f"{source} is a checkpoint of task={task}, not of a {cls.kind}; give one of those."
            )
        _checked(**how)  # here, so that the error does not blame the checkpoint
        try:
            if isinstance(model, type):
                model = make(model, content["config"]["model"])
                validate(model, "model.")
            network, arguments = cls._read(content, model)
            network.load_state_dict(content["ema"]["model"] if content["ema"] else content["model"])
            predictor = cls(network, **arguments, **how)
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            AssertionError,
            RuntimeError,
        ) as error:
            why = (
                str(error).split(";")[0].rstrip(".")
                if isinstance(error, UserError)
                else describe_error(error)
            )
            if "model_arguments" not in content and not is_custom(model):
                why = "its model is from outside the package, which a checkpoint does not name"
            raise CheckpointError(
                f"{source} does not describe a {cls.kind} ({why}); {remedy_of(content)}."
            ) from error
        predictor.record = {name: content[name] for name in RECORD if name in content}
        return predictor

    @classmethod
    @abstractmethod
    def _read(
        cls, content: Mapping[str, Any], model: ModelSettings | None
    ) -> tuple[nn.Module, dict[str, Any]]:
        """The network without its weights, and the other arguments of the class. Raises any error for a wrong value."""

    @abstractmethod
    def prepare(self, image: AnyImage) -> Input:
        """The network's input of one image; on the CPU, in any thread."""

    @abstractmethod
    def run(self, prepared: Sequence[Input]) -> list[Output]:
        """The output for each of what `prepare` made, on the CPU."""

    @abstractmethod
    def to_dict(self, output: Output, score_threshold: float) -> dict[str, Any]:
        """The output as plain values, an `Answer`, without what scores below `score_threshold`."""

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes that an answer can have."""
        return ()

    def metadata(self) -> dict[str, Any]:
        """The model's input and classes as JSON values, for an exported file and the model card."""
        return {}

    def val_of(self, data: Any) -> Any:
        """The validation set of `data`. Raises ConfigError where there is none, DataError where it has other classes."""
        raise NotImplementedError

    def evaluator_of(self, val: Any, data: Any, strategy: DistributedStrategy) -> Evaluator[Result]:
        """What evaluates the model, on the strategy's device, over the images `val`, read as `data` says."""
        raise NotImplementedError

    def evaluate(self, data: Any, *, strategy: StrategySettings | None = None) -> Result:
        """The metrics over the validation set of `data`, shared out over the processes; every rank calls it.

        `strategy` is by default the launcher's, on this model's device. Raises the errors of `val_of`.
        """
        settings = strategy or StrategyConfig(device=str(self.device))
        with strategy_of(settings) as job, configure_logging(job.rank), heartbeat():
            val = job.run_collectively(lambda: self.val_of(data))
            with self.on(job.device):
                return self.evaluator_of(val, data, job).evaluate(self.model)

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """The model on `device`, and back on its own afterwards."""
        before, self.device = self.device, device
        self.model.to(device)
        try:
            yield
        finally:
            self.device = before
            self.model.to(before)

    def run_each(self, images: AnyImage | Iterable[AnyImage]) -> list[Output]:
        """The output for each image; they are taken one by one, so that no output depends on another. Raises DataError."""
        if isinstance(images, AnyImage):
            images = [images]
        if not isinstance(images, Iterable) or isinstance(images, bytes | Mapping):
            raise DataError(
                f"images is of type {type(images).__name__}; give {FORMS}, or a list of them."
            )
        return [self.run([self.prepare(image)])[0] for image in images]


def _checked(device: str | torch.device = "cpu", precision: str = "fp32") -> torch.device:
    """The device by its name. Raises ConfigError for a device or a precision that cannot be used."""
    if precision not in get_args(Precision):
        raise ConfigError(f"precision={precision} is not one of {', '.join(get_args(Precision))}.")
    return resolve_device(str(device))


def task_of(config: Any) -> type[Task]:
    """The class of the task that `config.checkpoint` was trained for; without one, and for torchvision's weights, detection's.

    `config` is an `OfCheckpoint`. Raises ConfigError where the task is from outside the package and not named again.
    """
    if config.outside_task is not None:
        return config.outside_task
    if config.checkpoint is None or is_torchvision_name(config.checkpoint):
        return lookup("task", TASKS[0])
    content = load_checkpoint(config.checkpoint)
    settings: Any = content.get("config")
    for group in ("task", "model") if isinstance(settings, dict) else ():
        section: Any = settings.get(group)
        if names_class(section) and getattr(config, f"outside_{group}") is None:
            outside = f"{config.checkpoint} is of {section['_target_']} from outside the package"
            raise ConfigError(f"{outside}; name its entry again: {group}=NAME --config-dir FOLDER.")
    return lookup("task", task_of_checkpoint(content))


D = TypeVar("D")


def data_of_checkpoint(
    content: Mapping[str, Any], schema: type[D], source: object, **places: str | None
) -> D:
    """The data settings that a checkpoint, `source`, holds; `places`, such as root=FOLDER, replace all that it names.

    Without any, local files are read where it says. A URL is not followed, since the checkpoint's author would decide
    which server is asked, with this machine's credentials; nor is anything drawn. Raises ConfigError.
    """
    data: Any = data_settings_of(content, schema, source)
    data = data.with_values(**{name: None for name in ("shapes", "drawn") if hasattr(data, name)})
    named = [name for name in PLACES if hasattr(data, name)]
    if any(place is not None for place in places.values()):
        if (root := places.get("root")) is not None and not isinstance(parse_path(root), Url):
            check_folder(root)
        return data.with_values(**dict.fromkeys(named) | places)
    for key in named:
        if (value := getattr(data, key)) is not None and isinstance(parse_path(value), Url):
            place = f"{source} has data.{key}={value}"
            raise ConfigError(
                f"{place}, and such a URL is followed only where you give it; give root=URL or FOLDER."
            )
    if data.root is not None and not parse_path(data.root).is_dir():
        raise ConfigError(
            f"{source} has its data in {data.root}, which is not a folder here; give root=FOLDER."
        )
    return data


P = TypeVar("P", bound=Predictor[Any, Any])


def predict_files(
    config: PredictConfig,
    predictor_of: Callable[..., P],
    draw: Callable[..., tuple[PIL.Image.Image, str]],
) -> tuple[P, dict[int, tuple[Path, Any]]]:
    """Draw `output_dir`/NAME.jpg for each image of `input`; return the model, and file and output by number in the list of files.

    `draw` makes the picture of model, pixels and output, with a few words. An unreadable file is named and left out; if
    all are, DataError. `output_dir` is by default the first free one of predictions, predictions-2, ... Nothing is overwritten.
    """
    files = find_images(config.input)
    if config.output_dir is None:
        names = (f"predictions-{number}" if number > 1 else "predictions" for number in count(1))
        config.output_dir = next(name for name in names if not Path(name).exists())
    folder = Path(config.output_dir)
    stems: dict[str, None] = {}
    for number, file in enumerate(files):
        name = file.stem
        while name in stems:
            name += f"_{number}"
        stems[name] = None
    written = [folder / name for name in (*(f"{stem}.jpg" for stem in stems), *RESULTS)]
    if lost := [path for path in written if path.exists()]:
        raise ConfigError(
            f"{lost[0]} exists and would be overwritten; give another output_dir, or leave it out."
        )
    predictor = predictor_of(config, config.device)
    folder.mkdir(parents=True, exist_ok=True)
    outputs: dict[int, tuple[Path, Any]] = {}
    for number, (file, name) in enumerate(zip(files, stems, strict=True)):
        try:
            pixels = read_image(file, max_pixels=config.max_pixels)
        except ImageError as error:
            print(f"warning: {escape(str(error).split(';')[0])}; left out", file=sys.stderr)
            continue
        (output,) = predictor.run_each(pixels)
        picture, words = draw(predictor, pixels, output)
        picture.save(folder / f"{name}.jpg", quality=92)
        print(escape(f"{file}: {words} -> {folder / name}.jpg"))
        outputs[number] = file, output
    if not outputs:
        kinds = ", ".join(sorted(SUFFIXES))
        raise DataError(
            f"none of the {len(files)} files of input={config.input} is a readable image; give {kinds}."
        )
    return predictor, outputs
