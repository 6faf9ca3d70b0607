"""Batch norm over several ranks and real images only, against torch's own over the whole batch."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from retina_dist.base.errors import ConfigError
from retina_dist.data.buckets import make_buckets
from retina_dist.data.samplers import TrainSampler
from retina_dist.engine.replicas import settings_of
from retina_dist.model.sync_batch_norm import BatchNorm2d, SyncBatchNorm2d, connect, count_only
from retina_dist.testing.thread_ranks import ThreadRank, on_ranks

CHANNELS = 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Float64 values with a mean that is not 0, so that means and squares matter."""
    return (
        torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
        + 5
    )


def norm(kind: type[nn.BatchNorm2d], dtype: torch.dtype = torch.float64) -> nn.BatchNorm2d:
    """With a weight and bias that are not 1 and 0."""
    made = kind(CHANNELS, eps=1e-3, momentum=0.25).to(dtype)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
        made.bias.copy_(torch.tensor([1.0, 0.0, -3.0]))
    return made


def forward_backward(module: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(dy)
    assert x.grad is not None
    return y.detach(), x.grad


def on_two_ranks(
    x: tuple[Tensor, ...], dy: tuple[Tensor, ...]
) -> list[tuple[Tensor, Tensor, nn.BatchNorm2d]]:
    """(output, input gradient, norm) of each rank, whose batches are x[0] and x[1].

    Every rank has a norm of its own.
    """

    def one(strategy: ThreadRank) -> tuple[Tensor, Tensor, nn.BatchNorm2d]:
        module = norm(SyncBatchNorm2d, torch.float32)
        connect(module, lambda values: strategy.all_reduce(values, "sum"))
        return *forward_backward(module, x[strategy.rank], dy[strategy.rank]), module

    return on_ranks(2, one)


def test_one_value_over_all_ranks_changes_no_statistic() -> None:
    """Its variance is not 0 but unknown: the running variance would shrink with each such pass."""
    module = norm(SyncBatchNorm2d)
    connect(module, torch.clone)
    module(drawn(1, CHANNELS, 1, 1))
    assert (module.running_mean.tolist(), module.running_var.tolist()) == ([0.0] * 3, [1.0] * 3)
    with count_only(module, torch.tensor([True, False])):
        module(drawn(2, CHANNELS, 1, 1))
    assert module.running_var.tolist() == [1.0] * 3
    with pytest.raises(
        ConfigError, match=r"model\.norm=bn: one value of a channel has no variance; raise"
    ):
        norm(BatchNorm2d)(drawn(1, CHANNELS, 1, 1))


def test_a_micro_batch_of_one_value_is_refused_where_it_can_be_no_other() -> None:
    """Larger maps of a single image have a variance, and validation needs none."""
    module = norm(SyncBatchNorm2d)
    connect(module, torch.clone, single_image=True)
    with pytest.raises(ConfigError, match=r"model\.norm=sync_bn: one value of a channel has no"):
        module(drawn(1, CHANNELS, 1, 1))
    module(drawn(1, CHANNELS, 1, 2))
    module.eval()(drawn(1, CHANNELS, 1, 1))


def test_a_large_mean_does_not_swallow_the_variance() -> None:
    """Squares of 10000 have steps of 8 in float32, and the variance is 1."""
    offsets = torch.tensor([-1.0, 1.0]).repeat(32).reshape(2, 1, 4, 8).expand(2, CHANNELS, 4, 8)
    for y, _, _ in on_two_ranks((offsets + 1e4).split(1), (torch.ones(1, CHANNELS, 4, 8),) * 2):
        assert y.dtype == torch.float32
        torch.testing.assert_close(y[:, 1], 2 * offsets[:1, 1] / 1.001**0.5)


def test_half_precision_goes_out_as_it_came_and_is_computed_in_float32() -> None:
    """Squares of 300 are out of float16's range."""
    x = (drawn(4, CHANNELS, 5, 6) * 100).half()
    dy = drawn(4, CHANNELS, 5, 6, seed=1).half()
    whole = norm(nn.BatchNorm2d)
    y, dx = forward_backward(whole, x.double(), dy.double())

    (y0, dx0, norm0), (y1, dx1, norm1) = on_two_ranks(x.split((3, 1)), dy.split((3, 1)))
    assert (y0.dtype, dx0.dtype, norm0.weight.grad.dtype) == (
        torch.float16,
        torch.float16,
        torch.float32,
    )
    torch.testing.assert_close(torch.cat((y0, y1)).double(), y, rtol=2**-10, atol=2**-10)
    torch.testing.assert_close(torch.cat((dx0, dx1)).double(), dx, rtol=2**-9, atol=1e-5)
    torch.testing.assert_close(
        (norm0.weight.grad + norm1.weight.grad).double(), whole.weight.grad, rtol=1e-4, atol=1e-3
    )
    torch.testing.assert_close(norm0.running_var.double(), whole.running_var, rtol=1e-5, atol=0)


def refuse(x: Tensor) -> Tensor:
    raise AssertionError("nothing may be added up here")


def test_a_copy_stands_alone() -> None:
    shared = norm(SyncBatchNorm2d)
    model = nn.Sequential(shared, shared)
    connect(model, refuse)
    twin = copy.deepcopy(model)
    assert twin[0] is twin[1]
    assert twin[0].sum_over_ranks is None
    assert shared.sum_over_ranks is refuse

    twin(drawn(2, CHANNELS, 4, 4))  # in training mode, without a word to others
    assert (shared.num_batches_tracked, twin[0].num_batches_tracked) == (0, 2)
    with torch.no_grad():
        twin[0].weight.zero_()
    assert shared.weight.tolist() == [0.5, 2.0, -1.0]
    assert (twin[0].eps, twin[0].momentum) == (1e-3, 0.25)


# fillers


def small_net(kind: type[nn.BatchNorm2d]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, CHANNELS, 2),
        norm(kind),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 1),
        norm(kind),
    ).double()


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: x for name, x in model.state_dict().items() if "running" in name}


