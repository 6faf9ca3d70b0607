"""What every `DistributedStrategy` promises, as a function that each rank calls.

docs/extending.md shows how.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from retina_dist.base.errors import PeerLost, UserError
from retina_dist.engine.plan import TrainerConfig, resolve_plan
from retina_dist.engine.state import TrainState
from retina_dist.engine.train_step import TrainStep
from retina_dist.optim.settings import OptimizerConfig, ScheduleConfig
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.single_device import SingleDeviceStrategy

STEPS = 4  # of the small training
ROWS = 24
EXACT = 1e-12  # relative, in float64


@dataclass(frozen=True)
class Options:
    """A small training.

    Attributes:
        accumulate: micro-batches of a step.
        clip: largest norm of the gradients.
        last: micro-batches of the last step, where there are fewer.
        strided: parameters are dense in another order.
        bad: (rank, step) of an infinite loss.
        scale: the loss scale that it starts with.
        stop: the step before which it ends.
    """

    accumulate: int = 1
    clip: float | None = None
    last: int | None = None
    strided: bool = False
    bad: tuple[int, int] | None = None
    scale: float | None = None
    stop: int = STEPS


TRAININGS = {
    "plain": Options(),
    "accumulated": Options(accumulate=2),
    "accumulated, with unequal shares": Options(accumulate=5),
    "clipped": Options(clip=0.1),
    "other strides": Options(strided=True),
    "a last step with fewer micro-batches": Options(accumulate=3, last=1),
}
SKIPPED = Options(accumulate=3, last=1, bad=(0, 1))


def strategy_contract(make: Callable[[], DistributedStrategy], tolerance: float = EXACT) -> None:
    """Check the strategies that `make` gives, one after the other, on CPU or GPU.

    Raises AssertionError for a broken promise.

    Args:
        make: called on every rank, gives a new strategy.
        tolerance: relative to what one process trains in float64; give more for a strategy that
            sends rounded gradients.
    """
    with make() as strategy:
        check_collectives(strategy)
    for name, options in TRAININGS.items():
        with make() as strategy:
            check_training(strategy, name, tolerance, options)
    with make() as strategy:
        small_training(strategy, Options(accumulate=2))
        check_training(strategy, "a second model", tolerance, Options(accumulate=2))
    check_resume(make)
    with make() as strategy:
        check_skipped_step(strategy)
        check_training(strategy, "a skipped step", tolerance, SKIPPED)
        check_errors(strategy)


def check_collectives(strategy: DistributedStrategy) -> None:
    """Each rank knows what the others give, and so what all must get."""
    rank = strategy.rank
    world = strategy.world_size
    assert 0 <= rank < world, f"rank {rank} of {world}"
    assert strategy.is_main == (rank == 0), f"is_main is {strategy.is_main} on rank {rank}"
    for device in {strategy.device, torch.device("cpu")}:
        for dtype in (torch.float32, torch.float64, torch.int64):
            _check_tensors(strategy, device, dtype)
    ranks = torch.arange(world, dtype=torch.float64)
    _equal(strategy.all_reduce(ranks[rank]), ranks.mean(), "all_reduce, whose default is the mean,")

    own: dict[str, Any] = {"a": torch.arange(rank), "b": ["x" * rank, 2.5, None], "c": {"d": True}}
    for r, received in enumerate(strategy.gather_objects(own)):  # broadcast_object from each rank
        assert received.pop("a").tolist() == list(range(r))
        assert received == {"b": ["x" * r, 2.5, None], "c": {"d": True}}, "of another rank"

    for level, highest in ((0, 0), (rank, world - 1), (0, 0)):
        answer = strategy.all_reduce_max_async(level)
        strategy.all_reduce(torch.ones(3, device=strategy.device))
        assert answer() == highest, "all_reduce_max_async gives the highest level of any rank"


def _check_tensors(strategy: DistributedStrategy, device: torch.device, dtype: torch.dtype) -> None:
    """Sums, gathers and broadcasts of one type, with values that no smaller type holds."""
    rank = strategy.rank
    world = strategy.world_size
    big = (2**20 if dtype == torch.float32 else 2**40) + 1
    start = torch.arange(6, dtype=dtype).view(2, 3).t()
    given = torch.stack([start * (r - 1) + big for r in range(world)])

    x = given[rank].t().contiguous().t().to(device)
    reduced = {"min": given.amin(0), "max": given.amax(0), "sum": given.sum(0)}
    for op, expected in reduced.items():
        result = strategy.all_reduce(x, op)  # type: ignore[arg-type]
        _equal(result, expected, f"all_reduce {op}")
        result.zero_()
        _equal(x, given[rank], "the tensor given to all_reduce, which must stay as it is,")
    _equal(strategy.all_reduce(x[0, 0], "max"), given[:, 0, 0].amax(), "all_reduce of a scalar")

    rising = list(range(1, world + 1))
    for counts in ([1] * world, rising, rising[::-1], [0] * world):
        for fewer in (0, 1):  # then some ranks have no rows
            rows = [given[r, :1].expand(max(counts[r] - fewer, 0), 2) for r in range(world)]
            gathered = strategy.all_gather(rows[rank].to(device))
            _equal(gathered, torch.cat(rows), f"all_gather of {counts} rows")

    receivers = torch.arange(world, dtype=dtype)[:, None]
    exchanged = strategy.all_to_all((given[rank, 0] + receivers).to(device))
    _equal(exchanged, given[:, 0] + rank, "all_to_all")

    for src in sorted({0, world // 2, world - 1}):
        y = given[rank].clone().to(device)
        _equal(strategy.broadcast(y, src=src), given[src], f"broadcast from rank {src}")
        _equal(y, given[src], "the tensor given to broadcast, which must be overwritten,")


def check_training(
    strategy: DistributedStrategy, name: str, tolerance: float, options: Options
) -> None:
    """The weights, momenta and gradient norms of one process; equal on all ranks, to the bit."""
    result = small_training(strategy, options)
    alone = small_training(SingleDeviceStrategy("cpu"), options)
    _close(result, alone, tolerance, f"training, {name}")
    for key in ("weights", "momentum"):
        x = result[key].to(strategy.device)
        assert torch.equal(strategy.all_reduce(x, "min"), strategy.all_reduce(x, "max")), (
            f"training, {name}: the {key} of the ranks differ"
        )
    assert result["keys"] == sorted(Net().state_dict()), "prepare renames parameters of the model"


def check_resume(make: Callable[[], DistributedStrategy]) -> None:
    """A training that is stopped and resumed with a new strategy ends as an uninterrupted one."""
    with make() as strategy:
        whole = small_training(strategy)
    with make() as strategy:
        half = small_training(strategy, Options(stop=STEPS // 2))
    with make() as strategy:
        rest = small_training(strategy, resume=half["checkpoint"])
    rest["norms"] = torch.cat([half["norms"], rest["norms"]])
    where = "training, resumed (does the strategy keep something between steps?)"
    _close(rest, whole, EXACT, where)


def check_skipped_step(strategy: DistributedStrategy) -> None:
    """An infinite loss on the last rank skips the step, and halves the loss scale, on all ranks."""
    for scale in (None, 8.0):
        options = Options(bad=(strategy.world_size - 1, 1), scale=scale)
        result = small_training(strategy, options)
        assert (result["norms"] == 0).tolist() == [False, True, False, False], (
            "reduce first, then unscale, or only one rank skips"
        )
        assert result["scale"] == (scale or 2.0) / 2


def check_errors(strategy: DistributedStrategy) -> None:
    """A UserError on the last rank ends all ranks, with PeerLost on the others."""
    last = strategy.world_size - 1

    def fail() -> None:
        if strategy.rank == last:
            raise UserError("this rank cannot")

    try:
        strategy.run_collectively(fail)
        raise AssertionError("run_collectively must raise on every rank")
    except UserError as error:
        raised = error
    assert isinstance(raised, PeerLost) == (strategy.rank != last), (
        "the rank that failed raises its own error, the others PeerLost"
    )
    assert raised.collective == (last > 0), "the error is collective"
    assert strategy.on_main(lambda: strategy.rank) == 0


def _equal(result: Tensor, expected: Tensor, name: str) -> None:
    message = f"{name} is {result.tolist()}, not {expected.tolist()}"
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0, msg=message)


def _close(result: dict[str, Any], expected: dict[str, Any], tolerance: float, name: str) -> None:
    for key in ("weights", "momentum", "norms"):
        reference = expected[key]
        error = float((result[key] - reference).abs().max() / reference.abs().max())
        assert error <= tolerance, f"{name}: {key} differ by {error:.1e}"


@dataclass
class Rows:
    """A micro-batch; `weight` is its share in the step's mean loss, which `factor` multiplies."""

    x: Tensor
    labels: Tensor
    weight: float
    factor: float = 1.0

    def to(self, device: torch.device, non_blocking: bool = False) -> Rows:
        return replace(self, x=self.x.to(device), labels=self.labels.to(device))


