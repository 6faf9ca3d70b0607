"""Training from Python: settings as objects instead of a command line, run by the same assembler.

    trainer = Trainer(
        data=DetectionData(root="/data/mine"),
        optimizer=OptimizerConfig(lr=0.01),
        max_duration="12epochs",
    )
    metrics = trainer.fit()
    detector = trainer.detector()

`ClassifierTrainer` is the same for image classification.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from retina_dist.base.arguments import Numbers, Suggests, check_types, public
from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import lookup
from retina_dist.base.settings import MISSING, setting, validate
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.metrics import ClassificationResult
from retina_dist.classification.settings import ClassificationData, ClassifierConfig
from retina_dist.config.run_config import (
    AugmentationConfig,
    DataSettings,
    ModelSettings,
    RunConfig,
    TaskConfig,
    name_of_root,
    task_class,
)
from retina_dist.data.augmentation import FunctionSettings
from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.detection.detector import Detector
from retina_dist.detection.readers.torch_dataset import TorchDatasetConfig
from retina_dist.detection.settings import DetectionData, DetectorSettings, ModelConfig
from retina_dist.engine.checkpoint.store import BEST, LAST, read_manifest
from retina_dist.engine.plan import TrainerConfig, to_steps
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.run import assemble
from retina_dist.run.resume import checkpoint_folder
from retina_dist.strategies.settings import StrategyConfig
from retina_dist.tracking.callbacks import Callback
from retina_dist.tracking.settings import LoggingConfig


def _values(settings: object, kind: type) -> dict[str, Any]:
    """The settings that the dataclass `kind` has too, by name."""
    known = [each.name for each in fields(kind)]
    return {name: value for name, value in vars(settings).items() if name in known}


@dataclass(kw_only=True, eq=False)
class _Run(TrainerConfig, Suggests):
    """Base of `Trainer` and `ClassifierTrainer`."""

    _task: ClassVar[str]
    max_duration: str = field(kw_only=True)  # the one setting of `trainer` without a default
    data: DataSettings
    model: ModelSettings
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    augmentation: AugmentationConfig | Callable[..., object] = field(
        default_factory=AugmentationConfig
    )
    seed: int = RunConfig.seed
    output_dir: str | None = RunConfig.output_dir
    resume: str | None = RunConfig.resume
    dry_run: bool = RunConfig.dry_run
    gpu: str | None = RunConfig.gpu
    callbacks: list[Callback] = setting(
        [], remedy="give objects of classes below rd.Callback, as callbacks=[MyCallback()]"
    )

    @public
    def __post_init__(self) -> None:
        self.run_folder: Path | None = None  # of the last `fit`
        if isinstance(self.data, DetectionData | ClassificationData) and self.data.name == MISSING:
            self.data = self.data.with_values(name=name_of_root(self.data.root))
        if not isinstance(self.augmentation, AugmentationConfig):
            given = self.augmentation
            self.augmentation = FunctionSettings()
            vars(self.augmentation)["function"] = given
        to_steps(
            str(self.max_duration), key="max_duration", num_images=1, batch_size=1
        )  # raises for no duration
        check_types(self, type(self))
        validate(self.config)

    @classmethod
    @public
    def from_config(cls, config: RunConfig, callbacks: Sequence[Callback] = ()) -> Self:
        """The trainer of composed settings.

        Such as a recipe's: `load_config("train", ["experiment=bccd", "data.root=/data"])`.
        """
        if not isinstance(config, RunConfig):
            given = type(config).__name__
            raise ConfigError(f'config is of type {given}; give rd.load_config("train", [...]).')
        if not issubclass(task_class(config), lookup("task", cls._task)):
            raise ConfigError(
                f"task={config.task.name} is not for {cls.__name__}; a classifier is for "
                "rd.ClassifierTrainer, a detector for rd.Trainer, others train on the command line."
            )
        trainer = _values(config.trainer, TrainerConfig)
        return cls(**trainer, **_values(config, cls), callbacks=list(callbacks))

    @property
    def config(self) -> RunConfig:
        """The settings as the command line has them."""
        trainer = TrainerConfig(**_values(self, TrainerConfig))
        return RunConfig(task=TaskConfig(self._task), trainer=trainer, **_values(self, RunConfig))

    @public
    def fit(self) -> dict[str, float]:
        """Train, and return the metrics of the last validation, such as "val/loss".

        They are equal on all ranks. `run_folder` then has the files of the command line:
        checkpoints, metrics.csv, report.html and images. With `dry_run=True` the plan is logged,
        nothing is trained and the result is empty. Raises UserError for what you can correct, and
        Preempted after SIGTERM or an interrupt, with a checkpoint to continue from by
        `resume="auto"`.
        """
        metrics, self.run_folder = assemble.fit(self.config, self.callbacks)
        return Numbers(metrics)

    @property
    def checkpoint(self) -> str:
        """Path or URL of the last `fit`'s best checkpoint, or of its newest without validation.

        Raises ConfigError before `fit`.
        """
        if self.run_folder is None:
            raise ConfigError(f"{type(self).__name__} has no checkpoint yet; call fit() first.")
        folder = checkpoint_folder(self.config, self.run_folder)
        has_best = any(BEST in entry.names for entry in read_manifest(folder))
        return str(folder / (BEST if has_best else LAST))


@dataclass(kw_only=True, eq=False)
class Trainer(_Run):
    """A detector's training by its settings.

    They have the command line's names, defaults and limits, which docs/settings.md lists.
    `Trainer`'s own arguments are the keys of `trainer`, such as `max_duration` and `precision`;
    those of the other sections are the arguments of `DetectionData`, `ModelConfig` and so on.
    `data` is a `DetectionData` for files or a `TorchDatasetConfig` for your own
    `torch.utils.data.Dataset`. `augmentation` is a function of your own, such as a torchvision
    pipeline, see docs/data.md. `callbacks` hear of each step, row of metrics and validation, see
    `Callback`. The settings are checked here: raises ConfigError, which names the key.

    Under torchrun, horovodrun or mpirun every process makes the same Trainer and calls the same
    methods. A script needs no `if __name__ == "__main__":`, because data workers do not import it.
    """

    _task: ClassVar[str] = "detection"
    data: DetectionData | TorchDatasetConfig
    model: DetectorSettings = field(default_factory=ModelConfig)

    @public
    def detector(self, device: str = "cpu", precision: str = "fp32") -> Detector:
        """The trained detector, from `checkpoint`. Raises ConfigError before `fit`."""
        return Detector.from_checkpoint(
            self.checkpoint, device=device, precision=precision, model=self.model
        )

    @public
    def evaluate(self) -> CocoResult:
        """COCO metrics of `checkpoint` over the validation set of `data`.

        They are computed in the training's precision; every rank calls it.
        """
        return self.detector(precision=self.precision).evaluate(self.data, strategy=self.strategy)


@dataclass(kw_only=True, eq=False)
class ClassifierTrainer(_Run):
    """A classifier's training by its settings; all else is as in `Trainer`."""

    _task: ClassVar[str] = "classification"
    data: ClassificationData
    model: ClassifierConfig = field(default_factory=ClassifierConfig)

    @public
    def classifier(self, device: str = "cpu", precision: str = "fp32") -> TrainedClassifier:
        """The trained classifier, from `checkpoint`. Raises ConfigError before `fit`."""
        return TrainedClassifier.from_checkpoint(
            self.checkpoint, device=device, precision=precision
        )

    @public
    def evaluate(self) -> ClassificationResult:
        """Metrics of `checkpoint` over the validation set of `data`.

        They are computed in the training's precision; every rank calls it.
        """
        return self.classifier(precision=self.precision).evaluate(self.data, strategy=self.strategy)
