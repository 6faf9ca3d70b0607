"""Checksums, the comparison of ranks and the mean of their statistics."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.engine.replicas import (
    ReplicaMismatch,
    average_statistics,
    check_replicas,
    check_same,
    checksum,
)
from retina_dist.engine.state import TrainState
from retina_dist.engine.train_loop import TrainLoop
from retina_dist.engine.train_step import TrainStep
from retina_dist.model.sync_batch_norm import SyncBatchNorm2d, connect
from retina_dist.testing.thread_ranks import ThreadRank
from tests.plans import plan_of
from tests.unit.engine.test_train_loop import Recorder, Rows
from tests.unit.strategies.test_strategy_base import on_ranks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.uint8])
def test_any_one_flipped_bit_changes_it(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    seen = {checksum(tensor).item()}
    for place in (0, 5, 11):
        for bit in range(8 * dtype.itemsize):
            flipped = tensor.clone().flatten().view(torch.uint8)
            flipped[place * dtype.itemsize + bit // 8] ^= 1 << bit % 8
            assert checksum(flipped.view(dtype).reshape(3, 4)).item() not in seen
    assert checksum(tensor.clone()).item() in seen


# ranks against each other


def compare(*parts: dict[str, Any], step: int = 7) -> list[Any]:
    """What the comparison gives or raises on each rank; `parts` has one entry for each rank."""
    return on_ranks(
        len(parts), lambda strategy: check_replicas(parts[strategy.rank], strategy, step)
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((1, 2), "rank 1 against 0"),
        ((2, 1, 1), "rank 0 against 1, 2"),
        ((1, 2, 1, 3), "ranks 1, 3 against 0, 2"),
        ((2, 1, 2, 1), "ranks 1, 3 against 0, 2"),  # even: rank 0 is believed
        ((3, 1, 2), "ranks 1, 2 against 0"),
    ],
)
def test_a_minority_is_named_against_the_majority(values: tuple[float, ...], said: str) -> None:
    errors = compare(*[{"x": torch.tensor([value])} for value in values])
    assert all(f"differ in x ({said});" in str(error) for error in errors)


def change_anchors(model: Any) -> None:
    first, *others = model.anchor_generator.sizes
    model.anchor_generator.sizes = ((first[0] / 2, *first[1:]), *others)


CHANGES: dict[str, Callable[[Any], object]] = {
    "backbone.body.bn1.eps": lambda model: setattr(model.backbone.body.bn1, "eps", 0.0),
    "backbone.body.layer1.0.bn1.momentum": lambda model: setattr(
        model.backbone.body.layer1[0].bn1, "momentum", 0.2
    ),
    "anchor_generator.sizes.0.0": change_anchors,
    "anchor_generator.cell_anchors.4": lambda model: model.anchor_generator.cell_anchors[4].add_(1),
    "proposal_matcher.high_threshold": lambda model: setattr(
        model.proposal_matcher, "high_threshold", 0.6
    ),
    "focal_alpha": lambda model: setattr(model, "focal_alpha", 0.3),
}


def test_what_the_state_dict_does_not_hold_is_compared() -> None:
    def replicated(model: nn.Module, lr: float = 0.1) -> dict[str, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        parts = TrainState(
            model, optimizer, torch.amp.GradScaler("cpu", enabled=False)
        ).replicated()
        return {
            name: part for name, part in parts.items() if name != "model"
        }  # its tensors take long

    model = build_retinanet(num_classes=2, backbone="resnet18", fpn_channels=32)
    assert compare(replicated(model), replicated(copy.deepcopy(model))) == [None, None]
    for name, change in CHANGES.items():
        twin = copy.deepcopy(model)
        change(twin)
        error, _ = compare(replicated(model), replicated(twin))
        assert f"differ in settings.{name} (rank 1 against 0);" in str(error)
    error, _ = compare(replicated(model), replicated(model, lr=0.2))
    assert "differ in groups.0.lr (rank 1 against 0);" in str(error)


# statistics


def normed(mean: float, variance: float) -> nn.Sequential:
    """Two norms of 1 and 2 channels, the second's statistics ten times the first's."""
    model = nn.Sequential(nn.BatchNorm2d(1), nn.ReLU(), nn.Sequential(nn.BatchNorm2d(2)))
    for norm, factor in ((model[0], 1), (model[2][0], 10)):
        norm.running_mean.fill_(mean * factor)
        norm.running_var.fill_(variance * factor)
    return model


def averaged(*models: nn.Module) -> list[list[str]]:
    """The collectives that each rank calls; `models` has one model for each rank."""

    def one(strategy: ThreadRank) -> list[str]:
        average_statistics(models[strategy.rank], strategy)
        return strategy.calls

    return on_ranks(len(models), one)


def test_running_statistics_become_their_mean_by_one_collective() -> None:
    models = normed(1.0, 3.0), normed(2.0, 4.0), normed(6.0, 8.0)
    assert averaged(*models) == [["all_reduce mean"]] * 3
    for model in models:
        assert (model[0].running_mean.tolist(), model[0].running_var.tolist()) == ([3.0], [5.0])
        assert (model[2][0].running_mean.tolist(), model[2][0].running_var.tolist()) == (
            [30.0] * 2,
            [50.0] * 2,
        )
        assert model[0].weight.tolist() == [1.0]
        assert model[0].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("weights", "mean"), [((1.5, 1.5, 0.0), 1.5), ((2.0, 0.5, 0.5), 2.0), ((0.0, 0.0, 0.0), None)]
)
def test_each_rank_counts_as_much_as_it_has_images(
    weights: tuple[float, ...], mean: float | None
) -> None:
    values = (1.0, 2.0, 6.0)
    models = [normed(value, value) for value in values]
    on_ranks(
        3,
        lambda strategy: average_statistics(
            models[strategy.rank], strategy, weights[strategy.rank]
        ),
    )
    found = [model[0].running_mean.item() for model in models]
    assert found == (list(values) if mean is None else [mean] * 3)


class RowsOfSteps:
    """Two rows for each rank, with the given weights of this rank's micro-batches; a weight of 0
    comes with no rows.
    """

    def __init__(self, *weights: float) -> None:
        self.weights = weights

    def position(self, step: int) -> tuple[int, int]:
        return 0, 0

    def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
        for step in range(start, stop):
            yield [
                Rows(torch.full((2 * (w > 0), 2), step + 1.0), torch.empty(0), w)
                for w in self.weights
            ]


class MeanLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch: Rows) -> dict[str, Tensor]:
        return {"loss": self.layer(batch.x).square().mean()}  # NaN of no rows


class MaskedLoss(MeanLoss):
    """A mean over the rows that count, which is 0 / 0 without any, behind a norm that adds up
    gradients over ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = SyncBatchNorm2d(1)

    def forward(self, batch: Rows) -> dict[str, Tensor]:
        counts = torch.full((4,), float(batch.weight > 0))
        x = batch.x if batch.weight else torch.ones(4, 2)
        y = self.norm(
            self.layer(x * torch.arange(1.0, len(x) + 1)[:, None])[..., None, None]
        ).flatten()
        return {"loss": ((y - 1).square() * counts[: len(x)]).sum() / counts[: len(x)].sum()}


