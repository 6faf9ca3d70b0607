"""The public names; `__init__.py` imports each when it is first used."""

from .api import ClassifierTrainer as ClassifierTrainer
from .api import Trainer as Trainer
from .base.errors import CheckpointError as CheckpointError
from .base.errors import ConfigError as ConfigError
from .base.errors import DataError as DataError
from .base.errors import Preempted as Preempted
from .base.errors import UserError as UserError
from .classification.classifier import TrainedClassifier as TrainedClassifier
from .classification.settings import ClassificationData as ClassificationData
from .classification.settings import ClassifierConfig as ClassifierConfig
from .classification.settings import DrawnClassesConfig as DrawnClassesConfig
from .config.compose import load_config as load_config
from .detection.detector import Detector as Detector
from .detection.model.retinanet import build_retinanet as build_retinanet
from .detection.readers.annotations import Annotations as Annotations
from .detection.readers.load import load_annotations as load_annotations
from .detection.readers.torch_dataset import TorchDatasetConfig as TorchDatasetConfig
from .detection.settings import DetectionData as DetectionData
from .detection.settings import ModelConfig as ModelConfig
from .detection.settings import ShapesConfig as ShapesConfig
from .optim.settings import OptimizerConfig as OptimizerConfig
from .optim.settings import ScheduleConfig as ScheduleConfig
from .strategies.settings import StrategyConfig as StrategyConfig
from .tracking.callbacks import Callback as Callback
from .tracking.settings import LoggingConfig as LoggingConfig

__version__: str
