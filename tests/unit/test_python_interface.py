"""`import retina_dist as rd`: the README's example, your own Dataset, errors, what editors see."""

from __future__ import annotations

import ast
import os
import pickle
import re
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import retina_dist as rd
from retina_dist.base.errors import ConfigError, DataError, ImageError, UserError
from retina_dist.data.images import read_image
from retina_dist.detection.data.synthetic import make_shapes
from retina_dist.detection.readers.torch_dataset import ItemReader
from retina_dist.detection.splits import read_split
from retina_dist.detection.task import DetectionTask
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.strategies.start_processes import command, why_missing
from tests.chaos import differences
from tests.commands import run_command, run_process
from tests.metric_files import read_metrics

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLE = re.findall(r"^## From Python\n.*?^```python\n(.*?)^```", README, re.M | re.S)[0]

# Before the README's text, so that it takes seconds: two steps, one thread, few images, no data
# workers.
SHORT = """
import functools
import retina_dist
retina_dist.Trainer = functools.partial(retina_dist.Trainer, fast_dev_run=True, num_threads=1)
retina_dist.ShapesConfig = functools.partial(
    retina_dist.ShapesConfig, num_train=12, num_val=4, image_size=64
)
retina_dist.DetectionData = functools.partial(retina_dist.DetectionData, num_workers=0)
"""

# A script without a main guard, whose dataset the data workers cannot import; its arguments say
# which runs to make.
SCRIPT = """
import json
import sys
from pathlib import Path

import torch
from PIL import Image

import retina_dist as rd

FOLDER = Path("datasets/shapes")


class Shapes(torch.utils.data.Dataset):
    def __init__(self, split):
        coco = json.loads((FOLDER / "annotations" / f"instances_{split}.json").read_text())
        self.names = [category["name"] for category in coco["categories"]]
        label = {category["id"]: i for i, category in enumerate(coco["categories"])}
        files = FOLDER / split
        self.images = [(image["id"], files / image["file_name"]) for image in coco["images"]]
        self.objects = {image_id: [] for image_id, _ in self.images}
        for entry in coco["annotations"]:
            self.objects[entry["image_id"]].append({**entry, "label": label[entry["category_id"]]})

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image_id, path = self.images[i]
        objects = self.objects[image_id]
        boxes = [found["bbox"] for found in objects]
        boxes = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        columns = {key: [found[key] for found in objects] for key in ("iscrowd", "area")}
        labels = [found["label"] for found in objects]
        return Image.open(path), {"boxes": boxes, "labels": labels, **columns}


train, val = Shapes("train"), Shapes("val")
batches = {"batch_size": 4, "val_batch_size": 2, "min_sizes": [64], "max_size": 64}
batches["photometric"] = 0.5
own = rd.TorchDatasetConfig(train=train, val=val, categories=train.names, **batches)
for name in sys.argv[1:]:
    trainer = rd.Trainer(
        data=own if name == "own" else rd.DetectionData(root=str(FOLDER), **batches),
        model=rd.ModelConfig(
            backbone="mobilenet_v3_small",
            variant="v2",
            fpn_channels=64,
            norm="sync_bn",
            score_threshold=0.001,
        ),
        optimizer=rd.OptimizerConfig(name="adamw", lr=1e-3),
        logging=rd.LoggingConfig(tensorboard=False, plots=False),
        max_duration="1epoch",
        log_every=1,
        num_threads=1,
        output_dir=name,
    )
    metrics = trainer.fit()
    found = trainer.evaluate().stats
    defined = [key for key in found if found[key] >= 0]
    assert all(abs(found[key] - metrics[f"coco/{key}"]) < 1e-9 for key in defined), (found, metrics)
print("done")
"""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "datasets"
    make_shapes(folder / "shapes", num_train=12, num_val=4, image_size=64)
    return folder


def run(line: list[str], cwd: Path, datasets: Path) -> str:
    (cwd / "datasets").symlink_to(datasets)
    return run_process(line, cwd=cwd)


def losses(folder: Path) -> list[float]:
    return read_metrics(folder / "metrics.csv")["train/loss"][1]


def test_the_readme_example_runs_as_a_script(shapes: Path, tmp_path: Path) -> None:
    assert len(ast.parse(EXAMPLE).body) <= 10
    (tmp_path / "script.py").write_text(SHORT + EXAMPLE)
    (tmp_path / "datasets").symlink_to(shapes)
    run_command("script", cwd=tmp_path)
    assert (tmp_path / "runs" / "debug" / "checkpoints" / "best.pt").is_file()


@pytest.fixture(scope="module")
def alone(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "script.py").write_text(SCRIPT)
    assert "done" in run([sys.executable, "script.py", "files", "own"], folder, shapes)
    return folder


