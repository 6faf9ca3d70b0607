"""What a newcomer types, and the remedy that the answer names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from retina_dist.api import Trainer
from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.base.unknown_keys import in_settings_of
from retina_dist.config.compose import data_entry, load_config
from retina_dist.detection.detector import Detector
from retina_dist.evaluate import EvaluateConfig
from retina_dist.run.assemble import train

REMEDIES = {
    # what other tools call it
    "data.train=mine/train": "did you mean data.root?",
    "dataset=mine": "did you mean data.root?",
    "logger=wandb": "did you mean logging?",
    "threshold=0.5": "did you mean model.score_threshold?",
    "strategy.world_size=2": "the launcher starts the processes: torchrun",
    "model.num_anchors=9": "see model.anchor_sizes and model.aspect_ratios.",
    "data.augmentation=mosaic": "see data.hflip, data.photometric and data.scale_jitter",
    "task=classify": "did you mean classification?",
    "model.name=resnet50": "did you mean model.backbone?",
    "data.flip=0.5": "did you mean data.hflip?",
    "model.freeze=true": "did you mean model.trainable_layers?",
    "split=test": "did you mean data.val_fraction?",
    # shortened
    "model=retinanet": "did you mean retinanet_r18 or retinanet_r50 or",
    "help": "write --help",
    "epochs": "write 12epochs, without a space",
    # written as in Python
    "data.min_sizes=[64,]": 'write "data.min_sizes=[64]".',
    "model.aspect_ratios=[1:2,1:1]": "write each item in digits",
    "data.min_sizes=(640,800)": 'write "data.min_sizes=[640,800]".',
    # which the shell leaves as it is
    "data.root=~/mine": "write data.root=$HOME/mine.",
}


@pytest.mark.parametrize("override", REMEDIES)
def test_the_remedy_is_named(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("train", [override])
    assert REMEDIES[override] in str(caught.value)


OF_OTHER_COMMANDS = {
    ("predict", "checkpoint=runs/a", "a.jpg", "b.jpg", "c.jpg"): 'write "input=photos/*.jpg"',
    ("export", "runs/a", "a.onnx"): "write checkpoint=runs/a output=a.onnx",
    ("export", "a.pt", "a.onnx"): "write checkpoint=a.pt output=a.onnx",
    ("export", "checkpoint=a.pt", "output=a.onnx", "opset=11"): "leave it out",
    ("evaluate", "checkpoint=runs/a", "split=test"): "give annotations=FILE images=FOLDER of",
}


@pytest.mark.parametrize("line", OF_OTHER_COMMANDS)
def test_the_remedy_of_other_commands_is_named(line: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(line[0], line[1:])
    assert OF_OTHER_COMMANDS[line] in str(caught.value)


def test_python_names_what_reads_a_checkpoint_and_settings() -> None:
    with pytest.raises(ConfigError, match=r"write Detector\.from_checkpoint\(PATH\)"):
        Detector("runs/a")  # type: ignore[arg-type, call-arg]
    with pytest.raises(ConfigError, match=r"give rd\.load_config"):
        Trainer.from_config({"data.root": "a"})  # type: ignore[arg-type]


def test_a_command_on_a_checkpoint_names_no_setting_of_a_training(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"onnx")
    with pytest.raises(CheckpointError) as caught:
        Detector.from_checkpoint(tmp_path / "a.pt")
    assert "model.weights=FILE" in str(caught.value)
    assert "model.weights" not in in_settings_of(EvaluateConfig, str(caught.value))


def test_data_of_a_resume_outside_of_a_run_are_read_as_those_of_a_start(tmp_path: Path) -> None:
    overrides = [f"data.root={tmp_path}", f"resume={tmp_path}/other.pt"]
    assert data_entry("train", overrides) == ["data=auto"]


def test_a_dry_run_refuses_the_weights_of_another_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": torch.nn.Linear(2, 2)}, "theirs.pt")
    overrides = ["data=synthetic", "dry_run=true", "model.weights=theirs.pt"]
    with pytest.raises(CheckpointError, match=r"theirs\.pt cannot be read .*model\.state_dict"):
        train(load_config("train", overrides))
