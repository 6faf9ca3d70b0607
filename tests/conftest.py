"""Fixtures that more than one test file uses."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from retina_dist.base import registry
from retina_dist.strategies.devices import nvidia_gpus


def pytest_configure(config: pytest.Config) -> None:
    """Where torch cannot use this machine's GPUs, which is an error in a training, the tests and
    their processes see none.
    """
    if nvidia_gpus() and not torch.cuda.is_available():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("compiles") and sys.gettrace() is not None:
        pytest.skip("Dynamo compiles nothing under a tracer, such as coverage's on Python 3.11")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Photos and annotations made by others: $RETINA_DIST_TEST_DATA, or the folder beside the
    checkout.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("RETINA_DIST_TEST_DATA", beside))
    if not (folder / "coco-mini").is_dir():
        pytest.skip(f"real photos are not part of the repository, and {folder} does not hold them")
    return folder


@pytest.fixture(autouse=True)
def registered_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it: lists of names must not depend on the order."""
    named = {family: dict(entries) for family, entries in registry._named.items()}
    monkeypatch.setattr(registry, "_named", named)
    monkeypatch.setattr(registry, "_from_outside", dict(registry._from_outside))


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The messages that the package logs, of every level, as they come."""
    messages: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("retina_dist")
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield messages
    logger.removeHandler(handler)
    logger.setLevel(level)
