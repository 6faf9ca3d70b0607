"""One optimizer step, for any model that returns a dict of losses.

It takes objects, not a configuration; it knows a `DistributedStrategy` but no backend, and nothing of detection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from retina_dist.engine.nonfinite import NonFiniteGuard, poison_if_nonfinite
from retina_dist.engine.phase_timer import PhaseTimer
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import autocast
from retina_dist.engine.replicas import average_statistics, check_shares
from retina_dist.engine.state import TrainState
from retina_dist.optim.optimizer import check_layouts, clip_gradients
from retina_dist.seeding import seed_step
from retina_dist.strategies.base import DistributedStrategy

# Steps of which one must be shared out right; images that cannot be read lower the weights of their step.
SHARE_CHECKS = 3
WEIGHT = "train/weight"  # the share of the step's images that this rank trained on; its mean over ranks is 1 unless some were bad


class TrainBatch(Protocol):
    """What the step needs of a micro-batch; `weight` is its share in the step's mean loss."""

    @property
    def weight(self) -> float: ...
    def to(self, device: torch.device, non_blocking: bool = False) -> Any: ...


class TrainStep:
    """Takes optimizer steps on `state`: forward and backward passes, gradient reduction, clipping, optimizer, EMA.

    Call it with this rank's micro-batches, on every rank. It returns the step's losses, gradient norm and `WEIGHT`, scalars on the
    device, or {} when `guard` skipped the step because a loss or gradient was infinite or NaN on any rank. It does not advance
    `state.step`, from which `plan` gives the learning rate. What the model draws at random, such as dropout, is keyed by `seed`,
    step and rank. `timer` measures the phases.
    """

    def __init__(
        self,
        state: TrainState,
        plan: Plan,
        strategy: DistributedStrategy,
        *,
        precision: str = "fp32",
        gradient_clip: float | None = None,
        gradient_clip_algorithm: str = "global_norm",
        guard: NonFiniteGuard | None = None,
        seed: int = 0,
        skips_images: bool = False,
    ) -> None:
        self.state, self.plan, self.strategy, self.seed = state, plan, strategy, seed
        self.skips_images = skips_images  # so that the weights of a step may add up to less
        self.autocast = autocast(strategy.device, precision)
        self.gradient_clip, self.gradient_clip_algorithm = gradient_clip, gradient_clip_algorithm
        self.guard = guard or NonFiniteGuard(state, plan, strategy)
        self.net = strategy.prepare(state.model, plan.accumulate)
        self.timer = PhaseTimer(strategy.device)
        if strategy.world_size > 1:
            self.timer.watch(state.model.parameters())
        self._poison_parameter = min((p for p in state.model.parameters() if p.requires_grad), key=lambda p: p.numel())
        self._layouts_checked = False
        # checks left to pass, by whether a step is an epoch's last
        self._share_checks = {False: SHARE_CHECKS, True: SHARE_CHECKS}

    def __call__(self, micro_batches: Sequence[TrainBatch]) -> dict[str, Tensor]:
        state, timer = self.state, self.timer
        self.strategy.phase = f"step {state.step + 1}"
        self._set_lr()
        seed_step(self.seed, "step", state.step, self.strategy.rank)
        self.guard.begin()
        self._check_shares([batch.weight for batch in micro_batches])
        losses = self._accumulate(micro_batches)
        self.strategy.reduce_gradients()  # 1. the mean over ranks
        timer.mark("communication")
        state.scaler.unscale_(state.optimizer)  # 2. divided by the loss scale
        # 3. as applied
        norm = clip_gradients(state.model.parameters(), self.gradient_clip, self.gradient_clip_algorithm)
        finite, weight = self.guard.accept(norm), sum(batch.weight for batch in micro_batches)
        if not self._layouts_checked:
            check_layouts(state.optimizer)
            self._layouts_checked = True
        if finite:
            state.scaler.step(state.optimizer)  # 4. on every rank or on none
        self._update_scale(finite)
        state.optimizer.zero_grad()
        if finite:
            average_statistics(state.model, self.strategy, weight)
            if state.ema:
                state.ema.update(state.model)
        else:
            self.guard.record(micro_batches, losses, norm, self.autocast)
        timer.mark("optimizer" if finite else "other")
        timer.end_step()
        if not finite:
            return {}
        parts = {f"train/loss_{name}": value for name, value in losses.items()}
        total = torch.stack(list(losses.values())).sum()
        return {"train/loss": total, **parts, "train/grad_norm": norm, WEIGHT: torch.full_like(total, weight)}

    def _check_shares(self, weights: list[float]) -> None:
        last_of_epoch = (self.state.step + 1) % self.plan.steps_per_epoch == 0
        if left := self._share_checks[last_of_epoch]:
            right = check_shares(weights, self.strategy, self.state.step + 1, left > 1, self.skips_images)
            self._share_checks[last_of_epoch] = 0 if right else left - 1

    def _set_lr(self) -> None:
        lr = self.plan.lr_at(self.state.step)
        for group in self.state.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)

    def _update_scale(self, finite: bool) -> None:
        """GradScaler's update, which sees infinite gradients, but not finite ones whose norm overflows."""
        scaler = self.state.scaler
        overflowed = scaler.is_enabled() and not finite
        before = scaler.get_scale() if overflowed else 0.0
        scaler.update()
        if overflowed and scaler.get_scale() >= before:
            scaler.update(before * scaler.get_backoff_factor())

    def _accumulate(self, micro_batches: Sequence[TrainBatch]) -> dict[str, Tensor]:
        """Add the gradients of all micro-batches and return their weighted losses.

        The weights of all micro-batches of all ranks have the mean 1/accumulate, so their sum is the step's mean loss.
        """
        timer = self.timer
        total: dict[str, Tensor] = {}
        for i, batch in enumerate(micro_batches):
            batch = batch.to(self.strategy.device, non_blocking=True)
            timer.mark("copy")
            with self.strategy.gradient_sync(self.net, enabled=i == len(micro_batches) - 1):
                losses = self._forward_backward(batch)
            timer.mark_backward()
            for name, value in losses.items():
                share = value.detach() * batch.weight if batch.weight else torch.zeros_like(value)
                total[name] = total.get(name, 0.0) + share
        return total

    def _forward_backward(self, batch: TrainBatch) -> dict[str, Tensor]:
        """Forward and backward pass of a micro-batch."""
        with self.autocast():
            losses: dict[str, Tensor] = self.net(batch)
        loss = torch.stack(list(losses.values())).sum()
        # a mean over no examples is NaN
        loss = loss * batch.weight if batch.weight else loss.nan_to_num(0.0, 0.0, 0.0) * 0
        self.timer.mark("forward")
        self.state.scaler.scale(poison_if_nonfinite(loss, self._poison_parameter)).backward()
        return losses
