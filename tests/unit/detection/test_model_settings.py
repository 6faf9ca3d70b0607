"""Limits of the model's settings, which hold before anything is read or printed."""

from __future__ import annotations

from typing import Any

import pytest

from retina_dist.base.errors import ConfigError
from retina_dist.detection.settings import ModelConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"variant": "v2", "fpn_channels": 32}, "use 64 or a larger multiple of 32"),
        ({"variant": "v2", "fpn_channels": 80}, "use 64 or a larger multiple of 32"),
        ({"anchor_sizes": [[8]] * 4}, "RetinaNet has five, P3 to P7"),
        ({"anchor_sizes": [[8] * 400] * 5}, "make 1200 anchors a cell"),
        ({"fpn_channels": 4096, "num_classes": 3000}, "billion parameters, above 1 billion"),
    ],
)
def test_a_pyramid_that_cannot_be_built_is_refused_by_check(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelConfig(**settings).check()