class Net(nn.Module):
    """Three layers, in float64: several gradients of several sizes.

    With `strided`, matrices are dense in another order.
    """

    def __init__(self, seed: int = 0, strided: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
        )
        draws = torch.Generator().manual_seed(seed)
        for p in self.double().parameters():
            p.data = 0.3 * torch.randn(p.shape, generator=draws, dtype=torch.float64)
            if strided and p.dim() == 2:
                p.data = p.data.t().contiguous().t()

    def forward(self, batch: Rows) -> dict[str, Tensor]:
        loss = nn.functional.cross_entropy(self.layers(batch.x), batch.labels)
        return {"loss": loss * batch.factor}


def small_training(
    strategy: DistributedStrategy,
    options: Options = Options(),
    resume: dict[str, object] | None = None,
) -> dict[str, Any]:
    """The trainer's steps on rows that ranks and micro-batches share.

    `resume` is the "checkpoint" that this rank returned before.
    """
    # `broadcast_state` must make the ranks' weights equal.
    model = Net(strategy.rank, options.strided).to(strategy.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    scaler = torch.amp.GradScaler(
        strategy.device.type, options.scale or 1.0, enabled=options.scale is not None
    )
    state = TrainState(model, optimizer, scaler)
    plan = resolve_plan(
        num_images=ROWS,
        batch_size=ROWS,
        world_size=strategy.world_size,
        trainer=TrainerConfig(accumulate=options.accumulate, max_duration=f"{STEPS}steps"),
        optimizer=OptimizerConfig(lr=0.1),
        schedule=ScheduleConfig(name="constant"),
    )
    train_step = TrainStep(state, plan, strategy, TrainerConfig(gradient_clip=options.clip))
    if resume:
        state.load_state_dict(resume)
    strategy.broadcast_state(state)

    norms = []
    for step in range(state.step, options.stop):
        groups = torch.arange(ROWS).chunk(options.accumulate)
        if step == STEPS - 1:
            groups = groups[: options.last]
        factor = torch.inf if options.bad == (strategy.rank, step) else 1.0
        values = train_step(_micro_batches(strategy, step, groups, factor))
        norms.append(float(values.get("train/grad_norm", 0.0)))  # 0 of a skipped step
        state.step += 1
    momenta = [kept["momentum_buffer"].flatten() for kept in optimizer.state.values()]
    return {
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).cpu(),
        "momentum": torch.cat(momenta).cpu(),
        "norms": torch.tensor(norms, dtype=torch.float64),
        "scale": scaler.get_scale(),
        "keys": sorted(model.state_dict()),
        "checkpoint": copy.deepcopy(state.state_dict()),
    }


def _micro_batches(
    strategy: DistributedStrategy, step: int, groups: Sequence[Tensor], factor: float
) -> list[Rows]:
    """This rank's share of each group of a step's rows."""
    draws = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS, 6, generator=draws, dtype=torch.float64)
    num_rows = sum(map(len, groups))
    micro_batches = []
    for group in groups:
        share = group.tensor_split(strategy.world_size)[strategy.rank]
        weight = len(share) * strategy.world_size / num_rows
        micro_batches.append(Rows(x[share], share % 3, weight, factor))
    return micro_batches
