"""A small training with virtual ranks on rows of numbers, whose bits tests compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from retina_dist.base.files import write_json
from retina_dist.data.buckets import make_buckets
from retina_dist.data.samplers import TrainSampler
from retina_dist.engine.plan import TrainerConfig
from retina_dist.engine.state import ExponentialMovingAverage, TrainState
from retina_dist.engine.train_loop import TrainLoop
from retina_dist.engine.virtual_ranks import VirtualRankStep
from retina_dist.run.digest_recorder import DigestRecorder
from retina_dist.run.resume import Run
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.testing.bits import digest_of
from retina_dist.tracking.callbacks import Callback
from retina_dist.tracking.digest import DigestRow, read_digests
from tests.plans import plan_of

VIRTUAL_RANKS = 4
NUM_ROWS = 21  # ten a step: shards of 3, 3, 2, 2, then one row in the last step, three shards empty


@dataclass
class Rows:
    x: Tensor
    labels: Tensor
    weight: float

    def to(self, device: torch.device, non_blocking: bool = False) -> Rows:
        return self


class Net(nn.Module):
    """Enough numbers for every order of a sum to have other bits."""

    def __init__(self, dropout: float = 0.0, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm2d(16) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(16, 3)
        draws = torch.Generator().manual_seed(0)  # its own: ranks may be threads
        for p in self.parameters():
            p.data = 0.3 * torch.randn(p.shape, generator=draws)

    def forward(self, batch: Rows) -> dict[str, Tensor]:
        x = self.first(batch.x)[:, :, None, None].expand(-1, -1, 2, 1)
        x = self.dropout(self.norm(x).tanh().sum((2, 3)))
        loss = nn.functional.cross_entropy(self.last(x), batch.labels)
        return {"loss": loss, "size": 1e-2 * x.square().mean()}


class Data:
    """The rows of each shard, by `TrainSampler`; a shard without any has one row of weight 0."""

    def __init__(self, strategy: DistributedStrategy, virtual_ranks: int) -> None:
        draws = torch.Generator().manual_seed(1)
        self.x = torch.randn(NUM_ROWS, 6, generator=draws)
        self.sampler = TrainSampler(
            buckets=make_buckets([[8, 8]] * NUM_ROWS, min_sizes=[8], max_size=8),
            batch_size=10,
            rank=strategy.rank,
            world_size=strategy.world_size,
            virtual_ranks=virtual_ranks,
        )
        self.position = self.sampler.position

    def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
        for step in range(start, stop):
            shards = []
            for spec in self.sampler.step(step):
                rows = torch.tensor(spec.indices or (0,))
                shards.append(Rows(self.x[rows], rows % 3, spec.weight))
            yield shards


class Recorder(Callback):
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        self.rows.append({k: v for k, v in metrics.items() if not k.startswith("time/")})


def loop_of(
    strategy: DistributedStrategy,
    *,
    step_class: type[VirtualRankStep] = VirtualRankStep,
    data_class: type[Data] = Data,
    virtual_ranks: int = VIRTUAL_RANKS,
    steps: int = 7,
    model: Net | None = None,
    **network: Any,
) -> TrainLoop:
    """With warm-up, clipping, average and momentum; two log lines an epoch of three steps."""
    model = model or Net(**network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    state = TrainState(
        model,
        optimizer,
        torch.amp.GradScaler("cpu", enabled=False),
        ExponentialMovingAverage(model, 0.9),
    )
    plan = plan_of(
        num_images=NUM_ROWS,
        batch_size=10,
        world_size=strategy.world_size,
        virtual_ranks=virtual_ranks,
        max_duration=f"{steps}steps",
        log_every=2,
        lr=0.2,
        warmup="3steps",
    )
    train_step = step_class(state, plan, strategy, TrainerConfig(gradient_clip=0.5))
    return TrainLoop(train_step, data_class(strategy, virtual_ranks), Recorder())


def bits_of(loop: TrainLoop) -> dict[str, str]:
    """Digests of the state, and of the rows that were logged."""
    content = loop.state.state_dict()
    kept = {name: content[name] for name in ("model", "optimizer", "ema")}
    return {"state": digest_of(kept), "metrics": digest_of(loop.callbacks.rows)}


def trained_bits(strategy: DistributedStrategy, **changes: Any) -> dict[str, str]:
    loop = loop_of(strategy, **changes)
    loop.fit()
    return bits_of(loop)


class WithIds(Data):
    """Rows that have ids, as images do."""

    def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
        for shards in super().train_steps(start, stop):
            for shard in shards:
                cast(Any, shard).image_ids = shard.x[:, 0].view(torch.int32).long()
            yield shards


def digest_rows(strategy: DistributedStrategy, folder: Path, **changes: Any) -> list[DigestRow]:
    """Those of a training; on every rank what the main one wrote into its folder."""
    task = SimpleNamespace(fingerprint=str, content_digests=dict, data_digests=dict)
    loop = loop_of(strategy, **{"data_class": WithIds, **changes})
    recorder = DigestRecorder(loop.state, strategy, same_losses=True)
    run = Run(folder)
    strategy.on_main(lambda: write_json(folder / "config.yaml", {"seed": 1}))
    strategy.on_main(partial(recorder.begin, run, cast(Any, task)))
    loop.callbacks = recorder
    loop.train_step = recorder.watching(loop.train_step)
    loop.metadata = lambda: {"digest": recorder.close_row()}
    loop.fit()
    written = strategy.on_main(lambda: list(map(astuple, read_digests(folder))))
    return [DigestRow(*cells) for cells in written]
