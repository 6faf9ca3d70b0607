"""Early stopping means the same on any number of processes.

The regression: epochs split over workers cut 20 epochs to 5 a node, too few for a patience counted
in them. Here an epoch is one pass over the data by all ranks together, a validation sees the whole
set, and the patience counts such validations.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn

from retina_dist.config.compose import load_config
from retina_dist.config.run_config import RunConfig, task_class
from retina_dist.engine.train_loop import TrainLoop
from retina_dist.engine.train_step import TrainStep
from retina_dist.run.build import best_metric, build_plan, build_state
from retina_dist.strategies.single_device import SingleDeviceStrategy
from tests.unit.engine.test_train_loop import Recorder, trainer
from tests.unit.strategies.test_strategy_base import ThreadRank, on_ranks

EPOCHS, PATIENCE = 20, 1
IMAGES, BATCH_SIZE = (
    7,
    4,
)  # two steps an epoch; two and four ranks cannot share the three images of the second equally
SETTINGS = [
    *(
        "task=classification",
        f"data.drawn={{num_train: {IMAGES}, num_val: 7, image_size: 16, seed: 0}}",
    ),
    *("data.image_size=16", "data.val_resize=16", "data.mixup=0.2", "data.num_workers=0"),
    *(
        f"data.batch_size={BATCH_SIZE}",
        "data.val_batch_size=2",
        f"trainer.max_duration={EPOCHS}epochs",
    ),
    *(
        "model.architecture=shufflenet_v2_x0_5",
        "model.norm=frozen_bn",
        "optimizer.lr=0.02",
        "schedule=constant",
    ),
    *(
        "trainer.monitor=val/loss",
        f"trainer.patience={PATIENCE}",
        "trainer.check_replicas_every=0steps",
    ),
]


class Seen:
    """The data of a rank, which notes the ids of the images that each epoch had."""

    reading = (
        threading.Lock()
    )  # augmentation draws from torch's global generator, which ranks in threads share

    def __init__(self, data: Any) -> None:
        self.data, self.position = data, data.position
        self.epochs: dict[int, list[int]] = {}

    def train_steps(self, start: int, stop: int) -> Any:
        steps = iter(self.data.train_steps(start, stop))
        for step in range(start, stop):
            with self.reading:
                batches = next(steps)
            for batch in batches:
                ids = batch.image_ids[batch.real_rows()].tolist()
                self.epochs.setdefault(self.position(step)[0], []).extend(ids)
            yield batches


def fit(config: RunConfig, model: nn.Module, strategy: Any) -> dict[str, Any]:
    """Train by `config` on one rank; what it knows at the end."""
    task = task_class(config)(config, strategy)
    plan = build_plan(config, task.num_images, strategy.world_size)
    state = build_state(config, copy.deepcopy(model), strategy, best_metric(config, task.validates))
    data, log = task.build_data(), Recorder()
    seen = Seen(data)
    TrainLoop(
        TrainStep(state, plan, strategy), seen, log, validate=task.build_evaluator(data)
    ).fit()
    validations = {step: row["val/loss"] for step, row in log.rows if "val/loss" in row}
    return {
        "step": state.step,
        "epochs": seen.epochs,
        "validations": validations,
        "best": state.best.value,
    }


@pytest.fixture(autouse=True)
def shared_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models draw nothing; a rank that seeded the threads' one generator would change what
    another's augmentation draws.
    """
    monkeypatch.setattr("retina_dist.engine.train_step.seed_step", lambda *key: None)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    config: RunConfig = load_config(
        "train", [*SETTINGS, f"data.root={tmp_path_factory.mktemp('early') / 'drawn'}"]
    )
    task_class(config).prepare(config)
    return config


@pytest.fixture(scope="module")
def model(config: RunConfig) -> nn.Module:
    torch.manual_seed(0)
    return task_class(config)(config, SingleDeviceStrategy("cpu")).build_model().double()


@pytest.fixture(scope="module")
def alone(config: RunConfig, model: nn.Module) -> dict[str, Any]:
    return fit(config, model, SingleDeviceStrategy("cpu"))


def test_one_process_stops_when_its_patience_is_used_up(alone: dict[str, Any]) -> None:
    losses = list(alone["validations"].values())
    best = losses.index(min(losses))
    assert 0 < best < len(losses) - 1, "the loss falls and rises"
    assert len(losses) == best + 1 + PATIENCE < EPOCHS
    assert list(alone["validations"]) == [2 * epoch for epoch in range(1, len(losses) + 1)]
    assert alone["best"] == min(losses)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_stop_at_the_same_step_with_the_same_metric(
    world_size: int, config: RunConfig, model: nn.Module, alone: dict[str, Any]
) -> None:
    ranks = on_ranks(world_size, lambda s: fit(config, model, s))
    for rank in ranks:
        assert isinstance(rank, dict), rank
        assert rank["step"] == alone["step"]
        assert rank["best"] == pytest.approx(
            alone["best"], rel=1e-6
        )  # the evaluator adds up in float32
    assert ranks[0]["validations"] == pytest.approx(alone["validations"], rel=1e-6)
    for epoch, images in alone["epochs"].items():
        assert sorted(i for rank in ranks for i in rank["epochs"][epoch]) == sorted(images), (
            "one pass over the data"
        )
        assert len(images) == IMAGES


def test_ranks_whose_metrics_differ_stop_together() -> None:
    """As on machines of several kinds; a rank that ended on its own would leave the
    others waiting.
    """

    def train(strategy: ThreadRank) -> Any:
        scores = iter(([0.5, 0.4, 0.3], [0.5, 0.6, 0.3])[strategy.rank])
        one = trainer(
            validate=lambda model: {"score": next(scores)},
            monitor="score",
            patience=2,
            strategy=strategy,
        )
        return one.fit(), one.state.step, one.state.best.value

    assert on_ranks(2, train) == [({"score": 0.3}, 9, 0.5)] * 2, (
        "the main rank's, after 9 of 12 steps"
    )