@settings(max_examples=15, deadline=None)
@given(
    images=st.integers(1, 7),
    batch_size=st.integers(1, 7),
    ranks=st.integers(1, 5),
    accumulate=st.integers(1, 3),
)
@example(images=2, batch_size=2, ranks=3, accumulate=1)
@example(images=5, batch_size=4, ranks=3, accumulate=2)
def test_any_number_of_ranks_is_one_process(
    images: int, batch_size: int, ranks: int, accumulate: int
) -> None:
    """Gradients and running statistics of an epoch's steps, at the same `accumulate`, whether or
    not one number divides another.
    """
    data, target = drawn(images, 2, 3, 4), drawn(images, CHANNELS, 2, 3, seed=1)
    sampler = {
        "buckets": make_buckets([(10, 10)] * images, min_sizes=[10], max_size=10),
        "batch_size": batch_size,
    }
    sampler |= {"accumulate": accumulate}

    def loss(model: nn.Module, rows: list[int]) -> Tensor:
        """Mean over these images of a loss that each has by itself."""
        return (model(data[rows]) * target[rows]).sin().sum() / len(rows)

    def alone() -> list[dict[str, Tensor]]:
        model, found = small_net(nn.BatchNorm2d), []
        for step in range(-(-images // batch_size)):
            specs = TrainSampler(**sampler).step(step)
            count = sum(len(spec.indices) for spec in specs)
            model.zero_grad()
            for rows in (list(spec.indices) for spec in specs if spec.indices):
                (loss(model, rows) * len(rows) / count).backward()
            found.append(
                {n: p.grad.clone() for n, p in model.named_parameters()}
                | copy.deepcopy(state_of(model))
            )
        return found

    def one(strategy: ThreadRank) -> list[dict[str, Tensor]]:
        model, found = copy.deepcopy(start), []
        connect(model, lambda values: strategy.all_reduce(values, "sum"))
        for step in range(-(-images // batch_size)):
            model.zero_grad()
            for spec in TrainSampler(**sampler, rank=strategy.rank, world_size=ranks).step(step):
                rows, real = list(spec.indices), torch.arange(spec.size) < len(spec.indices)
                x = torch.cat(
                    (
                        data[rows],
                        torch.full((spec.size - len(rows), 2, 3, 4), 1e3, dtype=torch.float64),
                    )
                )
                with count_only(model, real):
                    y = model(x)
                assert y.isfinite().all()
                means = (y[: len(rows)] * target[rows]).sin().sum() / max(1, len(rows))
                (means * spec.weight).backward()
            gradients = {n: strategy.all_reduce(p.grad) for n, p in model.named_parameters()}
            found.append(gradients | copy.deepcopy(state_of(model)))
        return found

    start, expected = small_net(SyncBatchNorm2d), alone()
    for found in on_ranks(ranks, one):
        for mine, theirs in zip(found, expected, strict=True):
            for name, value in theirs.items():
                torch.testing.assert_close(mine[name], value, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_a_filler_holds_changes_nothing(connected: bool, value: float) -> None:
    """In live norms too; nor does a gradient that reaches a filler."""
    x, dy = drawn(3, CHANNELS, 2, 2), drawn(3, CHANNELS, 2, 2, seed=1)
    whole, own = norm(nn.BatchNorm2d), norm(SyncBatchNorm2d if connected else BatchNorm2d)
    if connected:
        connect(own, torch.clone)
    y, dx = forward_backward(whole, x[:2], dy[:2])
    filled, settings = x.clone(), settings_of(own)
    filled[2] = value
    with count_only(own, torch.tensor([True, True, False])):
        found_y, found_dx = forward_backward(own, filled, dy)
    for found, expected in ((found_y, y), (found_dx, dx)):
        torch.testing.assert_close(found[:2], expected)
        assert not found[2].any()
    torch.testing.assert_close(own.weight.grad, whole.weight.grad)
    torch.testing.assert_close(own.bias.grad, whole.bias.grad)
    for name, expected in whole.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], expected)
    assert settings_of(own) == settings  # ranks with and without fillers stay equal
