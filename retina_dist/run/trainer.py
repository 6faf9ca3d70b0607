"""The base of the trainers of `api.py`: a run's settings as objects, checked and run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from retina_dist.base.arguments import Numbers, Suggests, check_types, public
from retina_dist.base.errors import ConfigError
from retina_dist.base.registry import lookup
from retina_dist.base.settings import MISSING, setting, validate
from retina_dist.config.run_config import (
    AugmentationConfig,
    DataSettings,
    ModelSettings,
    RunConfig,
    TaskConfig,
    name_of_root,
    task_class,
)
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
class TrainerBase(TrainerConfig, Suggests):
    """Base of `Trainer` and `ClassifierTrainer`: the settings of a run, as arguments."""

    _task: ClassVar[str]
    run_folder: ClassVar[Path | None] = None  # of the last `fit`
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
    resume: str | None = setting(
        RunConfig.resume, remedy='write "auto", a run folder or a checkpoint'
    )
    dry_run: bool = RunConfig.dry_run
    gpu: str | None = setting(
        RunConfig.gpu,
        remedy='it names a model, "A100-40GB"; strategy=rd.StrategyConfig(device="cuda:0") is one',
    )
    callbacks: list[Callback] = setting(
        [], remedy="give objects of classes below rd.Callback, as callbacks=[MyCallback()]"
    )

    @public
    def __post_init__(self) -> None:
        if isinstance(self.data, DataSettings) and self.data.name == MISSING:
            given = vars(self.data)
            if "root" in given:
                self.data = self.data.with_values(name=name_of_root(given["root"]))
        if not isinstance(self.augmentation, AugmentationConfig):
            function = self.augmentation
            self.augmentation = lookup("augmentation", "function").settings()
            vars(self.augmentation)["function"] = function
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
        metrics, self.run_folder = assemble.fit(  # type: ignore[misc]
            self.config, self.callbacks
        )
        return Numbers(metrics)

    @property
    def checkpoint(self) -> str:
        """Path or URL of the last `fit`'s best checkpoint, or of its newest without validation.

        Raises ConfigError before `fit`.
        """
        if self.run_folder is None:
            raise ConfigError(
                f"{type(self).__name__} has no checkpoint yet; call fit() first, or read an "
                "earlier run by rd.Detector.from_checkpoint(RUN), one of a classifier by "
                "rd.TrainedClassifier.from_checkpoint(RUN)."
            )
        folder = checkpoint_folder(self.config, self.run_folder)
        has_best = any(BEST in entry.names for entry in read_manifest(folder))
        return str(folder / (BEST if has_best else LAST))
