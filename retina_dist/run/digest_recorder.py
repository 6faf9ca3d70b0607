"""Writes digest.csv while a run trains: `logging.digest`.

A step makes no host wait and no collective for it: what it gives stays on the device until the
values are logged, or a checkpoint is written, and is then put together over the ranks.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from retina_dist.base.errors import DataError, set_status
from retina_dist.base.files import write_csv
from retina_dist.base.settings import flattened
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.resumed_settings import OF_ONE_START
from retina_dist.engine.replicas import digest_of, keyed_sum
from retina_dist.engine.state import TrainState
from retina_dist.engine.task import MicroBatches, Scalars, TakeStep, Task
from retina_dist.run.records import versions
from retina_dist.run.resume import Run
from retina_dist.strategies.base import DistributedStrategy
from retina_dist.tracking.callbacks import Callback
from retina_dist.tracking.digest import COLUMNS, FILE, START, DigestRow, read_digests, sha256_of

logger = logging.getLogger(__name__)

CONDITIONS = {"images", "loss", "metrics"}  # a start row is added where one of these cells changed
# Settings of a place, a layout or a page: no number of a training depends on them.
LEFT_OUT = (
    *OF_ONE_START,
    "data.num_workers",
    "data.root",
    "gpu",
    "logging.",
    "strategy.",
    "trainer.checkpoint_dir",
    "trainer.checkpoint_minutes",
    "trainer.keep_last",
    "trainer.profile",
    "trainer.save_top_k",
)


@dataclass
class _Step:
    """What a step gave on this rank."""

    number: int
    images: list[Tensor]  # [B] ids of each micro-batch
    losses: list[Tensor]  # scalars
    gradients: Tensor | None  # their keyed sum; None on other ranks and where it was skipped


class DigestRecorder(Callback):
    """Writes the rows of a run; every rank has one, and the main rank calls `begin` first.

    Args:
        state: Its model and optimizer are digested.
        strategy: Puts images and losses together, in the order of ranks.
        same_losses: Whether each rank has the losses of the whole step, as with virtual ranks.
    """

    def __init__(
        self, state: TrainState, strategy: DistributedStrategy, *, same_losses: bool
    ) -> None:
        self.state = state
        self.strategy = strategy
        self.same_losses = same_losses
        self.head = ""  # the chain after the last row of the file
        self._images: list[Tensor] = []
        self._gradients: Tensor | None = None
        self._waiting: list[_Step] = []
        self._closed: list[DigestRow] = []  # rows that get no more cells, not written yet
        if strategy.is_main:
            state.optimizer.register_step_pre_hook(self._sum_gradients)

    def begin(self, run: Run, task: Task) -> None:
        """Open the file; a resume cuts later rows and continues from its checkpoint.

        Where the rows do not lead to the checkpoint, the file begins anew.
        """
        step = run.resume_step or 0
        self._path = run.folder / FILE
        rows = _rows_before(run)
        starts = [row for row in rows if row.is_start]
        start = self._start_row(step, run, task, starts)
        if not starts or CONDITIONS & {*start.differing(starts[-1], ())}:
            rows.append(start.chained(rows[-1].chain if rows else ""))
        *self._closed, self._open = rows
        self._chain = self._closed[-1].chain if self._closed else ""
        write_csv(self._path, [COLUMNS])
        self._end = self._path.stat().st_size
        self._write()

    def _start_row(self, step: int, run: Run, task: Task, starts: Sequence[DigestRow]) -> DigestRow:
        """What this start rests on; images are read again only where their files changed."""
        before = (run.checkpoint or {}).get("data_digests")
        if starts and before == task.data_digests():
            images = starts[-1].images
        else:
            set_status(f"reading all images for {FILE}")
            images = sha256_of(task.fingerprint(), sorted(task.content_digests().items()))
        settings = settings_digest(load_yaml(run.folder / "config.yaml"))
        row = DigestRow(step, images, versions_digest(versions()), START, settings)
        return self._with_state(row)

    def watching(self, take_step: TakeStep) -> TakeStep:
        """`take_step`, the images of whose micro-batches this recorder sees."""

        def step(micro_batches: MicroBatches) -> Scalars:
            self._images = _image_ids(micro_batches)
            return take_step(micro_batches)

        return step

    def _sum_gradients(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients: list[Tensor] = []
        for group in optimizer.param_groups:
            gradients += [p.grad for p in group["params"] if p.grad is not None]
        if gradients:
            self._gradients = keyed_sum(gradients)

    def on_step(self, step: int, values: Mapping[str, Tensor]) -> None:
        losses = [value.detach().double() for value in values.values()]
        self._waiting.append(_Step(step, self._images, losses, self._gradients))
        self._gradients = None
        if not values:  # no row of metrics may come before the next checkpoint
            self._put_together()

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        self._put_together()
        if not self.strategy.is_main:
            return
        if self._open.is_start:  # a resume that begins with a validation
            self._follow(DigestRow(step))
        self._open = replace(self._open, metrics=metrics_digest(metrics, self._open.metrics))
        self._write()

    on_validation = on_log

    def close_row(self) -> str:
        """The head of the chain, for a checkpoint: its row gets the digests of the state.

        Collective, if a step was not put together since the last row of metrics.
        """
        self._put_together()
        if self.strategy.is_main:
            self._open = self._with_state(self._open)
            self._write()
        return self.head

    def _with_state(self, row: DigestRow) -> DigestRow:
        state = self.state
        parts = {
            "model": state.model.state_dict(),
            "ema": state.ema.state_dict() if state.ema else None,
            "optimizer": state.optimizer.state_dict(),
            "scaler": state.scaler.state_dict(),
        }
        weights, optimizer = state_digests(parts)
        return replace(row, weights=weights, optimizer=optimizer)

    def _put_together(self) -> None:
        """Make rows of the steps that wait. Collective, if there are any."""
        waiting = self._waiting
        self._waiting = []
        if not waiting:
            return
        own = [(_joined(step.images).cpu(), _joined(step.losses).cpu()) for step in waiting]
        every = self.strategy.gather_objects(own)
        if not self.strategy.is_main:
            return
        of_losses = every[:1] if self.same_losses else every
        for i, step in enumerate(waiting):
            row = DigestRow(step.number)
            if step.images:
                row = replace(row, images=_digest_over(rank[i][0] for rank in every))
            if step.gradients is not None:
                losses = _digest_over(rank[i][1] for rank in of_losses)
                row = replace(row, loss=losses, gradients=sha256_of(int(step.gradients)))
            self._follow(row)

    def _follow(self, row: DigestRow) -> None:
        """Close the last row; `row` is the one that gets more cells."""
        closed = self._open.chained(self._chain)
        self._closed.append(closed)
        self._chain = closed.chain
        self._open = row

    def _write(self) -> None:
        """Write all rows, over the last one of the file, which may have got more cells."""
        last = self._open.chained(self._chain)
        with self._path.open("rb+") as file:
            file.seek(self._end)
            file.truncate()
            for row in self._closed:
                file.write(_line(row))
            self._end = file.tell()
            file.write(_line(last))
        self._closed = []
        self.head = last.chain


def _line(row: DigestRow) -> bytes:
    return (",".join(map(str, astuple(row))) + "\n").encode()


def _rows_before(run: Run) -> list[DigestRow]:
    """The rows that lead to the checkpoint of a resumed run."""
    step = run.resume_step
    path = run.folder / FILE
    if step is None or not path.exists():
        return []
    head = (run.checkpoint or {}).get("digest")
    with suppress(DataError):
        rows = [row for row in read_digests(run.folder) if row.step <= step]
        if rows and rows[-1].step == step and head in (None, rows[-1].chain):
            return rows
    logger.warning(f"{path} does not lead to step {step}; it begins anew there.")
    return []


def _image_ids(micro_batches: MicroBatches) -> list[Tensor]:
    """[B] of each micro-batch; [] where the batches of a task have no ids."""
    with suppress(AttributeError):
        return [batch.image_ids for batch in cast(Any, micro_batches)]
    return []


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(0)
    return torch.cat(list(map(torch.flatten, tensors)))


def _digest_over(ranks: Iterable[Tensor]) -> str:
    return sha256_of(*torch.cat(list(ranks)).tolist())


def metrics_digest(metrics: Mapping[str, float], before: str = "") -> str:
    """The cell of logged values; `before` is that of an earlier row of metrics of the step.

    Times, and values that are not defined, do not count.
    """
    kept: list[tuple[str, float]] = []
    for name, value in sorted(metrics.items()):
        if not (name.startswith("time/") or math.isnan(value)):
            kept.append((name, float(value)))
    return sha256_of(before, kept)


def state_digests(content: Mapping[str, object]) -> tuple[str, str]:
    """The cells `weights` and `optimizer` of a checkpoint's content."""
    weights = {part: content[part] for part in ("model", "ema")}
    optimizer = {part: content[part] for part in ("optimizer", "scaler")}
    return digest_of(weights), digest_of(optimizer)


def counted_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """The settings that numbers depend on, by dotted key."""
    flat = flattened(settings)
    return {key: flat[key] for key in sorted(flat) if not key.startswith(LEFT_OUT)}


def settings_digest(settings: Mapping[str, object]) -> str:
    """The cell of a start's settings, given as config.yaml has them."""
    return sha256_of(counted_settings(settings))


def versions_digest(found: Mapping[str, str]) -> str:
    """The cell of a start's versions, of what computes on any machine and backend."""
    named = ("retina_dist", "torch", "torchvision", "python")
    return sha256_of([found.get(name) for name in named])
