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

from dataclasses import dataclass, field
from typing import ClassVar

from retina_dist.base.arguments import public
from retina_dist.classification.classifier import TrainedClassifier
from retina_dist.classification.metrics import ClassificationResult
from retina_dist.classification.settings import ClassificationData, ClassifierConfig
from retina_dist.detection.coco_metrics import CocoResult
from retina_dist.detection.detector import Detector
from retina_dist.detection.readers.torch_dataset import TorchDatasetConfig
from retina_dist.detection.settings import DetectionData, DetectorSettings, ModelConfig
from retina_dist.run.trainer import TrainerBase


@dataclass(kw_only=True, eq=False)
class Trainer(TrainerBase):
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
class ClassifierTrainer(TrainerBase):
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
