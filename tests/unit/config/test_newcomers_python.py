"""What a script's mistake is answered: habits of Lightning, transformers, ultralytics, torchvision."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.transforms import v2

import retina_dist as rd
from retina_dist.base.arguments import Numbers
from retina_dist.classification.metrics import evaluate_rows
from retina_dist.config.run_config import RunConfig
from retina_dist.data.augmentation import KeyedAugmentation
from retina_dist.detection.readers.torch_dataset import ItemReader

IMAGE = np.zeros((8, 8, 3), np.uint8)
ITEMS: Any = [(IMAGE, [[0, 0, 4, 4]], [0])]


class WithMinutes(rd.LoggingConfig):
    """A user's settings, which may keep what they like."""


def torch_data() -> rd.TorchDatasetConfig:
    return rd.TorchDatasetConfig(train=ITEMS, categories=["red"], batch_size=1)


def trainer(kind: Any = rd.Trainer, **settings: Any) -> Any:
    given = {"data": torch_data(), "optimizer": rd.OptimizerConfig(lr=0.1)}
    return kind(**(given | {"max_duration": "1steps"} | settings))


def change(settings: Any, name: str, value: object) -> None:
    setattr(settings, name, value)


# the sentence, and what a user wrote
SAID: dict[str, Callable[[], object]] = {
    # arguments in the order that they were given
    r"patience=false is not .* number; write patience=None": lambda: trainer(patience=False),
    r"no argument max_epochs; did you mean max_duration=": lambda: trainer(
        max_epochs=2, accelerator="gpu"
    ),
    r"OptimizerConfig has no argument type; write name=": lambda: rd.OptimizerConfig(
        type="AdamW",  # type: ignore[call-arg]
        betas=(0.9, 0.99),
    ),
    r"did you mean schedule=rd\.ScheduleConfig\(…\)\?": lambda: trainer(scheduler="cosine"),
    r"did you mean data=rd\.DetectionData\(batch_size=…\)\?": lambda: trainer(batch_size=8),
    r"did you mean strategy=rd\.StrategyConfig\(device=…\)\?": lambda: trainer(device="cuda"),
    r"no argument lr_foo; it has [^.]*\.$": lambda: trainer(lr_foo=1),
    r"no argument config; write Trainer\(data=…, .*or Trainer.from_config\(config\)": lambda: (
        trainer(config=1)
    ),
    r"^Trainer: missing a required argument: .*; write Trainer\(data=…, optimizer=…, max_d": lambda: (
        rd.Trainer()  # type: ignore[call-arg]
    ),
    r"^Trainer: missing a required .* Trainer.from_config\(config\) for": lambda: rd.Trainer(
        RunConfig()  # type: ignore[misc, call-arg]
    ),
    r"num_classes=resnet50 is not .*; give .* a network by its name": lambda: trainer(
        model=rd.ModelConfig("resnet50")  # type: ignore[arg-type]
    ),
    # a name that nothing would read
    r"DetectionData has no argument batchsize; did you mean batch_size": lambda: change(
        rd.DetectionData(), "batchsize", 16
    ),
    r"OptimizerConfig has no argument learning_rate; did you mean lr": lambda: change(
        rd.OptimizerConfig(lr=1), "learning_rate", 2
    ),
    r"Trainer has no argument max_epochs": lambda: change(trainer(), "max_epochs", 2),
    # objects of torch and others
    r"model.backbone=Linear is not a text; give its name": lambda: trainer(
        model=rd.ModelConfig(backbone=nn.Linear(1, 1))  # type: ignore[arg-type]
    ),
    r"schedule=float is not a section|schedule=0.1 .*such as name='cosine'": lambda: trainer(
        schedule=0.1
    ),
    r"logging=None is not a section; .* such as tensorboard=False": lambda: trainer(logging=None),
    r"data=TorchDatasetConfig is not a section; .* such as root='FOLDER'": lambda: trainer(
        rd.ClassifierTrainer
    ),
    r"data=DetectionData is not a section; give it to rd\.Trainer": lambda: trainer(
        rd.ClassifierTrainer, data=rd.DetectionData(root="a")
    ),
    r"model=ClassifierConfig is not .* give it to rd\.ClassifierTrainer": lambda: trainer(
        model=rd.ClassifierConfig()
    ),
    r"schedule.warmup=500 is not a text; write a duration, such as 500steps": lambda: trainer(
        schedule=rd.ScheduleConfig(name="cosine", warmup=500)
    ),
    r"schedule.milestones=\[8\] .*; write durations, such as 8epochs": lambda: trainer(
        schedule=rd.ScheduleConfig(name="multistep", milestones=[8])
    ),
    r"onecycle is not one of .*; take cosine, or write one as": lambda: rd.ScheduleConfig(
        name="onecycle"
    ),
    r"gpu=0 .*strategy=rd.StrategyConfig\(device=\"cuda:0\"\) is one": lambda: trainer(gpu=0),
    r'resume=true is not a text; write "auto", a run folder': lambda: trainer(resume=True),
    "strategy.name=cuda is not one of .*; give it as strategy.device, in Py": lambda: (
        rd.StrategyConfig("cuda")
    ),
    "TorchDatasetConfig has no argument valid; give your Datasets as train and val": lambda: (
        rd.TorchDatasetConfig(
            train=ITEMS,
            valid=ITEMS,  # type: ignore[call-arg]
            categories=["red"],
        )
    ),
    # calls
    r"^fit: .*; write fit\(\) alone, and": lambda: trainer().fit(rd.ModelConfig()),
    r"^fit: .*; write fit\(\) alone, .* data=rd\.T": lambda: trainer().fit(train_dataloaders=[]),
    r"call fit\(\) first, or read an earlier run by rd\.Det": lambda: trainer().detector(),
    r"evaluate: .* 'data'; give evaluate DetectionData\(root": lambda: rd.Detector.evaluate(None),  # type: ignore[arg-type, call-arg]
    r"build_retinanet: too many .*; write build_retinanet\(num_classes=2": lambda: (
        rd.build_retinanet(rd.ModelConfig(), 2)  # type: ignore[misc, call-arg]
    ),
    r'write load_config\("train", \["experiment=small"': lambda: rd.load_config(experiment="small"),  # type: ignore[call-arg]
    # datasets
    r"train=images is not a dataset; .* or its files to rd\.DetectionData": lambda: ItemReader(
        "images", "train"
    ),
    r"dataset\[0\] is a tuple of another form; .* its files to rd\.DetectionData": lambda: (
        ItemReader([(IMAGE, [{"bbox": [0, 0, 4, 4]}])], "train", ["a"]).coco("xyxy")
    ),
    r"dataset\[0\]: an image has the shape \[1, 3, 8, 8\]; give image\[0\]": lambda: ItemReader(
        [(torch.zeros(1, 3, 8, 8), [], [])], "train"
    ).pixels(0),
    r"is no function; give rd.Trainer one": lambda: trainer(augmentation=v2.RandomGrayscale),
}


