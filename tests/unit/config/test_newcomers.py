"""What a newcomer types, and the remedy that the answer names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from retina_dist.base.errors import CheckpointError, ConfigError
from retina_dist.config.compose import data_entry, load_config
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
    # written as in Python
    "data.min_sizes=(640,800)": 'write "data.min_sizes=[640,800]".',
    # which the shell leaves as it is
    "data.root=~/mine": "write data.root=$HOME/mine.",
}


@pytest.mark.parametrize("override", REMEDIES)
def test_the_remedy_is_named(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("train", [override])
    assert REMEDIES[override] in str(caught.value)


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
