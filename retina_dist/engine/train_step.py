"""One optimizer step, for any model that returns a dict of losses; it knows neither backend, task
nor configuration.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from retina_dist.base.seeding import seed_step
from retina_dist.engine.nonfinite import NonFiniteGuard, poison_if_nonfinite
from retina_dist.engine.phase_timer import PhaseTimer
from retina_dist.engine.plan import Plan, TrainerConfig
from retina_dist.engine.precision import autocast
from retina_dist.engine.replicas import (
    adds_over_ranks,
    average_statistics,
    check_shares,
    trained_parameters,
)
from retina_dist.engine.state import TrainState
from retina_dist.engine.task import MicroBatches, Scalars, TrainBatch
from retina_dist.optim.clipping import clip_gradients
from retina_dist.optim.optimizer import check_layouts
from retina_dist.strategies.base import DistributedStrategy

# This rank's share of a step's images among the values of the step; its mean over ranks is 1, or
# less where images could not be read.
WEIGHT = "train/weight"
# graphs, far above what the batches of a data set need; past it torch warns and runs eagerly
MAX_SHAPES = 2000


class TrainStep:
    """Takes optimizer steps on `state`: forward and backward passes, gradient reduction, clipping,
    optimizer, EMA.

    Call it with this rank's micro-batches, on every rank. It returns the step's losses, gradient
    norm and `WEIGHT`, scalars on the device, or {} when `guard` skipped the step. It does not
    advance `state.step`, from which `plan` gives the learning rate. What the model draws at random,
    such as dropout, is keyed by `seed`, step and rank. `skips_images`: images that cannot be read
    lower the weights of their step. Of `settings` it takes precision and clipping, and `compile`:
    torch.compile makes a graph for each shape of a batch; other uses of the model are eager.
    """

    shards = 1  # virtual ranks of this process

    def __init__(
        self,
        state: TrainState,
        plan: Plan,
        strategy: DistributedStrategy,
        settings: TrainerConfig | None = None,
        *,
        guard: NonFiniteGuard | None = None,
        seed: int = 0,
        skips_images: bool = False,
    ) -> None:
        self.state = state
        self.plan = plan
        self.strategy = strategy
        self.seed = seed
        self.skips_images = skips_images
        self.settings = settings or TrainerConfig()
        self.autocast = autocast(strategy.device, self.settings.precision)
        self.guard = guard or NonFiniteGuard(state, plan, strategy)
        model = compiled(state.model) if self.settings.compile else state.model
        self.net = self._prepare(model)
        self.timer = PhaseTimer(strategy.device)
        if strategy.world_size > 1:
            self.timer.watch(state.model.parameters())
        self._poison_parameter = min(trained_parameters(state.model), key=torch.numel)
        self._layouts_checked = False
        # kinds of steps whose shares were not checked yet: True is an epoch's last
        self._unchecked = {False, True}

    def __call__(self, micro_batches: MicroBatches) -> Scalars:
        state = self.state
        timer = self.timer
        lr = self.plan.lr_at(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        seed_step(self.seed, "step", state.step, self.strategy.rank)
        self.guard.begin()
        last_of_epoch = (state.step + 1) % self.plan.steps_per_epoch == 0
        if last_of_epoch in self._unchecked:
            self._unchecked.remove(last_of_epoch)
            weights = [batch.weight / self.shards for batch in micro_batches]
            check_shares(weights, self.strategy, state.step + 1, self.skips_images)
        losses = self._compute_gradients(micro_batches)  # 1. the mean over ranks
        timer.mark("communication")
        state.scaler.unscale_(state.optimizer)  # 2. divided by the loss scale
        # 3. as applied
        norm = clip_gradients(
            state.model.parameters(),
            self.settings.gradient_clip,
            self.settings.gradient_clip_algorithm,
        )
        finite = self.guard.accept(norm)
        if not self._layouts_checked:
            check_layouts(state.optimizer)
            self._layouts_checked = True
        if finite:
            state.scaler.step(state.optimizer)  # 4. on every rank or on none
        self._update_scale(finite)
        state.optimizer.zero_grad()
        if not finite:
            self.guard.record(micro_batches, losses, norm, self.autocast)
            timer.mark("other")
            timer.end_step()
            return {}
        self._average_statistics(micro_batches)
        if state.ema:
            state.ema.update(state.model)
        timer.mark("optimizer")
        timer.end_step()
        parts = {f"train/loss_{name}": value for name, value in losses.items()}
        total = torch.stack(list(losses.values())).sum()
        return {
            "train/loss": total,
            **parts,
            "train/grad_norm": norm,
            WEIGHT: self._weight_of(micro_batches, total),
        }

    def _update_scale(self, finite: bool) -> None:
        """GradScaler's update, which sees infinite gradients, but not finite ones whose norm
        overflows.
        """
        scaler = self.state.scaler
        overflowed = scaler.is_enabled() and not finite
        before = scaler.get_scale() if overflowed else 0.0
        scaler.update()
        if overflowed and scaler.get_scale() >= before:
            scaler.update(before * scaler.get_backoff_factor())

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        """The mean over ranks of what steps returned; collective."""
        return self.strategy.all_reduce(values)

    def _prepare(self, model: nn.Module) -> nn.Module:
        return self.strategy.prepare(model, self.plan.accumulate)

    def _average_statistics(self, micro_batches: MicroBatches) -> None:
        weight = sum(batch.weight for batch in micro_batches)
        average_statistics(self.state.model, self.strategy, weight)

    def _weight_of(self, micro_batches: MicroBatches, total: Tensor) -> Tensor:
        return torch.full_like(total, sum(batch.weight for batch in micro_batches))

    def _compute_gradients(self, micro_batches: MicroBatches) -> Scalars:
        """Give the parameters the mean gradients over ranks; returns this rank's share of the
        losses.
        """
        losses = self._accumulate(micro_batches)
        self.strategy.reduce_gradients()
        return losses

    def _accumulate(self, micro_batches: MicroBatches) -> Scalars:
        """Add the gradients of all micro-batches and return their weighted losses, which sum up to
        the step's mean loss.
        """
        timer = self.timer
        total: Scalars = {}
        for i, batch in enumerate(micro_batches):
            batch = batch.to(self.strategy.device, non_blocking=True)
            timer.mark("copy")
            with self.strategy.gradient_sync(self.net, enabled=i == len(micro_batches) - 1):
                losses = self._forward_backward(batch)
            timer.mark_backward()
            for name, value in losses.items():
                share = torch.zeros_like(value)
                if batch.weight:
                    share = value.detach() * batch.weight
                total[name] = total.get(name, 0.0) + share
        return total

    def _forward_backward(self, batch: TrainBatch) -> Scalars:
        with nullcontext() if batch.weight else zero_gradients(self.state.model):
            with self.autocast():
                losses: Scalars = self.net(batch)
            loss = torch.stack(list(losses.values())).sum() * batch.weight
            self.timer.mark("forward")
            self.state.scaler.scale(poison_if_nonfinite(loss, self._poison_parameter)).backward()
        return losses


def compiled(model: nn.Module, **options: Any) -> nn.Module:
    """`model` with its passes compiled, a graph for each shape; `model` itself stays eager.
    `options` are torch.compile's.
    """
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = (
        MAX_SHAPES
    )
    return cast(nn.Module, torch.compile(model, dynamic=False, **options))


@contextmanager
def zero_gradients(model: nn.Module) -> Iterator[None]:
    """Within it a backward pass gives every parameter a gradient of zeros, and zeros to norms that
    add up gradients over ranks.

    For a micro-batch at weight 0: a mean over no examples is NaN, and 0 times its gradient is NaN
    too.
    """
    hooks = [p.register_hook(torch.zeros_like) for p in model.parameters() if p.requires_grad]
    for module in model.modules():
        if adds_over_ranks(module):
            hooks.append(module.register_forward_hook(_zero_gradient_of))
    try:
        with torch.compiler.set_stance("force_eager"):  # hooks would recompile the model
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _zero_gradient_of(module: nn.Module, inputs: object, output: Tensor) -> None:
    if output.requires_grad:
        output.register_hook(torch.zeros_like)