def test_an_own_dataset_trains_as_its_files_do(alone: Path) -> None:
    assert len(losses(alone / "own")) == 3
    assert differences(alone / "own", alone / "files") == "", "to the last bit"


@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("horovodrun", marks=pytest.mark.long)]
)
def test_the_same_script_under_a_launcher(
    launcher: str, alone: Path, shapes: Path, tmp_path: Path
) -> None:
    if reason := why_missing(launcher):
        pytest.skip(reason)
    (tmp_path / "script.py").write_text(SCRIPT)
    run(command(launcher, 2, "script", ["own"]), tmp_path, shapes)
    assert losses(tmp_path / "own") == pytest.approx(losses(alone / "own"), rel=1e-4)


DATA = rd.DetectionData(root="/data/mine")
SGD = rd.OptimizerConfig(lr=0.01)


PLUGINS = f"hydra.searchpath=[file://{ROOT}/tests/plugins/conf]"


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["experiment=bccd", "data.root=/data/bccd", "seed=4", "trainer.patience=2"],
        [PLUGINS, "optimizer=lion"],
    ],
)
def test_a_recipe_becomes_a_trainer(overrides: list[str]) -> None:
    config = rd.load_config("train", overrides)
    found = rd.Trainer.from_config(config).config
    assert asdict(found) == asdict(config)
    assert type(found.optimizer) is type(config.optimizer)


@pytest.mark.parametrize(
    ("trainer", "overrides", "message"),
    [
        (
            rd.Trainer,
            [PLUGINS, "task=discs"],
            "task=discs is not for Trainer; .* others train on the command line",
        ),
        (
            rd.ClassifierTrainer,
            [],
            "task=detection is not for ClassifierTrainer; .* a detector for rd.Trainer",
        ),
    ],
)
def test_a_trainer_is_for_its_task(trainer: Any, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer.from_config(rd.load_config("train", overrides))


def test_a_classifier_trains_and_predicts(tmp_path: Path) -> None:
    data = rd.ClassificationData(
        root=str(tmp_path / "drawn"),
        drawn=rd.DrawnClassesConfig(num_train=8, num_val=7, image_size=16),
        batch_size=4,
        image_size=16,
        num_workers=0,
    )
    trainer = rd.ClassifierTrainer(
        data=data,
        model=rd.ClassifierConfig(architecture="shufflenet_v2_x0_5", norm="sync_bn"),
        optimizer=rd.OptimizerConfig(name="adamw", lr=1e-3),
        logging=rd.LoggingConfig(tensorboard=False, plots=False),
        max_duration="1epoch",
        num_threads=1,
        output_dir=str(tmp_path / "run"),
    )
    metrics = trainer.fit()
    found = trainer.evaluate()
    assert found.metrics == pytest.approx(metrics, rel=1e-6)
    assert found.confusion.sum() == 7
    classifier = trainer.classifier()
    probabilities = classifier.predict(sorted((tmp_path / "drawn" / "val" / "ring").iterdir()))
    assert probabilities.shape == (1, len(classifier.classes))
    assert float(probabilities.sum()) == pytest.approx(1)
    config = trainer.config
    assert asdict(rd.ClassifierTrainer.from_config(config).config) == asdict(config)
    trainer.run_folder = None
    with pytest.raises(ConfigError, match=r"call fit\(\) first"):
        trainer.classifier()


def test_errors_name_the_argument_and_the_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"optimizer\.lr is not set; give OptimizerConfig\(lr=…\)"
    ):
        rd.Trainer(data=DATA, optimizer=rd.OptimizerConfig(), max_duration="1epoch")


