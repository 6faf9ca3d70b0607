"""What a newcomer types, and the remedy that the answer names."""

from __future__ import annotations

import pytest

from retina_dist.base.errors import ConfigError
from retina_dist.config.compose import load_config

REMEDIES = {
    # what other tools call it
    "data.train=mine/train": "did you mean data.root?",
    "dataset=mine": "did you mean data.root?",
    "logger=wandb": "did you mean logging?",
    "threshold=0.5": "did you mean model.score_threshold?",
    "strategy.world_size=2": "the launcher starts the processes: torchrun",
    "model.num_anchors=9": "see model.anchor_sizes and model.aspect_ratios.",
    "data.augmentation=mosaic": "see data.hflip, data.photometric and data.scale_jitter",
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
