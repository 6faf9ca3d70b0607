"""The loop on a model that has nothing to do with detection: it must not matter to the trainer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retina_dist.base.errors import CheckpointError, Preempted, UserError
from retina_dist.engine.checkpoint import store as checkpoint
from retina_dist.engine.checkpoint.store import CheckpointStore, load_checkpoint
from retina_dist.engine.early_stopping import BestMetric
from retina_dist.engine.plan import TrainerConfig
from retina_dist.engine.state import ExponentialMovingAverage, TrainState
from retina_dist.engine.train_loop import TrainLoop
from retina_dist.engine.train_step import TrainStep
from retina_dist.strategies.launch_environment import Launch
from retina_dist.strategies.single_device import SingleDeviceStrategy
from retina_dist.tracking.callbacks import Callback
from tests.chaos import equal
from tests.plans import plan_of

NUM_IMAGES = 10


@dataclass
class Rows:
    x: Tensor
    y: Tensor
    weight: float = 1.0

    def to(self, device: torch.device, non_blocking: bool = False) -> Rows:
        return Rows(self.x.to(device), self.y.to(device), self.weight)


@dataclass
class Data:
    """Ten rows, four a step: 4, 4 and 2 an epoch, in an order of each epoch's own."""

    accumulate: int = 1
    batch_size: int = 4
    seen: list[int] = field(default_factory=list)

    def position(self, step: int) -> tuple[int, int]:
        epoch, index = divmod(step, math.ceil(NUM_IMAGES / self.batch_size))
        return epoch, index * self.batch_size

    def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
        everything = torch.randn(NUM_IMAGES, 5, generator=torch.Generator().manual_seed(1))
        for step in range(start, stop):
            epoch, cursor = self.position(step)
            order = torch.randperm(NUM_IMAGES, generator=torch.Generator().manual_seed(epoch))
            rows = order[cursor : cursor + self.batch_size]
            self.seen += rows.tolist()
            parts = [part for part in rows.tensor_split(self.accumulate) if len(part)]
            yield [Rows(everything[p], (p % 3), weight=len(p) / len(rows)) for p in parts]


class Classifier(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)
        )

    def forward(self, batch: Rows) -> Any:
        logits = self.layers(batch.x)
        return {
            "cross_entropy": nn.functional.cross_entropy(logits, batch.y),
            "size": 1e-3 * logits.square().mean(),
        }


class Recorder(Callback):
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))

    on_validation = on_log


def trainer(folder: Path | None = None, *, data: Data | None = None, **changes: Any) -> TrainLoop:
    torch.manual_seed(0)
    names = [
        "max_duration",
        "profile",
        "stop_after",
        "validate_every",
        "checkpoint_every",
        "log_every",
        "schedule",
    ]
    plan_changes = {k: changes.pop(k) for k in (*names, "warmup") if k in changes}
    best = BestMetric(
        changes.pop("monitor", None), changes.pop("mode", None), changes.pop("patience", None)
    )
    data = data or Data()
    model = changes.pop("model", None) or Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    ema = ExponentialMovingAverage(model, 0.9) if changes.pop("ema", False) else None
    scaler = torch.amp.GradScaler("cpu", enabled=changes.get("precision") == "fp16")
    state = TrainState(model, optimizer, scaler, ema, best)
    plan = plan_of(
        num_images=NUM_IMAGES,
        batch_size=data.batch_size,
        accumulate=data.accumulate,
        lr=0.1,
        **{
            "schedule": "cosine",
            "warmup": "2steps",
            "max_duration": "4epochs",
            "log_every": 2,
            **plan_changes,
        },
    )
    strategy = changes.pop("strategy", None) or SingleDeviceStrategy("cpu")
    store = CheckpointStore(folder, keep_last=100, best=best) if folder else None
    keys = ("precision", "gradient_clip", "checkpoint_minutes")
    settings = TrainerConfig(**{k: changes.pop(k) for k in keys if k in changes})
    skips_images = changes.pop("skips_images", False)
    train_step = TrainStep(state, plan, strategy, settings, skips_images=skips_images)
    callbacks = changes.pop("callbacks", None) or Recorder()
    return TrainLoop(train_step, data, callbacks, **{"store": store, **changes})


def weights(one: TrainLoop) -> Tensor:
    return torch.cat([p.detach().flatten() for p in one.state.model.parameters()])