def fitted(
    weights: Sequence[Sequence[float]], validate: Any = None, network: type[MeanLoss] = MeanLoss
) -> list[Any]:
    """(losses, weights of the model, skipped steps) of each rank after four steps, or its error."""

    torch.manual_seed(0)
    first = network()  # not in each thread: they share the generator

    def one(strategy: ThreadRank) -> Any:
        model, recorder = copy.deepcopy(first), Recorder()
        connect(model, lambda x: strategy.all_reduce(x, "sum"))
        plan = plan_of(num_images=8, batch_size=4, max_duration="4steps", log_every=1, validate_every="2steps",
                       world_size=strategy.world_size, lr=0.01)  # fmt: skip
        state = TrainState(
            model, torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", enabled=False)
        )
        step = TrainStep(state, plan, strategy)
        metrics = (lambda net: validate(strategy.rank)) if validate else None
        TrainLoop(step, RowsOfSteps(*weights[strategy.rank]), recorder, validate=metrics).fit()
        losses = [row["train/loss"] for _, row in recorder.rows if "train/loss" in row]
        return losses, model.layer.weight.tolist(), state.skipped_steps

    return on_ranks(len(weights), one)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            ((1.0,), (0.5,)),
            "step 1 add up to 1 on rank 0 and 0.5 on rank 1, with the mean 0.75 over ranks, not 1",
        ),
        (((0.5, 0.5), (0.5,)), "step 1 has 2 on rank 0 and 1 on rank 1 micro-batches"),
        (((1.0,), ()), "step 1 has 1 on rank 0 and 0 on rank 1 micro-batches"),
        (((2.0,), (2.0,)), "step 1 add up to 2 on each rank, with the mean 2 over ranks, not 1"),
    ],
    ids=["a part dropped", "a micro-batch dropped", "no image", "twice the weight"],
)
def test_a_step_that_the_ranks_share_out_wrongly_ends_the_training(
    weights: Sequence[Sequence[float]], message: str
) -> None:
    for error in fitted(weights):
        assert type(error) is ReplicaMismatch
        assert message in str(error)


def test_a_loss_at_weight_0_is_ignored() -> None:
    """A rank without rows, whose mean loss is NaN, and one with all of them."""
    short, alone = fitted(((2.0,), (0.0,))), fitted(((1.0,),))
    for losses, weights, skipped in short:
        assert skipped == 0
        assert losses == pytest.approx(alone[0][0])
        assert weights[0] == pytest.approx(alone[0][1][0])


def test_nan_gradients_at_weight_0_reach_no_parameter_and_no_other_rank() -> None:
    (losses, weights, skipped), other = fitted(((2.0,), (0.0,)), network=MaskedLoss)
    assert skipped == 0
    assert (losses, weights) == other[:2]
    assert all(map(math.isfinite, losses))


def test_ranks_with_other_data_do_not_start() -> None:
    errors = on_ranks(
        3, lambda strategy: check_same({"seed": 0, "images": 9 - (strategy.rank == 1)}, strategy)
    )
    assert "images is 8 on rank 1 and 9 on rank 0; start all" in str(errors[1])
    assert all(isinstance(error, Exception) for error in errors)


def test_metrics_that_differ_over_ranks_end_the_first_validation() -> None:
    right = ((1.0,), (1.0,))
    for error in fitted(right, lambda rank: {"val/AP": 0.5, "val/loss": (0.6545, 1.126)[rank]}):
        assert type(error) is ReplicaMismatch
        assert (
            "the metric val/loss is 0.6545 on rank 0 and 1.126 on rank 1: the evaluator must"
            in str(error)
        )
    for error in fitted(right, lambda rank: {"val/loss": 1.0} if rank else {}):
        assert "the metric val/loss is nan on rank 0 and 1 on rank 1" in str(error)
    for losses, _, _ in fitted(
        right, lambda rank: {"val/loss": 1.0 + 1e-9 * rank, "val/recall": math.nan}
    ):
        assert len(losses) == 4


def test_an_attribute_that_leads_back_to_itself_is_compared_once() -> None:
    loop: dict[str, Any] = {"a": 1}
    loop["b"] = loop
    assert compare({"x": loop}, {"x": loop}) == [None, None]
