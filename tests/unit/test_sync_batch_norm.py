"""Batch norm over two ranks, against torch's own over the whole batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from retina_dist.model.sync_batch_norm import SyncBatchNorm2d, connect
from tests.unit.test_strategy_base import ThreadRank, on_ranks

CHANNELS = 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Float64 values with a mean that is not 0, so that means and squares matter."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 + 5


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


def on_two_ranks(x: list[Tensor], dy: list[Tensor], repeat: int = 1) -> list[tuple[Tensor, Tensor, nn.BatchNorm2d]]:
    """(output, input gradient, norm) of each rank, whose batches are x[0] and x[1]; every rank has a norm of its own."""

    def one(strategy: ThreadRank) -> tuple[Tensor, Tensor, nn.BatchNorm2d]:
        module = norm(SyncBatchNorm2d, x[0].dtype)
        connect(module, lambda values: strategy.all_reduce(values, "sum"))
        for _ in range(repeat):
            module.zero_grad()
            y, dx = forward_backward(module, x[strategy.rank], dy[strategy.rank])
        return y, dx, module

    results = on_ranks(2, one)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (1, 3)])
def test_two_ranks_are_one_batch(sizes: tuple[int, int]) -> None:
    x, dy = drawn(4, CHANNELS, 5, 6), drawn(4, CHANNELS, 5, 6, seed=1)
    whole = norm(nn.BatchNorm2d)
    y, dx = forward_backward(whole, x, dy)
    (y0, dx0, norm0), (y1, dx1, norm1) = on_two_ranks(list(x.split(sizes)), list(dy.split(sizes)))

    torch.testing.assert_close(torch.cat((y0, y1)), y)
    torch.testing.assert_close(torch.cat((dx0, dx1)), dx)
    torch.testing.assert_close(norm0.weight.grad + norm1.weight.grad, whole.weight.grad)
    torch.testing.assert_close(norm0.bias.grad + norm1.bias.grad, whole.bias.grad)
    for module in (norm0, norm1):
        torch.testing.assert_close(module.running_mean, whole.running_mean)
        torch.testing.assert_close(module.running_var, whole.running_var)
        assert module.num_batches_tracked == 1


def test_gradients_of_weight_and_bias_are_each_ranks_own() -> None:
    """As those of every parameter: the strategy adds them up, and would count these twice if they were sums already."""
    dy = [torch.full((1, CHANNELS, 2, 2), value, dtype=torch.float64) for value in (1.0, 10.0)]
    results = on_two_ranks(list(drawn(2, CHANNELS, 2, 2).split(1)), dy)
    assert [module.bias.grad.tolist() for _, _, module in results] == [[4.0] * 3, [40.0] * 3]


def test_outputs_by_hand() -> None:
    """Rank 0 has 0 and 2, rank 1 has 4 and 6: mean 3, variance 5, unbiased 20/3."""
    x = torch.arange(0, 8, 2, dtype=torch.float64).reshape(2, 1, 1, 2).expand(2, CHANNELS, 1, 2)
    (y0, _, module), (y1, _, _) = on_two_ranks(list(x.split(1)), [torch.ones(1, CHANNELS, 1, 2)] * 2)
    expected = (torch.tensor([-3.0, -1.0, 1.0, 3.0], dtype=torch.float64) / (5 + 1e-3) ** 0.5).reshape(2, 1, 2)
    torch.testing.assert_close(torch.stack((y0[0, 1], y1[0, 1])), 2 * expected)
    assert module.running_mean[0].item() == pytest.approx(0.25 * 3)
    assert module.running_var[0].item() == pytest.approx(0.75 + 0.25 * 20 / 3)


def test_running_statistics_go_on_from_step_to_step() -> None:
    x, dy = drawn(4, CHANNELS, 2, 2), torch.ones(4, CHANNELS, 2, 2, dtype=torch.float64)
    whole = norm(nn.BatchNorm2d)
    for _ in range(3):
        forward_backward(whole, x, dy)
    for _, _, module in on_two_ranks(list(x.split((3, 1))), list(dy.split((3, 1))), repeat=3):
        torch.testing.assert_close(module.running_mean, whole.running_mean)
        torch.testing.assert_close(module.running_var, whole.running_var)
        assert module.num_batches_tracked == 3


def test_one_value_on_each_rank_is_a_batch() -> None:
    """torch refuses one value for each channel; here the ranks together have two, with the variance 1."""
    x = [torch.full((1, CHANNELS, 1, 1), value, dtype=torch.float64) for value in (1.0, 3.0)]
    (y0, _, module), (y1, _, _) = on_two_ranks(x, [torch.ones_like(x[0])] * 2)
    assert [y0[0, 1].item(), y1[0, 1].item()] == pytest.approx([-2 / 1.001**0.5, 2 / 1.001**0.5])
    assert module.running_var[0].item() == pytest.approx(0.75 + 0.25 * 2)


def test_a_large_mean_does_not_swallow_the_variance() -> None:
    """Squares of 10000 have steps of 8 in float32, and the variance is 1."""
    offsets = torch.tensor([-1.0, 1.0]).repeat(32).reshape(2, 1, 4, 8).expand(2, CHANNELS, 4, 8)
    results = on_two_ranks(list((offsets + 1e4).split(1)), [torch.ones(1, CHANNELS, 4, 8)] * 2)
    for y, _, _ in results:
        assert y.dtype == torch.float32
        torch.testing.assert_close(y[:, 1], 2 * offsets[:1, 1] / 1.001**0.5)


def test_half_precision_goes_out_as_it_came_and_is_computed_in_float32() -> None:
    """Squares of 300 are out of float16's range."""
    x = (drawn(4, CHANNELS, 5, 6) * 100).half()
    dy = drawn(4, CHANNELS, 5, 6, seed=1).half()
    whole = norm(nn.BatchNorm2d)
    y, dx = forward_backward(whole, x.double(), dy.double())

    def one(strategy: ThreadRank) -> tuple[Tensor, Tensor, nn.BatchNorm2d]:
        module = norm(SyncBatchNorm2d, torch.float32)
        connect(module, lambda values: strategy.all_reduce(values, "sum"))
        rows = slice(0, 3) if strategy.rank == 0 else slice(3, 4)
        return *forward_backward(module, x[rows], dy[rows]), module

    (y0, dx0, norm0), (y1, dx1, norm1) = on_ranks(2, one)
    assert (y0.dtype, dx0.dtype, norm0.weight.grad.dtype) == (torch.float16, torch.float16, torch.float32)
    torch.testing.assert_close(torch.cat((y0, y1)).double(), y, rtol=2**-10, atol=2**-10)
    torch.testing.assert_close(torch.cat((dx0, dx1)).double(), dx, rtol=2**-9, atol=1e-5)
    torch.testing.assert_close(
        (norm0.weight.grad + norm1.weight.grad).double(), whole.weight.grad, rtol=1e-4, atol=1e-3
    )
    torch.testing.assert_close(norm0.running_var.double(), whole.running_var, rtol=1e-5, atol=0)