class Items(Dataset[Any]):
    """Items as they are given."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


PIXELS = (torch.arange(3 * 20 * 30) % 251).to(torch.uint8).reshape(3, 20, 30)
BOXES = torch.tensor([[1.0, 2.0, 11.0, 12.5], [0.0, 0.0, 30.0, 20.0]])


def read(
    dataset: Any, names: tuple[str, ...] = ("cat", "dog"), split: str = "train"
) -> rd.Annotations:
    data = rd.TorchDatasetConfig(name="own", train=dataset, categories=names)
    found = read_split(data, split, check=False)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "item",
    [
        (PIXELS, BOXES, [1, 0]),
        (
            Image.fromarray(PIXELS.permute(1, 2, 0).numpy()),
            {"boxes": BOXES.numpy(), "labels": np.array([1, 0])},
        ),
        (PIXELS.permute(1, 2, 0).numpy(), BOXES, [1, 0]),
        (PIXELS / 255, BOXES, [1, 0]),
        [
            PIXELS,
            {"boxes": BOXES, "labels": [1, 0], "image_id": torch.tensor([1]), "iscrowd": [0, 0]},
        ],
    ],
    ids=["tuple", "PIL and dictionary", "array", "floats", "torchvision's dictionary"],
)
def test_forms_of_an_item(item: Any) -> None:
    found = read(Items(item))
    (record,) = found.records
    assert (record.image_id, record.width, record.height) == (1, 30, 20)
    assert torch.equal(read_image(record.path, (30, 20)), PIXELS)
    assert np.array_equal(found.boxes[0], BOXES.numpy())
    assert found.labels[0].tolist() == [1, 0]
    assert found.categories.names == ("cat", "dog")
    assert [entry["area"] for entry in found.coco["annotations"]] == [105.0, 600.0]


def test_annotations_of_its_own_spare_the_images() -> None:
    class Described(Items):
        def __getitem__(self, i: int) -> Any:
            raise AssertionError("an image was read")

        def annotation(self, i: int) -> dict[str, Any]:
            return {"boxes": BOXES, "labels": [1, 0], "size": (20, 30)}

    assert read(Described(None)).records[0].height == 20


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        (
            PIXELS,
            DataError,
            r"train dataset\[0\] is a Tensor of another form; return \(image, boxes, labels\)",
        ),
        (
            (PIXELS.float(), BOXES, [0, 1]),
            ImageError,
            r"train dataset\[0\]: an image has floats from 0 to 250; "
            r"give uint8 or floats from 0 to 1",
        ),
        ((PIXELS, BOXES, [0]), DataError, r"has labels \[1\] for 2 boxes; give one for each"),
        (
            (PIXELS, BOXES, [1, 2]),
            DataError,
            "has label 2, but the last is 1; add its name, or count from 0",
        ),
    ],
)
def test_wrong_items_are_named(item: Any, error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        read(Items(item))


def test_unknown_arguments_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^DetectionData has no argument imgsz; did you mean min_sizes=\[1\]\?$"
    ):
        rd.DetectionData(imgsz=1)  # type: ignore[call-arg]


def test_wrong_datasets_are_named() -> None:
    with pytest.raises(
        ConfigError,
        match="train=<generator .* dataset; give an instance with __getitem__ and __len__",
    ):
        rd.TorchDatasetConfig(train=(i for i in range(2)), categories=["a"])  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError,
        match="categories.0.='__background__' is a background, which has no label; leave",
    ):
        rd.TorchDatasetConfig(train=Items(), categories=["__background__", "a"])
    twice = (PIXELS, {"boxes": BOXES, "labels": [0, 1], "image_id": 3})
    with pytest.raises(DataError, match="train dataset: id 3 stands 2 times in 'images'"):
        read(Items(twice, twice))
    unsendable = ItemReader(Items(threading.Lock()), "train")
    with pytest.raises(
        ConfigError,
        match="train dataset cannot be sent to data workers .*; open files in __getitem__",
    ):
        pickle.dumps(unsendable)
    assert not rd.TorchDatasetConfig(train=Items(), categories=["a"]).reader().has("val")


def test_overfit_batches_trains_an_own_dataset_without_augmentation(tmp_path: Path) -> None:
    data = rd.TorchDatasetConfig(
        train=Items(*[(PIXELS, BOXES, [1, 0])] * 4),
        categories=["cat", "dog"],
        min_sizes=[32, 64],
        max_size=64,
        batch_size=2,
        photometric=0.5,
        num_workers=0,
        name="own",
    )
    trainer = rd.Trainer(
        data=data,
        optimizer=SGD,
        max_duration="1epoch",
        overfit_batches=1,
        output_dir=str(tmp_path / "run"),
    )
    module = DetectionTask(trainer.config, SingleDeviceStrategy("cpu")).build_data()
    first, second = (steps[0] for steps in module.train_steps(0, 2))
    assert torch.equal(first.images, second.images)
    assert max(first.images.shape[2:]) == 64
    assert (data.min_sizes, data.photometric) == ([32, 64], 0.5)


@pytest.mark.long
def test_the_examples_pass_a_strict_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = [
        text
        for text in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
        if "class " not in text
    ]
    for number, text in enumerate([EXAMPLE, *blocks]):
        before = "import torch\n\nimport retina_dist as rd\n\n"
        before += "tensor = torch.zeros(3, 8, 8, dtype=torch.uint8)\n"
        (tmp_path / f"block_{number}.py").write_text(before + text)
    assert number >= 4
    line = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        f"--cache-dir={tmp_path}",
    ]
    done = subprocess.run(
        [*line, *tmp_path.glob("*.py")],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
