"""What every `DistributedStrategy` promises, as a function that an own strategy runs under its launcher.

    # mpirun -np 2 python contract.py
    from retina_dist.testing.strategy_contract import strategy_contract
    strategy_contract(lambda: MyStrategy(MySettings(), detect_launch()))

Every rank calls it; a broken promise raises AssertionError.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from retina_dist.engine.state import TrainState
from retina_dist.errors import PeerLost, UserError
from retina_dist.optim.optimizer import clip_gradients
from retina_dist.strategies.base import DistributedStrategy, Stateful
from retina_dist.strategies.single_device import SingleDeviceStrategy

STEPS, ROWS = 4, 24  # of the small training
EXACT = 1e-12  # relative, in float64

TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulate": 2},
    "clipped": {"clip": 0.1},
    "other strides": {"strided": True},
    "a last step with fewer micro-batches": {"accumulate": 3, "backwards": 1},
}


def strategy_contract(make: Callable[[], DistributedStrategy], tolerance: float = EXACT) -> None:
    """Check the strategies that `make` gives, one entered after the other, on CPU or GPU.

    They must communicate as documented, train what one process trains in float64, within `tolerance` (relative; larger for a
    strategy that sends rounded gradients), go on from a checkpoint as if they had not stopped, train a second model, skip a step
    on all ranks when one has an infinite loss, and end all ranks when one fails.
    """
    with make() as strategy:
        check_collectives(strategy)
    for name, options in TRAININGS.items():
        with make() as strategy:
            check_training(strategy, name, tolerance, **options)
    with make() as strategy:
        small_training(strategy, accumulate=2)
        check_training(strategy, "a second model", tolerance, accumulate=2)
    check_resume(make)
    with make() as strategy:
        check_skipped_step(strategy)
        check_errors(strategy)


def check_collectives(strategy: DistributedStrategy) -> None:
    """Values by hand, for each type and operation, for ragged and empty rows, and for objects."""
    rank, world = strategy.rank, strategy.world_size
    ranks = range(world)
    assert 0 <= rank < world, f"rank {rank} of {world}"
    assert strategy.is_main == (rank == 0), f"is_main is {strategy.is_main} on rank {rank}"
    for device in {strategy.device, torch.device("cpu")}:
        for dtype in (torch.float32, torch.float64, torch.int64):
            big = 2**20 + 1 if dtype == torch.float32 else 2**40 + 1  # exact in this type, but in no smaller one
            x = torch.tensor([[rank + 1, -rank], [2 * rank, big]], dtype=dtype, device=device)
            total = strategy.all_reduce(x, "sum")
            _equal(total, [[sum(r + 1 for r in ranks), -sum(ranks)], [2 * sum(ranks), big * world]], "all_reduce sum")
            _equal(strategy.all_reduce(x, "min"), [[1, -(world - 1)], [0, big]], "all_reduce min")
            _equal(strategy.all_reduce(x, "max"), [[world, 0], [2 * (world - 1), big]], "all_reduce max")
            total.zero_()
            _equal(x, [[rank + 1, -rank], [2 * rank, big]], "the tensor given to all_reduce, which must stay as it is,")
            one = torch.tensor([big + rank], dtype=dtype, device=device)
            _equal(strategy.all_gather(one), [big + r for r in ranks], "all_gather")
        x = torch.tensor([float(rank), 1.0], device=device)
        _equal(strategy.all_reduce(x), [sum(ranks) / world, 1.0], "all_reduce, whose default is the mean,")
        _equal(
            strategy.all_reduce(torch.tensor(float(rank), device=device), "max"), world - 1.0, "all_reduce of a scalar"
        )
        transposed = torch.arange(6.0, device=device).view(2, 3).t() + rank
        rows = [[sum(v + r for r in ranks) for v in pair] for pair in ((0, 3), (1, 4), (2, 5))]
        _equal(strategy.all_reduce(transposed, "sum"), rows, "all_reduce of a transposed tensor")
        for counts in ([r + 1 for r in ranks], [world - r for r in ranks], list(ranks), list(ranks)[::-1]):
            gathered = strategy.all_gather(torch.full((counts[rank], 2), float(rank), device=device))
            _equal(gathered, [[r] * 2 for r in ranks for _ in range(counts[r])], f"all_gather of {counts} rows")
        assert strategy.all_gather(torch.zeros(0, 7, device=device)).shape == (0, 7), "all ranks' rows are empty"
        for src in sorted({0, world // 2, world - 1}):
            x = torch.tensor([float(rank), 7.0], device=device)
            _equal(strategy.broadcast(x, src=src), [src, 7.0], f"broadcast from rank {src}")
            _equal(x, [src, 7.0], "the tensor given to broadcast, which must be overwritten,")
    sent = {"a": torch.arange(3), "b": [1, 2.5, None, "x"], "c": {"d": True}} if strategy.is_main else None
    received: Any = strategy.broadcast_object(sent)
    assert {**received, "a": received["a"].tolist()} == {"a": [0, 1, 2], "b": [1, 2.5, None, "x"], "c": {"d": True}}
    answer = strategy.all_reduce_max_async(rank)
    strategy.all_reduce(torch.ones(3, device=strategy.device))
    assert answer() == world - 1, "all_reduce_max_async gives the highest level of any rank"


def check_training(strategy: DistributedStrategy, name: str, tolerance: float, **options: Any) -> None:
    """The weights, momenta and gradient norms of one process; weights equal on all ranks, to the bit."""
    result = small_training(strategy, **options)
    _close(result, small_training(SingleDeviceStrategy("cpu"), **options), tolerance, f"training, {name}")
    _equal_on_all_ranks(strategy, result["weights"], name)
    assert result["keys"] == sorted(Net().state_dict()), "prepare renames parameters of the model"


def check_resume(make: Callable[[], DistributedStrategy]) -> None:
    """A training that stops, and goes on with a new strategy, ends as one that does not stop."""
    with make() as strategy:
        whole = small_training(strategy)
    with make() as strategy:
        half = small_training(strategy, stop=STEPS // 2)
    with make() as strategy:
        rest = small_training(strategy, resume=half["checkpoint"])
    del rest["norms"], whole["norms"]
    _close(
        rest, whole, EXACT, "training, resumed (does the strategy have a state without state_dict and load_state_dict?)"
    )


def check_skipped_step(strategy: DistributedStrategy) -> None:
    """An infinite loss on the last rank in the second step skips that step on all ranks."""
    result = small_training(strategy, bad=(strategy.world_size - 1, 1), scale=8.0)
    assert result["moved"] == [True, False, True, True], "reduce first, then unscale, or only one rank skips"
    _equal_on_all_ranks(strategy, result["weights"], "a skipped step")


def check_errors(strategy: DistributedStrategy) -> None:
    """A UserError on the last rank ends all ranks, with PeerLost on the others."""
    last = strategy.world_size - 1

    def fail() -> None:
        if strategy.rank == last:
            raise UserError("this rank cannot")

    caught: UserError | None = None
    try:
        strategy.run_collectively(fail)
    except UserError as error:
        caught = error
    assert caught is not None, "run_collectively must raise on every rank"
    assert isinstance(caught, PeerLost) == (strategy.rank != last)
    assert caught.collective or strategy.world_size == 1
    assert strategy.on_main(lambda: strategy.rank) == 0


def _equal(result: Tensor, expected: Any, name: str) -> None:
    right = torch.tensor(expected, dtype=result.dtype).tolist()
    assert result.tolist() == right, f"{name} is {result.tolist()}, not {right}"


def _close(result: dict[str, Any], expected: dict[str, Any], tolerance: float, name: str) -> None:
    for key in {"weights", "momentum", "norms"} & result.keys():
        a, b = torch.tensor(result[key], dtype=torch.float64), torch.tensor(expected[key], dtype=torch.float64)
        error = float((a - b).abs().max() / b.abs().max())
        assert error <= tolerance, f"{name}: {key} differ by {error:.1e}"


def _equal_on_all_ranks(strategy: DistributedStrategy, values: list[float], name: str) -> None:
    x = torch.tensor(values, dtype=torch.float64, device=strategy.device)
    lowest, highest = strategy.all_reduce(x, "min"), strategy.all_reduce(x, "max")
    assert torch.equal(lowest, highest), f"{name}: the weights of the ranks differ"


class Net(nn.Module):
    """Three layers: several gradients of several sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def small_training(
    strategy: DistributedStrategy,
    *,
    accumulate: int = 1,
    clip: float | None = None,
    backwards: int | None = None,
    bad: tuple[int, int] | None = None,
    scale: float | None = None,
    strided: bool = False,
    stop: int = STEPS,
    resume: bytes | None = None,
) -> dict[str, Any]:
    """The trainer's step on rows that are shared out over ranks and micro-batches; `bad` is (rank, step) of an infinite loss.

    `backwards` is how many of the `accumulate` micro-batches there are in the last step; `resume` a rank's "checkpoint" of before.
    """
    device, model = strategy.device, _net(strategy, strided)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    scaler = torch.amp.GradScaler(device.type, init_scale=scale or 1.0, enabled=scale is not None)
    state = TrainState(model, optimizer, scaler)
    net = strategy.prepare(model, accumulate)
    if resume:
        content = torch.load(io.BytesIO(resume), map_location="cpu", weights_only=True)
        state.load_state_dict(content["state"])
        if isinstance(strategy, Stateful):
            strategy.load_state_dict(content["strategy"])
    strategy.broadcast_state(state)
    norms, moved, scales = [], [], []
    for step in range(state.step, stop):
        rows = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64).to(device)
        labels = torch.arange(ROWS, device=device) % 3
        count = backwards if backwards and step == STEPS - 1 else accumulate
        groups = torch.arange(ROWS).chunk(accumulate)[:count]
        for i, group in enumerate(groups):
            share = group.tensor_split(strategy.world_size)[strategy.rank]
            with strategy.gradient_sync(net, enabled=i == len(groups) - 1):
                loss = nn.functional.cross_entropy(net(rows[share]), labels[share], reduction="sum")
                # ranks may have unequal shares, so that the mean over ranks is the mean over rows
                loss = loss * strategy.world_size / (len(group) * len(groups))
                if bad == (strategy.rank, step):
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
        strategy.reduce_gradients()
        scaler.unscale_(optimizer)
        norms.append(clip_gradients(model.parameters(), clip).item())
        before = flat(model)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        moved.append(not torch.equal(before, flat(model)))
        scales.append(scaler.get_scale())
        state.step += 1
    checkpoint = io.BytesIO()
    own = strategy.state_dict() if isinstance(strategy, Stateful) else None
    torch.save({"state": state.state_dict(), "strategy": own}, checkpoint)
    return {
        "weights": flat(model).tolist(),
        "momentum": torch.cat([s["momentum_buffer"].flatten() for s in optimizer.state.values()]).tolist(),
        "norms": norms,
        "moved": moved,
        "scales": scales,
        "keys": sorted(model.state_dict()),
        "checkpoint": checkpoint.getvalue(),
    }


def _net(strategy: DistributedStrategy, strided: bool) -> Net:
    """On the strategy's device, with other weights on each rank, which `broadcast_state` must make equal."""
    draws = torch.Generator().manual_seed(strategy.rank)
    model = Net().double().to(strategy.device)
    for p in model.parameters():
        p.data = (0.3 * torch.randn(p.shape, generator=draws, dtype=torch.float64)).to(strategy.device)
        if strided and p.dim() == 2:
            p.data = p.data.t().contiguous().t()  # as channels last: dense, in another order
    return model


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector [n]."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])
