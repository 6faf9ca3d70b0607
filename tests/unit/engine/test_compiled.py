"""torch.compile with a graph for each shape, up to a number of shapes; Dynamo only, since no kernel
matters here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from retina_dist.engine import train_step
from retina_dist.engine.train_step import compiled
from retina_dist.model.sync_batch_norm import BatchNorm2d, count_only

pytestmark = pytest.mark.compiles


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(train_step, "MAX_SHAPES", 3)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=0, accumulated_recompile_limit=0):
        yield
    torch._dynamo.reset()


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_shapes_beyond_the_limit_run_eagerly() -> None:
    model, graphs = Twice(), CompileCounter()
    net = compiled(model, backend=graphs)
    for length in [*range(1, 8), 1, 2, 3, 7]:
        x = torch.arange(length, dtype=torch.float32).requires_grad_()
        assert torch.equal(net(x), x * 2)
    assert graphs.frame_count == 3


def test_only_the_net_of_the_training_is_compiled() -> None:
    model, graphs = Twice(), CompileCounter()
    net = compiled(model, backend=graphs)
    model.eval()
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 2.0))
    assert graphs.frame_count == 0
    assert not net.train().eval().training
    assert not model.training


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = BatchNorm2d(2)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        with count_only(self, real):
            y: Tensor = self.norm(x)
        return y


def test_a_batch_with_fillers_makes_no_other_graph_stale() -> None:
    graphs = CompileCounter()
    net = compiled(Normed(), backend=graphs)
    for real in (None, torch.tensor([True, False]), None, torch.tensor([False, True]), None):
        net(torch.randn(2, 2, 3, 3), real)
    assert graphs.frame_count == 2
