"""The settings of a training: one section for each component."""

from __future__ import annotations

from dataclasses import dataclass, field

from retina_dist.config.fields import setting
from retina_dist.config.task_settings import DataSettings, ModelSettings, TaskConfig
from retina_dist.detection.settings import DataConfig, ModelConfig
from retina_dist.engine.settings import TrainerConfig
from retina_dist.errors import ConfigError
from retina_dist.gpus import find_gpu
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.reporting.settings import LoggingConfig
from retina_dist.strategies.settings import NcclConfig, StrategyConfig


@dataclass
class RunConfig:
    """The settings of a training, whatever its task, which has more of `data` and `model`."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    nccl: NcclConfig = field(default_factory=NcclConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    seed: int = setting(0, at_least=0)
    output_dir: str | None = setting(None, "null: runs/NAME, runs/NAME-2, ...")
    resume: str | None = setting(
        None, "null | auto (the run in output_dir, or the newest runs/NAME) | a checkpoint file"
    )
    launcher: str | None = setting(None, 'with --multirun: the launcher that starts each job, e.g. "horovodrun -np 2"')
    dry_run: bool = setting(False, "print the plan, with the memory that a step takes, and stop")
    gpu: str | None = setting(
        None,
        "a GPU's name, such as A100-40GB, or memory, such as 24GiB, to fit into; null: that of the GPU in use, if any",
    )
    debug: bool = setting(False, "show tracebacks")

    def check(self) -> None:
        """Raise ConfigError where settings of two sections exclude each other."""
        accumulate = self.trainer.micro_batches
        # https://github.com/pytorch/pytorch/pull/187732
        if getattr(self.strategy, "static_graph", False) and accumulate > 1:
            raise ConfigError(
                f"strategy.static_graph=true and trainer.accumulate={accumulate} do not go together, as torch would no longer "
                "average all gradients; give strategy.static_graph=false."
            )
        if self.gpu:
            find_gpu(self.gpu)
        if getattr(self.data, "synthetic", None) and self.trainer.overfit_batches:
            raise ConfigError("data.synthetic has no images to overfit; leave trainer.overfit_batches out.")


@dataclass
class TrainConfig(RunConfig):
    """`python -m retina_dist.train`, with the data and the model of the task `detection`."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