def test_every_image_once_an_epoch_and_one_row_a_log_interval() -> None:
    one = trainer()
    one.fit()
    assert one.state.step == 12
    for epoch in range(4):
        assert sorted(one.data.seen[epoch * 10 : epoch * 10 + 10]) == list(range(10))
    steps = [step for step, _ in one.callbacks.rows]
    assert steps == [2, 3, 4, 6, 8, 9, 10, 12]  # every second step, and before each validation
    _, row = one.callbacks.rows[-1]
    assert row["train/loss"] == pytest.approx(
        row["train/loss_cross_entropy"] + row["train/loss_size"], rel=1e-5
    )
    assert row["train/lr"] == one.plan.lr_at(11)
    assert row["train/epoch"] == 4.0


def test_one_step_by_hand() -> None:
    """The trainer's step equals plain PyTorch: mean loss, clip, SGD."""
    one = trainer(gradient_clip=0.05)
    (batch,) = next(one.data.train_steps(0, 1))
    reference = Classifier()
    reference.load_state_dict(one.state.model.state_dict())
    sum(reference(batch).values()).backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    optimizer = torch.optim.SGD(
        reference.parameters(), lr=one.plan.lr_at(0), momentum=0.9, weight_decay=1e-3
    )
    optimizer.step()
    values = one.train_step([batch])
    assert values["train/grad_norm"] == norm > 0.05
    assert torch.equal(
        weights(one), torch.cat([p.detach().flatten() for p in reference.parameters()])
    )


@pytest.mark.parametrize("stop", [1, 3, 5, 7])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_stop_and_resume_is_bit_exact(tmp_path: Path, stop: int, precision: str) -> None:
    def made(folder: Path, **settings: Any) -> TrainLoop:
        torch.manual_seed(0)
        return trainer(
            folder, model=Classifier(dropout=0.5), ema=True, precision=precision, **settings
        )

    whole = made(tmp_path / "whole")
    whole.fit()
    first = made(tmp_path / "parts", stop_after=f"{stop}steps")
    first.fit()
    second = made(tmp_path / "parts")
    second.state.load_state_dict(load_checkpoint(tmp_path / "parts" / "last.pt"))
    assert second.state.step == stop
    second.fit()
    assert torch.equal(weights(whole), weights(second))
    assert first.data.seen + second.data.seen == whole.data.seen
    a, b = (
        load_checkpoint(tmp_path / "whole" / "last.pt"),
        load_checkpoint(tmp_path / "parts" / "last.pt"),
    )
    assert all(equal(a[part], b[part]) for part in ("ema", "optimizer", "scaler"))


class Draws(Classifier):
    """Notes a random number of each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def forward(self, batch: Rows) -> Any:
        self.drawn.append(float(torch.rand(())))
        return super().forward(batch)


def test_every_rank_and_step_draws_random_numbers_of_its_own() -> None:
    """All ranks had rank 0's state at the start, and so the same dropout in every step."""
    drawn = []
    for rank in (0, 1, 2, 0):
        strategy = SingleDeviceStrategy("cpu")
        strategy.launch = Launch(rank=rank)
        one = trainer(model=Draws(), strategy=strategy, data=Data(accumulate=2))
        one.train_step(next(one.data.train_steps(0, 1)))
        one.state.step = 1
        one.train_step(next(one.data.train_steps(1, 2)))
        drawn.append(one.state.model.drawn)
    assert len({number for numbers in drawn for number in numbers}) == 3 * 4
    assert drawn[0] == drawn[3]


def test_the_loss_is_the_mean_over_the_images_that_could_be_read() -> None:
    """A quarter of each step's images is bad: the others count as before in the step, and all of
    them in the log.
    """

    class Bad(Data):
        def train_steps(self, start: int, stop: int) -> Iterator[list[Rows]]:
            for batches in super().train_steps(start, stop):
                yield [replace(batch, weight=0.75 * batch.weight) for batch in batches]

    whole, bad = (
        trainer(max_duration="3steps", stop_after="1steps", log_every=1),
        trainer(
            data=Bad(), max_duration="3steps", stop_after="1steps", log_every=1, skips_images=True
        ),
    )
    for one in (whole, bad):
        one.fit()
    (_, expected), (_, found) = (one.callbacks.rows[0] for one in (whole, bad))
    for name in ("train/loss", "train/loss_size"):
        assert found[name] == pytest.approx(expected[name], rel=1e-6)
    assert found["train/grad_norm"] == pytest.approx(0.75 * expected["train/grad_norm"], rel=1e-5)


