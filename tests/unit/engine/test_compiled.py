"""torch.compile with a graph for each shape, up to a number of shapes; Dynamo only, since no kernel matters here."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from retina_dist.engine.compiled import compile_model
from retina_dist.model.sync_batch_norm import BatchNorm2d, count_only


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=0, accumulated_recompile_limit=0):
        yield
    torch._dynamo.reset()


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training and bool(x.sum() > 0):  # as a detector's post-processing, no graph can hold it
            return x
        return x * 2


def test_shapes_beyond_the_limit_run_eagerly_and_that_is_said_once(said: list[str]) -> None:
    model, graphs = Twice(), CompileCounter()
    compile_model(model, 3, backend=graphs)
    for length in [*range(1, 8), 1, 2, 3, 7]:
        x = torch.arange(length, dtype=torch.float32).requires_grad_()
        assert torch.equal(model(x), x * 2)
        assert bool(said) is (graphs.frame_count == 3 and len(said) == 1)
    assert graphs.frame_count == 3
    (warning,) = said
    assert re.match("trainer.compile has compiled 3 shapes, its limit", warning)


def test_only_passes_that_train_are_compiled() -> None:
    model, graphs = Twice(), CompileCounter()
    compile_model(model, 3, backend=graphs)
    with torch.no_grad():
        model(torch.ones(2))
    model.eval()
    assert torch.equal(model(torch.ones(2)), torch.ones(2))
    assert graphs.frame_count == 0


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = BatchNorm2d(2)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        with count_only(self, real):
            y: Tensor = self.norm(x)
        return y


def test_a_batch_with_fillers_makes_no_other_graph_stale(said: list[str]) -> None:
    model, graphs = Normed(), CompileCounter()
    compile_model(model, 2, backend=graphs)
    for real in (None, torch.tensor([True, False]), None, torch.tensor([False, True]), None):
        model(torch.randn(2, 2, 3, 3), real)
    assert graphs.frame_count == 2
    assert not said
