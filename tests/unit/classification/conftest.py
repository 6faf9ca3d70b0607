"""A drawn set of a dozen images."""

from __future__ import annotations

from pathlib import Path

import pytest

from retina_dist.classification.drawn import draw_classes


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("classes") / "drawn"
    draw_classes(root, num_train=14, num_val=7, image_size=16, seed=0)
    return root
