"""Fixtures that more than one test file uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from retina_dist.strategies.devices import nvidia_gpus


def pytest_configure(config: pytest.Config) -> None:
    """Where torch cannot use this machine's GPUs, which is an error in a training, the tests and their processes see none."""
    if nvidia_gpus() and not torch.cuda.is_available():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Photos and annotations made by others: $RETINA_DIST_TEST_DATA, or the folder beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("RETINA_DIST_TEST_DATA", beside))
    if not (folder / "coco-mini").is_dir():
        pytest.skip(f"real photos are not part of the repository, and {folder} does not hold them")
    return folder
