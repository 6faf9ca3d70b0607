"""Gradients in 16 bits on the wire, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.plan import TrainerConfig
from retina_dist.engine.precision import agreed_precision
from retina_dist.run.build import build_strategy
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.compression import all_finite, to_wire
from retina_dist.strategies.settings import StrategyConfig


def mean_of(
    gradients: list[Tensor], compression: str, scale: float = DistributedStrategy.fp16_scale
) -> Tensor:
    """What ranks with these gradients end with; the wire adds up in its own 16 bits."""
    summed = to_wire(gradients[0], compression, scale, len(gradients))
    for gradient in gradients[1:]:
        summed = summed + to_wire(gradient, compression, scale, len(gradients))
    mean = summed.to(gradients[0].dtype)
    return mean / scale if compression == "fp16" else mean


def test_small_gradients_survive_fp16_by_the_scale() -> None:
    small = torch.tensor([1e-8])
    assert small.half().item() == 0  # which is why there is a scale
    assert mean_of([small], "fp16").item() == pytest.approx(1e-8, rel=0.01)
    assert mean_of([small], "fp16", scale=1.0).item() == 0


def test_a_sum_over_ranks_stays_in_range_where_each_summand_does() -> None:
    assert (
        mean_of([torch.tensor([60.0])] * 4, "fp16").item() == 60.0
    )  # 60 * 1024 is below 65504, four of them are not


def test_a_gradient_out_of_fp16s_range_is_seen_on_every_rank() -> None:
    mean = mean_of(
        [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 200.0])], "fp16"
    )  # 200 * 1024 / 2 = 102400 > 65504
    assert mean.tolist() == [1.0, float("inf")]
    assert not all_finite([torch.ones(3), mean])


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_value_that_is_not_finite_is_seen_wherever_it_is(bad: float) -> None:
    gradients = [
        torch.zeros(2, 3),
        torch.zeros(()),
        torch.full((5,), 65504.0, dtype=torch.float16),
        torch.zeros(0),
    ]
    assert all_finite(gradients)
    assert all_finite([])
    for gradient in gradients[:3]:
        gradient.flatten()[-1:].fill_(bad)
        assert not all_finite(iter(gradients))
        gradient.flatten()[-1:].fill_(0)


@pytest.mark.parametrize(("precision", "scale"), [("fp32", 1024.0), ("fp16", 1.0)])
def test_a_scaled_loss_needs_no_other_scale(precision: str, scale: float) -> None:
    trainer = TrainerConfig(max_duration="1step", precision=precision)
    config = RunConfig(trainer=trainer, strategy=StrategyConfig(device="cpu", compression="fp16"))
    strategy = build_strategy(config)
    assert agreed_precision(precision, strategy) == precision
    assert strategy.fp16_scale == scale
