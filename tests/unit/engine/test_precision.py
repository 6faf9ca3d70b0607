"""One place decides in which arithmetic a pass runs, and fp32 means the same in all commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
import torch

from retina_dist.engine.precision import AUTOCAST, Precision, autocast


@pytest.fixture(autouse=True)
def _flags() -> Iterator[None]:
    """PyTorch's own defaults before each test and after."""
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False


@pytest.mark.parametrize("precision", get_args(Precision))
def test_tf32_is_taken_only_where_it_is_asked_for_also_in_the_backward_pass(precision: Precision) -> None:
    with autocast(torch.device("cpu"), precision)():
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    assert dtype is AUTOCAST.get(precision)
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    assert flags == (precision == "tf32",) * 2  # after the context, as the backward pass meets them
