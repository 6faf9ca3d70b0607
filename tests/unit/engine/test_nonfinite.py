"""Steps that are not finite: left out without a trace in weights, statistics and optimizer, and
written down.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.engine.nonfinite import Divergence, NonFiniteGuard, poison_if_nonfinite
from retina_dist.engine.train_loop import TrainLoop
from retina_dist.engine.train_step import TrainStep
from tests.unit.engine.test_train_loop import Rows, trainer

BAD_STEPS = {2, 3}


class Net(nn.Module):
    """Its batch norm keeps statistics; the loss is multiplied by what the trainer's step says."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.out = nn.Linear(5, 3)
        self.factor: dict[int, float] = {}
        self.calls = 0

    def forward(self, batch: Rows) -> dict[str, Tensor]:
        loss = nn.functional.cross_entropy(self.out(self.norm(batch.x)), batch.y)
        if self.training and self.norm.training:
            factor = self.factor.get(self.calls, 1.0)
            self.calls += 1
            return {"class": loss * factor}
        return {"class": loss}


def inspect(model: nn.Module, batch: Rows) -> list[dict[str, Any]]:
    losses = {name: float(value) for name, value in model(batch).items()}
    return [{"image_id": i, "losses": losses} for i in range(len(batch.x))]


def make(
    factor: dict[int, float],
    folder: Path | None = None,
    steps: int = 6,
    limit: int = 5,
    **options: Any,
) -> TrainLoop:
    torch.manual_seed(0)
    model = Net()
    model.factor = factor
    plan = {
        "max_duration": f"{steps}steps",
        "log_every": 1,
        "schedule": "constant",
        "warmup": "0steps",
    }
    one = trainer(model=model, **plan, **options)
    assert isinstance(one.train_step, TrainStep)
    one.train_step.guard = NonFiniteGuard(
        one.state, one.plan, one.strategy, limit=limit, folder=folder, inspect=inspect
    )
    return one


def test_poison_changes_no_gradient_of_a_finite_loss_and_poisons_that_of_another() -> None:
    bias = nn.Parameter(torch.tensor([0.3, -0.7]))
    (bias.square().sum() * 3).backward()
    expected = bias.grad.clone()
    bias.grad = None
    poison_if_nonfinite(bias.square().sum() * 3, bias).backward()
    assert torch.equal(bias.grad, expected)
    bias.grad = None
    poison_if_nonfinite(bias.sum() + math.inf, bias).backward()  # its own gradient would be finite
    assert not bias.grad.isfinite().all()


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_step_that_is_not_finite_leaves_no_trace(
    tmp_path: Path, factor: float, said: list[str]
) -> None:
    one = make(dict.fromkeys(BAD_STEPS, factor), tmp_path, steps=4)
    state, rows = one.state, one.callbacks.rows
    held: list[Any] = []
    before = one.train_step

    def keep(batches: Any) -> Any:
        held.append(copy.deepcopy((state.model.state_dict(), state.optimizer.state_dict())))
        return before(batches)

    one.train_step = keep
    one.fit()
    held.append((state.model.state_dict(), state.optimizer.state_dict()))
    for step in range(4):
        same = all(
            torch.equal(a, b)
            for a, b in zip(held[step][0].values(), held[step + 1][0].values(), strict=True)
        )
        assert same is (step in BAD_STEPS)
    momentum = [h[1]["state"][0]["momentum_buffer"] for h in held[2:]]
    assert all(torch.equal(momentum[0], m) for m in momentum)
    assert (state.skipped_steps, state.consecutive_skips) == (2, 2)
    assert [step for step, _ in rows] == [1, 2]  # no row for a step without values
    assert all(math.isfinite(v) for _, row in rows for v in row.values())
    assert "step 3: loss or gradient is not finite" in said[0]  # the first is 1, as in metrics.csv


def test_an_event_says_what_was_in_the_step(tmp_path: Path) -> None:
    make(dict.fromkeys(BAD_STEPS, math.nan), tmp_path).fit()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "nonfinite_00000003.json",
        "nonfinite_00000004.json",
    ]
    first, second = (
        json.loads((tmp_path / f"nonfinite_0000000{n}.json").read_text()) for n in (3, 4)
    )
    assert (first["step"], first["lr"], first["world_size"], first["in_a_row"]) == (3, 0.1, 1, 1)
    assert first["epoch"] == 1.0  # of ten rows four by four
    assert second["in_a_row"] == 2
    (rank,) = first["ranks"]
    assert math.isnan(rank["losses"]["class"])
    (images,) = rank["micro_batches"]
    assert [image["image_id"] for image in images] == [0, 1]  # step 3 has the last two of ten rows
    assert all(
        math.isfinite(image["losses"]["class"]) for image in images
    )  # it was not an image's fault


def test_in_fp16_finite_gradients_whose_norm_overflows_halve_the_loss_scale(
    said: list[str],
) -> None:
    """GradScaler looks at the gradients, the step at their norm; 60 steps went by without an update
    or a word.
    """
    one = make({step: 1e21 for step in range(3)}, precision="fp16")
    state = one.state
    state.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    state.model.norm = nn.Identity()
    rows = Rows(torch.ones(2, 5), torch.tensor([0, 1]))
    applied = [bool(one.train_step([rows])) for _ in range(4)]
    assert applied == [False, False, False, True]
    assert (state.scaler.get_scale(), state.skipped_steps) == (2.0, 3)
    assert state.consecutive_skips == 0


def test_a_run_stops_after_as_many_in_a_row_as_it_may(tmp_path: Path, said: list[str]) -> None:
    one = make(dict.fromkeys(range(1, 6), math.nan), tmp_path, limit=2)
    with pytest.raises(
        Divergence, match=r"step 4: .*at lr=0.1, 3 steps in a row; lower optimizer.lr"
    ) as caught:
        one.fit()
    assert caught.value.collective
    assert len(said) == 2
