"""Fixtures that more than one test file uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Photos and annotations made by others: $RETINA_DIST_TEST_DATA, or the folder beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("RETINA_DIST_TEST_DATA", beside))
    if not (folder / "coco-mini").is_dir():
        pytest.skip(f"real photos are not part of the repository, and {folder} does not hold them")
    return folder
