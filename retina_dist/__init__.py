"""RetinaNet on COCO-format data, with interchangeable distributed backends.

The public names are imported when first used: `import retina_dist` loads neither hydra nor pycocotools.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:  # for type checkers and editors; a test compares it with _PUBLIC
    from retina_dist.api import ClassifierTrainer as ClassifierTrainer
    from retina_dist.api import Trainer as Trainer
    from retina_dist.classification.classifier import TrainedClassifier as TrainedClassifier
    from retina_dist.classification.settings import ClassificationData as ClassificationData
    from retina_dist.classification.settings import ClassifierConfig as ClassifierConfig
    from retina_dist.classification.settings import DrawnClassesConfig as DrawnClassesConfig
    from retina_dist.config.compose import load_config as load_config
    from retina_dist.detection.detector import Detector as Detector
    from retina_dist.detection.model.retinanet import build_retinanet as build_retinanet
    from retina_dist.detection.readers.coco import Annotations as Annotations
    from retina_dist.detection.readers.coco import load_annotations as load_annotations
    from retina_dist.detection.readers.torch_dataset import TorchDatasetConfig as TorchDatasetConfig
    from retina_dist.detection.settings import DetectionData as DetectionData
    from retina_dist.detection.settings import ModelConfig as ModelConfig
    from retina_dist.detection.settings import ShapesConfig as ShapesConfig
    from retina_dist.errors import CheckpointError as CheckpointError
    from retina_dist.errors import ConfigError as ConfigError
    from retina_dist.errors import DataError as DataError
    from retina_dist.errors import Preempted as Preempted
    from retina_dist.errors import UserError as UserError
    from retina_dist.optim.settings import OptimizerConfig as OptimizerConfig
    from retina_dist.optim.settings import ScheduleConfig as ScheduleConfig
    from retina_dist.reporting.settings import LoggingConfig as LoggingConfig
    from retina_dist.strategies.settings import StrategyConfig as StrategyConfig

_NAMES = {  # of each module
    "api": "ClassifierTrainer Trainer",
    "classification.classifier": "TrainedClassifier",
    "classification.settings": "ClassificationData ClassifierConfig DrawnClassesConfig",
    "config.compose": "load_config",
    "detection.detector": "Detector",
    "detection.model.retinanet": "build_retinanet",
    "detection.readers.coco": "Annotations load_annotations",
    "detection.readers.torch_dataset": "TorchDatasetConfig",
    "detection.settings": "DetectionData ModelConfig ShapesConfig",
    "errors": "CheckpointError ConfigError DataError Preempted UserError",
    "optim.settings": "OptimizerConfig ScheduleConfig",
    "reporting.settings": "LoggingConfig",
    "strategies.settings": "StrategyConfig",
}
_PUBLIC = {name: f"retina_dist.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        hint = "".join(f"; did you mean {near}?" for near in get_close_matches(name, _PUBLIC, 1, 0.8))
        raise AttributeError(f"module 'retina_dist' has no attribute '{name}'{hint}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