def test_one_process_that_is_connected_is_torchs_norm() -> None:
    x, dy = drawn(4, CHANNELS, 5, 6), drawn(4, CHANNELS, 5, 6, seed=1)
    whole, own = norm(nn.BatchNorm2d), norm(SyncBatchNorm2d)
    connect(own, torch.clone)
    for ours, theirs in zip(forward_backward(own, x, dy), forward_backward(whole, x, dy), strict=True):
        torch.testing.assert_close(ours, theirs)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], value)


def refuse(x: Tensor) -> Tensor:
    raise AssertionError("nothing may be added up here")


def test_evaluation_uses_the_running_statistics_and_asks_nobody() -> None:
    x = drawn(2, CHANNELS, 4, 4)
    own, whole = norm(SyncBatchNorm2d), norm(nn.BatchNorm2d)
    for module in (own, whole):
        module.running_mean.copy_(torch.tensor([4.0, 5.0, 6.0]))
        module.running_var.copy_(torch.tensor([1.0, 2.0, 3.0]))
        module.eval()
    connect(own, refuse)
    assert torch.equal(own(x), whole(x))
    assert own.num_batches_tracked == 0


def test_unconnected_it_is_torchs_norm() -> None:
    x = drawn(2, CHANNELS, 4, 4)
    assert torch.equal(norm(SyncBatchNorm2d)(x), norm(nn.BatchNorm2d)(x))


def test_connect_reaches_every_sync_norm_and_no_other() -> None:
    model = nn.Sequential(SyncBatchNorm2d(1), nn.Sequential(nn.BatchNorm2d(1), SyncBatchNorm2d(1)))
    connect(model, refuse)
    assert [getattr(m, "sum_over_ranks", None) for m in (model[0], model[1][0], model[1][1])] == [refuse, None, refuse]
    assert SyncBatchNorm2d.sum_over_ranks is None


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


def test_checkpoints_are_those_of_torchs_norm() -> None:
    own, whole = norm(SyncBatchNorm2d), nn.BatchNorm2d(CHANNELS).double()
    connect(own, refuse)
    assert list(own.state_dict()) == list(whole.state_dict())
    whole.load_state_dict(own.state_dict())
    assert whole.weight.tolist() == [0.5, 2.0, -1.0]
