"""One place decides in which arithmetic a pass runs, and fp32 means the same in all commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch

from retina_dist.engine.precision import Precision
from tests.unit.engine.test_trainer import Classifier, trainer


@pytest.fixture(autouse=True)
def _flags() -> Iterator[None]:
    """PyTorch's own defaults before each test and after."""

    def reset() -> None:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False

    reset()
    yield
    reset()


def flags() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


class Noting(Classifier):
    """Notes the arithmetic that its forward pass meets."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[tuple[Any, ...]] = []

    def forward(self, batch: Any) -> Any:
        self.met.append((*flags(), torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None))
        return super().forward(batch)


@pytest.mark.parametrize("precision", get_args(Precision))
def test_a_training_step_takes_tf32_only_where_it_is_asked_for(precision: Precision) -> None:
    one = trainer(model=Noting(), precision=precision)
    one.train_step(next(one.data.train_steps(0, 1)))
    tf32 = precision == "tf32"
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    assert one.state.model.met == [(tf32, tf32, half)]
    assert flags() == (tf32, tf32)  # the backward pass came after