@pytest.mark.parametrize("said", SAID)
def test_a_habit_of_another_library_is_answered(said: str) -> None:
    with pytest.raises(rd.UserError, match=said):
        SAID[said]()


ATTRIBUTES: dict[str, Callable[[], object]] = {
    r"no attribute from_pretrained; call from_checkpoint": lambda: (
        rd.Detector.from_pretrained  # type: ignore[attr-defined]
    ),
    r"no attribute load_from_checkpoint; give the trainer resume": lambda: (
        rd.Trainer.load_from_checkpoint  # type: ignore[attr-defined]
    ),
    r"no attribute checkpoint_callback; read checkpoint": lambda: trainer().checkpoint_callback,
    r"retina_dist has no attribute EarlyStopping; give rd\.Trainer patience=3": lambda: (
        rd.EarlyStopping  # type: ignore[attr-defined]
    ),
}


@pytest.mark.parametrize("said", ATTRIBUTES)
def test_an_attribute_of_another_library_is_answered(said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        ATTRIBUTES[said]()


def test_a_limit_of_a_detector_is_not_set_in_vain() -> None:
    network = rd.build_retinanet(num_classes=1, backbone="resnet10_half", fpn_channels=32)
    detector = rd.Detector(network, ["red"])
    with pytest.raises(AttributeError, match=r"call set_limits\(score_threshold=0\.3\)"):
        detector.score_threshold = 0.5  # type: ignore[attr-defined]
    detector.remark = "mine"  # type: ignore[attr-defined]

    class Detector(rd.Detector):
        """A user's, of the same name."""

    own = Detector(network, ["red"])
    own.score_threshold = 0.5  # type: ignore[attr-defined]
    assert vars(own)["score_threshold"] == 0.5


@pytest.mark.parametrize(
    ("key", "meant"), [("mAP50-95", "AP"), ("map_50", "AP50"), ("map", "AP"), ("coco/AP75", "AP75")]
)
def test_a_metric_is_found_without_its_prefix(key: str, meant: str) -> None:
    stats = Numbers({"AP": 0.1, "AP50": 0.2, "AP75": 0.3})
    with pytest.raises(KeyError, match=rf'write \["{meant}"\]'):
        stats[key]


def test_a_metric_of_classification_is_found_as_well() -> None:
    metrics = evaluate_rows(np.zeros((1, 7)), ["a", "b", "c"]).metrics
    with pytest.raises(KeyError, match=r'write \["val/top1"\]'):
        metrics["accuracy"]


@dataclass(kw_only=True, slots=True)
class OwnLogging(rd.LoggingConfig):
    """Settings of a user's."""

    every: int = 3


def test_a_copy_of_own_settings_has_its_slots() -> None:
    own = OwnLogging(every=5)
    for other in (copy.copy(own), copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert other.every == 5


def test_settings_are_copied_with_what_was_set() -> None:
    data = torch_data()
    data.batch_size = 3
    for other in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert other.batch_size == 3
        assert type(other) is type(data)
        assert "train" in other.datasets


def test_settings_of_a_user_keep_what_he_likes() -> None:
    settings = WithMinutes()
    change(settings, "minutes", 3)
    assert vars(settings)["minutes"] == 3


SAMPLE = (torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(0, 4), torch.ones(0))


class Broken(Dataset[object]):
    """A dataset with a file that is not there."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> object:
        if index == 3:
            raise FileNotFoundError("missing_3.jpg")
        return ITEMS[0]


def test_an_error_of_an_item_says_which() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        ItemReader(Broken(), "train", ["red"]).coco("xyxy")
    assert vars(caught.value)["__notes__"] == [
        "train dataset[3] raised this; correct its __getitem__."
    ]


@pytest.mark.parametrize(
    "function",
    [
        transforms.Compose([]),
        transforms.RandomHorizontalFlip(),
        lambda image: image,
        lambda **data: data,
    ],
)
def test_an_augmentation_of_other_arguments_is_one_sentence(function: Any) -> None:
    said = (
        r"positional arg.* but .*; augmentation=function is called as FUNCTION\(image, target\), as"
    )
    with pytest.raises(rd.ConfigError, match=said):
        KeyedAugmentation(function, "function").check(*SAMPLE)


def test_an_error_of_an_augmentation_says_how_it_is_called() -> None:
    def function(image: object, target: dict[str, object]) -> object:
        return image, target["masks"]

    with pytest.raises(KeyError) as caught:
        KeyedAugmentation(function, "function").check(*SAMPLE)
    assert "called as FUNCTION(image, target), as" in vars(caught.value)["__notes__"][0]
