"""What each rank does in the distributed tests:

`python -m tests.distributed.scenarios NAME FOLDER`, under any launcher.

A scenario returns plain values, which land in FOLDER/rank_N.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import astuple
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from retina_dist.base.errors import PeerLost, UserError
from retina_dist.config.entry_point import reported_errors
from retina_dist.engine.replicas import checksum
from retina_dist.optim.clipping import clip_gradients
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.select import make_strategy
from retina_dist.testing.strategy_contract import (
    ROWS,
    SKIPPED,
    check_training,
    strategy_contract,
)
from tests.virtual_ranks import digest_rows, trained_bits


def contract() -> dict[str, Any]:
    """Everything a strategy promises, in one job; the strategy is entered anew for each part."""
    strategy_contract(lambda: make_strategy(device="cpu", timeout_s=60), tolerance=1e-13)
    found: dict[str, Any] = {}
    for compression in ("bf16", "fp16"):
        with make_strategy(device="cpu", timeout_s=60, compression=compression) as strategy:
            found[compression] = wire(strategy)
            check_training(strategy, compression, 2e-2, SKIPPED)
            found["who"] = [
                strategy.rank,
                strategy.local_rank,
                strategy.world_size,
                strategy.backend,
            ]
    return found


class Pixels(nn.Module):
    """Weights of each kind whose memory order `channels_last` changes or leaves: a convolution, one
    of 1 x 1, a plain layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 6, 1), nn.Tanh(), nn.Conv2d(6, 4, 3)
        )
        self.last, self.other, self.turn = nn.Linear(4, 3), nn.Linear(4, 3), 1

    def forward(self, x: Tensor) -> Tensor:
        features = self.layers(x).mean((2, 3))
        a, b = [layer(features) for layer in (self.last, self.other)[:: self.turn]][:: self.turn]
        return a + 2 * b


# of each step's loss: unchanged; too small for a plain cast to fp16; above the range of fp16;
# unchanged, in a shorter step
WIRE_FACTORS = {"plain": 1.0, "small": 1e-5, "overflow": 1e6, "short": 1.0}


def wire(strategy: DistributedStrategy) -> dict[str, Any]:
    """Gradients that came over the wire against those of one process in fp64, over memory formats
    and accumulation.

    For each case: the largest relative error of any parameter's gradient in each step, a checksum
        of the weights at the end, and
    the counters. The last step has one micro-batch less. A bucket is smaller than the model, so
    that there are several.
    """
    if hasattr(strategy, "bucket_mb"):
        strategy.bucket_mb = 0.001
    found = {}
    for layout, accumulate in product((torch.contiguous_format, torch.channels_last), (1, 2)):
        torch.manual_seed(0)
        model = Pixels().to(memory_format=layout)
        model.turn = -1 if strategy.rank else 1  # ranks reach layers in another order
        exact = Pixels().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        net = strategy.prepare(model, accumulate)
        before = strategy.fp16_overflows
        errors = {}
        for step, (kind, factor) in enumerate(WIRE_FACTORS.items()):
            exact.load_state_dict(model.state_dict())
            x = torch.randn(
                ROWS, 3, 7, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64
            )
            labels = torch.arange(ROWS) % 3
            groups = torch.arange(ROWS).chunk(accumulate)[
                : accumulate - (kind == "short" and accumulate > 1)
            ]
            for i, rows in enumerate(groups):
                share = rows.chunk(strategy.world_size)[strategy.rank]
                pixels = x[share].float().contiguous(memory_format=layout)
                with strategy.gradient_sync(net, enabled=i == len(groups) - 1):
                    loss = (
                        nn.functional.cross_entropy(net(pixels), labels[share])
                        * factor
                        / len(groups)
                    )
                    loss.backward()
            strategy.reduce_gradients()
            rows = torch.cat(groups)
            exact.zero_grad()
            (nn.functional.cross_entropy(exact(x[rows]), labels[rows]) * factor).backward()
            pairs = zip(model.parameters(), exact.parameters(), strict=True)
            errors[kind] = max(float((p.grad - q.grad).norm() / q.grad.norm()) for p, q in pairs)  # type: ignore[union-attr, operator]
            assert all(p.grad.stride() == p.stride() for p in model.parameters())  # type: ignore[union-attr]
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        found[f"{layout} {accumulate=}"] = {
            "errors": errors,
            "weights": [checksum(p).item() for p in model.parameters()],
            "overflows": strategy.fp16_overflows - before,
        }
    return found


def absent() -> None:
    """The last rank stays away from a collective."""
    fail_on_last_rank(lambda: time.sleep(100), timeout_s=6)


def frozen() -> None:
    """The last rank is stopped with all its threads, as a machine that hangs."""
    fail_on_last_rank(lambda: os.kill(os.getpid(), signal.SIGSTOP), timeout_s=6)


def crash() -> None:
    """The last rank fails in a way nobody foresaw, while the others wait for it."""
    fail_on_last_rank(lambda: [][1], timeout_s=60)


def unequal() -> None:
    """Each rank gives a sum another shape."""
    with make_strategy(device="cpu", timeout_s=60) as strategy:
        strategy.all_reduce(torch.ones(2 + strategy.rank))


def fail_on_last_rank(failure: Any, timeout_s: float) -> None:
    with make_strategy(device="cpu", timeout_s=timeout_s) as strategy:
        strategy.all_reduce(torch.ones(1))
        if strategy.rank == strategy.world_size - 1:
            failure()
        strategy.all_reduce(torch.ones(1))


def bad_input() -> None:
    """The last rank finds its data wrong."""
    with make_strategy(device="cpu", timeout_s=60) as strategy:

        def read() -> None:
            if strategy.rank == strategy.world_size - 1:
                raise UserError("no such folder")

        strategy.run_collectively(read)


def same_bits() -> dict[str, object]:
    """A training with virtual ranks and dropout, and the rows of its digest.csv."""
    with make_strategy(device="cpu", timeout_s=60) as strategy, TemporaryDirectory() as folder:
        rows = digest_rows(strategy, Path(folder), dropout=0.3)
        return {**trained_bits(strategy, dropout=0.3), "digest.csv": list(map(astuple, rows))}


SCENARIOS = {
    f.__name__: f for f in (contract, absent, frozen, crash, unequal, bad_input, same_bits)
}


def main(name: str, folder: str) -> None:
    torch.set_num_threads(1)
    with reported_errors():
        try:
            result = SCENARIOS[name]()
        except PeerLost as error:
            print(f"lost: {error}", file=sys.stderr, flush=True)
            raise
        (Path(folder) / f"rank_{detect_launch().rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
