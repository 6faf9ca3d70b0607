"""A training that passes from 8 processes to 7 and back is, in float64, that of one process."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.detection.batch import Batch
from retina_dist.engine.state import ExponentialMovingAverage, TrainState
from retina_dist.engine.train_step import TrainStep
from retina_dist.engine.trainer import Trainer
from retina_dist.model.sync_batch_norm import SyncBatchNorm2d, connect, count_only
from retina_dist.testing.thread_ranks import ThreadRank
from tests.plans import plan_of
from tests.unit.detection.test_module import make_annotations, make_module
from tests.unit.strategies.test_strategy_base import on_ranks

BATCH_SIZE, STEPS = 8, 6  # ten images, so every other step has two
# Augmentation draws from torch's global generator, which ranks in threads share.
PLAIN = {"hflip": 0.0, "photometric": 0.0, "scale_jitter": None}


class Net(nn.Module):
    """Two synchronised norms, and a loss of each image; ReLUs make much of any difference."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            nn.Conv2d(3, 6, 3, stride=2),
            SyncBatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 4, 3),
            SyncBatchNorm2d(4),
            nn.ReLU(),
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        with count_only(self, batch.real):
            found = self.layers(batch.images.double() / 255).mean((2, 3))  # [B, 4]
        losses = (found - batch.num_boxes[:, None]).square().sum(1)
        real = torch.ones(len(batch)) if batch.real is None else batch.real
        return {"loss": (losses * real).sum() / real.sum().clamp(min=1)}


class Losses:
    def __init__(self) -> None:
        self.values: list[float] = []

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.values.append(metrics["train/loss"])


def trained(strategy: ThreadRank, start: dict[str, Any], annotations: Any, accumulate: int, stop: int) -> Any:
    """(state_dict after step `stop`, losses) of a training that goes on from the state_dict `start`."""
    model = Net().double()
    connect(model, lambda x: strategy.all_reduce(x, "sum"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    state = TrainState(
        model, optimizer, torch.amp.GradScaler("cpu", enabled=False), ExponentialMovingAverage(model, 0.9)
    )
    state.load_state_dict(copy.deepcopy(start))
    sharing = {"world_size": strategy.world_size, "accumulate": accumulate}
    plan = plan_of(
        num_images=10, batch_size=BATCH_SIZE, max_duration=f"{STEPS}steps", stop_after=f"{stop}steps", lr=0.01, log_every=1,
        check_replicas_every="1steps", **sharing,
    )  # fmt: skip
    data = make_module(annotations, batch_size=BATCH_SIZE, rank=strategy.rank, **sharing, **PLAIN)
    losses = Losses()
    Trainer(TrainStep(state, plan, strategy), data, losses).fit()
    return state.state_dict(), losses.values


def trajectory(worlds: list[int], start: dict[str, Any], annotations: Any, accumulate: int) -> Any:
    """(state_dict, losses) after as many steps with each of these numbers of ranks."""
    state, losses = start, []
    for leg, world_size in enumerate(worlds, start=1):
        work = partial(
            trained, start=state, annotations=annotations, accumulate=accumulate, stop=leg * STEPS // len(worlds)
        )
        for result in (results := on_ranks(world_size, lambda s, work=work: work(s))):
            if isinstance(result, Exception):
                raise result
        state, found = results[0]
        losses += found
    return state, losses


@pytest.mark.parametrize(("worlds", "accumulate"), [([8, 7, 8], 1), ([3, 12], 2)])
def test_a_job_that_changes_its_size_trains_what_one_process_does(
    tmp_path: Path, worlds: list[int], accumulate: int
) -> None:
    annotations = make_annotations(tmp_path)
    torch.manual_seed(0)
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    start = TrainState(model, optimizer, scaler, ExponentialMovingAverage(model, 0.9)).state_dict()
    expected, losses = trajectory([1], start, annotations, accumulate)
    found, others = trajectory(worlds, start, annotations, accumulate)
    assert len(losses) == STEPS
    assert others == pytest.approx(losses, abs=1e-10)
    for part in ("model", "ema", "optimizer"):
        torch.testing.assert_close(found[part], expected[part], rtol=0, atol=1e-10)
    assert not torch.equal(found["model"]["layers.0.weight"], start["model"]["layers.0.weight"])