def scripted(values: list[float]) -> Any:
    remaining = iter(values)
    return lambda model: {"score": next(remaining)}


def test_the_best_checkpoint_is_that_of_the_best_validation(tmp_path: Path) -> None:
    one = trainer(tmp_path, validate=scripted([0.1, 0.5, 0.4, 0.3]), monitor="score", patience=2)
    one.fit()
    assert one.state.step == 12
    assert one.state.best.value == 0.5
    assert load_checkpoint(tmp_path / "best.pt")["step"] == 6


def test_the_last_checkpoint_is_on_the_disk_when_fit_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint.write_bytes
    monkeypatch.setattr(
        checkpoint, "write_bytes", lambda *arguments: (time.sleep(0.1), write(*arguments))
    )
    trainer(tmp_path, max_duration="1epoch").fit()
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 3
    one = trainer(tmp_path / "failed", validate=scripted([0.5]), monitor="score")
    with pytest.raises(StopIteration):  # the second validation, which a resume makes first
        one.fit()
    again = trainer(validate=scripted([0.7, 0.6, 0.5]), monitor="score")
    again.state.load_state_dict(load_checkpoint(tmp_path / "failed" / "last.pt"))
    again.fit()
    assert [step for step, row in again.callbacks.rows if "score" in row] == [
        6,
        9,
        12,
    ]
    assert load_checkpoint(tmp_path / "failed" / "best.pt")["step"] == 3


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def full(*arguments: Any) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr(checkpoint, "write_bytes", full)
    for changes, error in (
        ({"max_duration": "1epoch"}, CheckpointError),  # at the end
        ({"max_duration": "9epochs"}, CheckpointError),  # at the next save
        ({"stop_reason": lambda: "asked to"}, CheckpointError),  # nobody is told that there is one
        (
            {"validate": scripted([0.5]), "monitor": "score", "checkpoint_every": "5steps"},
            CheckpointError,
        ),
        (
            {"validate": scripted([0.5]), "monitor": "score"},
            StopIteration,
        ),  # what came first is not hidden
    ):
        said.clear()
        with pytest.raises(
            error, match="was not saved: the disk is full" if error is CheckpointError else None
        ):
            trainer(tmp_path, **changes).fit()
        assert ["was not saved: the disk is full" in words for words in said] == [True] * (
            error is StopIteration
        )


def test_a_run_stopped_between_two_log_lines_writes_the_same_rows_as_one_that_is_not(
    tmp_path: Path,
) -> None:
    whole = trainer(log_every=3)
    whole.fit()
    asked: list[int] = []
    first = trainer(
        tmp_path,
        log_every=3,
        stop_reason=lambda: "asked to" if len(asked) == 4 else asked.append(1),
    )
    with pytest.raises(Preempted, match="stopped at step 5"):
        first.fit()
    second = trainer(log_every=3)
    second.state.load_state_dict(load_checkpoint(tmp_path / "last.pt"))
    second.fit()
    rows = first.callbacks.rows + second.callbacks.rows
    assert [without_times(row) for row in rows] == [
        without_times(row) for row in whole.callbacks.rows
    ]


def test_minutes_without_a_checkpoint_bring_one_and_change_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainer(log_every=3)
    whole.fit()
    clock = [0.0]  # in seconds; a step takes 30
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    timed = trainer(
        tmp_path,
        log_every=3,
        checkpoint_minutes=1,
        stop_reason=lambda: clock.__setitem__(0, clock[0] + 30),
    )
    timed.fit()
    saved = [load_checkpoint(path) for path in sorted(tmp_path.glob("*.pt"))]
    # two steps after each validation's own (at 3, 6, 9 and 12), from which it counts anew
    assert sorted({content["step"] for content in saved}) == [2, 3, 5, 6, 8, 9, 11, 12]
    assert torch.equal(weights(timed), weights(whole))


def without_times(row: tuple[int, dict[str, float]]) -> tuple[int, dict[str, float]]:
    return row[0], {name: value for name, value in row[1].items() if not name.startswith("time/")}
