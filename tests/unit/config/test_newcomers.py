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
    "model.num_anchors=9": "see model.anchor_sizes and model.aspect_ratios.",
    "data.augmentation=mosaic": "see data.hflip, data.photometric and data.scale_jitter",
    # written as in Python
    "data.min_sizes=(640,800)": 'write "data.min_sizes=[640,800]".',
}


@pytest.mark.parametrize("override", REMEDIES)
def test_the_remedy_is_named(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("train", [override])
    assert REMEDIES[override] in str(caught.value)
