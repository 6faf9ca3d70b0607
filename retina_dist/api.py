"""Training from Python: settings as objects instead of a command line, run by the same assembler.

trainer = Trainer(data=DataConfig(root="/data/mine"), optimizer=OptimizerConfig(lr=0.01), max_duration="12epochs")
metrics = trainer.fit()
detector = trainer.detector()
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, field, fields
from pathlib import Path

from typing_extensions import Self

from retina_dist.config.fields import MISSING, check_types, validate
from retina_dist.config.train import RunConfig, TrainConfig
from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.detection.detector import Detector
from retina_dist.detection.readers.torch_dataset import DatasetConfig
from retina_dist.detection.settings import DataConfig, ModelConfig
from retina_dist.engine.duration import to_steps
from retina_dist.engine.precision import Precision
from retina_dist.engine.settings import TrainerConfig
from retina_dist.errors import ConfigError
from retina_dist.files import names_in
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.reporting.settings import LoggingConfig
from retina_dist.run import assemble
from retina_dist.run.folder import checkpoint_folder
from retina_dist.strategies.settings import NcclConfig, StrategyConfig


@dataclass(kw_only=True, eq=False)
class Trainer(TrainerConfig):
    """A training by its settings, which have the names, defaults and limits of the command line's: docs/settings.md lists them.

    `Trainer`'s own arguments are the keys of `trainer`, such as `max_duration` and `precision`; those of the other sections are
    the arguments of `DataConfig`, `ModelConfig` and so on. `data` is a `DataConfig` for files or a `DatasetConfig` for your own
    `torch.utils.data.Dataset`. The settings are checked here: raises ConfigError, which names the key.

    Under torchrun, horovodrun or mpirun every process makes the same Trainer and calls the same methods. A script needs no
    `if __name__ == "__main__":`, because data workers do not import it.
    """

    max_duration: str = field(kw_only=True)  # the one setting of `trainer` without a default
    data: DataConfig | DatasetConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    seed: int = TrainConfig.seed
    output_dir: str | None = TrainConfig.output_dir
    resume: str | None = TrainConfig.resume
    dry_run: bool = TrainConfig.dry_run

    def __post_init__(self) -> None:
        self.run_folder: Path | None = None  # of the last `fit`
        if isinstance(self.data, DataConfig) and self.data.name == MISSING:
            self.data = copy(self.data)
            self.data.name = re.split(r"[/\\]", str(self.data.root or "").rstrip("/\\"))[-1].strip(".") or "data"
        check_types(self, Trainer)
        to_steps(self.max_duration, key="max_duration", num_images=1, batch_size=1)  # raises for what is no duration
        validate(self.config)

    @classmethod
    def from_config(cls, config: RunConfig) -> Self:
        """The Trainer of composed settings, such as a recipe's: `load_config("train", ["experiment=bccd", "data.root=/data"])`."""
        if not (isinstance(config, TrainConfig) and config.task.name == "detection"):
            raise ConfigError(
                f"task={config.task.name} trains on the command line only; Trainer is for task=detection."
            )
        sections = {f.name: getattr(config, f.name) for f in fields(cls) if hasattr(config, f.name)}
        return cls(**{f.name: getattr(config.trainer, f.name) for f in fields(TrainerConfig)}, **sections)

    @property
    def config(self) -> TrainConfig:
        """The settings as the command line has them."""
        trainer = TrainerConfig(**{f.name: getattr(self, f.name) for f in fields(TrainerConfig)})
        sections = {f.name: getattr(self, f.name) for f in fields(TrainConfig) if f.name in self.__dataclass_fields__}
        return TrainConfig(trainer=trainer, **sections)

    def fit(self) -> dict[str, float]:
        """Train, and return the metrics of the last validation: "coco/AP", "val/loss" and others, equal on all ranks.

        The run folder, `run_folder`, is that of the command line: checkpoints, metrics.csv, curves and images. With
        `dry_run=True` the plan is logged, nothing is trained and the result is empty. Raises UserError for what you can correct,
        and Preempted after SIGTERM or an interrupt, with a checkpoint to go on from by `resume="auto"`.
        """
        metrics, self.run_folder = assemble.fit(self.config)
        return metrics

    @property
    def checkpoint(self) -> str:
        """Path or URL of the last `fit`'s best checkpoint, or of its newest without validation. Raises ConfigError before."""
        if self.run_folder is None:
            raise ConfigError(
                "Trainer has no checkpoint yet; call fit() first, or use Detector.from_checkpoint(PATH) of an earlier run."
            )
        folder = checkpoint_folder(self.config, self.run_folder)
        return str(folder / ("best.pt" if "best.pt" in names_in(folder) else "last.pt"))

    def detector(self, device: str = "cpu", precision: Precision = "fp32") -> Detector:
        """The trained detector, from `checkpoint`. Raises ConfigError before `fit`."""
        return Detector.from_checkpoint(self.checkpoint, device=device, precision=precision)

    def evaluate(self) -> CocoResult:
        """COCO metrics of `checkpoint` over the validation set of `data`, in the training's precision; every rank calls it."""
        detector = self.detector(precision=self.precision)  # type: ignore[arg-type]
        return detector.evaluate(self.data, strategy=self.strategy)
