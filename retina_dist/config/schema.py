"""The settings of every command, by its name. Layer 1."""

from __future__ import annotations

from retina_dist.benchmark.settings import (
    DataBenchmarkConfig,
    EvalBenchmarkConfig,
    MachineConfig,
    ModelBenchmarkConfig,
    ScalingConfig,
    StepConfig,
)
from retina_dist.config.commands import (
    ConvertConfig,
    DoctorConfig,
    EvaluateConfig,
    ExportConfig,
    ParityConfig,
    PredictConfig,
    ReplayConfig,
    ShardsConfig,
)
from retina_dist.config.fields import leaves, limits_of, validate
from retina_dist.config.train import RunConfig, TrainConfig
from retina_dist.config.trainer import TrainerConfig
from retina_dist.detection.settings import DataConfig, ModelConfig, ShapesConfig, category_names
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.reporting.settings import LoggingConfig
from retina_dist.serving.settings import ServeConfig
from retina_dist.strategies.settings import NcclConfig, StrategyConfig

COMMANDS: dict[str, type] = {
    "train": TrainConfig,
    "doctor": DoctorConfig,
    "shards": ShardsConfig,
    "parity": ParityConfig,
    "benchmark_step": StepConfig,
    "benchmark_scaling": ScalingConfig,
    "benchmark_model": ModelBenchmarkConfig,
    "benchmark_data": DataBenchmarkConfig,
    "benchmark_eval": EvalBenchmarkConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "serve": ServeConfig,
    "export": ExportConfig,
    "convert": ConvertConfig,
    "replay": ReplayConfig,
}

# Of the last composition: with the settings of classes from outside the package.
ACTIVE = dict(COMMANDS)

__all__ = [
    "ACTIVE",
    "COMMANDS",
    "ConvertConfig",
    "DataBenchmarkConfig",
    "DataConfig",
    "DoctorConfig",
    "EvalBenchmarkConfig",
    "EvaluateConfig",
    "ExportConfig",
    "LoggingConfig",
    "MachineConfig",
    "ModelBenchmarkConfig",
    "ModelConfig",
    "NcclConfig",
    "OptimizerConfig",
    "ParityConfig",
    "PredictConfig",
    "ReplayConfig",
    "RunConfig",
    "ScalingConfig",
    "ScheduleConfig",
    "ServeConfig",
    "ShapesConfig",
    "ShardsConfig",
    "StepConfig",
    "StrategyConfig",
    "TrainConfig",
    "TrainerConfig",
    "category_names",
    "leaves",
    "limits_of",
    "validate",
]
