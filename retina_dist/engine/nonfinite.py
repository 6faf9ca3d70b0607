"""Steps with an infinite or NaN loss or gradient: skipped on all ranks, and reported in a file."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from retina_dist.base.errors import CollectiveError
from retina_dist.base.files import write_json
from retina_dist.base.redaction import redacted_tree
from retina_dist.base.text import pluralize
from retina_dist.engine.plan import Plan
from retina_dist.engine.precision import Autocast
from retina_dist.engine.replicas import copy_each, live_norms, live_statistics
from retina_dist.engine.state import TrainState
from retina_dist.engine.task import Facts, MicroBatches, Scalars, TrainBatch
from retina_dist.strategies.base import DistributedStrategy

logger = logging.getLogger(__name__)


class Divergence(CollectiveError):
    """The loss or the gradients stay infinite or NaN, on all ranks."""


def poison_if_nonfinite(loss: Tensor, parameter: nn.Parameter) -> Tensor:
    """`loss`, which puts a NaN into the gradient of `parameter` if it is infinite or NaN; a finite
    loss keeps its exact gradients.

    An infinite loss may have finite gradients. With the NaN, the mean gradient shows whether the
    loss of every rank was finite.
    """
    nothing = loss.detach() - loss.detach()  # 0, or NaN
    return loss + nothing * parameter.flatten()[0].to(loss.dtype)


@dataclass
class NonFiniteGuard:
    """Skips a step on all ranks when its gradient is not finite; raises Divergence after more than
    `limit` skips in a row.

    Each one is described in `folder`/nonfinite_STEP.json (the first step is 1, as in metrics.csv):
    the images, each image's losses as `inspect` gives them in the precision of the step, loss,
    gradient norm and learning rate on each rank.
    """

    state: TrainState
    plan: Plan
    strategy: DistributedStrategy
    limit: int = 5
    folder: Path | None = None
    inspect: Callable[[nn.Module, TrainBatch], list[Facts]] | None = None

    def __post_init__(self) -> None:
        self._statistics: list[Tensor] = []
        self._before: list[Tensor] = []  # their values at the beginning of the step

    def begin(self) -> None:
        """Save the running statistics, which a forward pass changes."""
        statistics = live_statistics(self.state.model)
        if list(map(id, statistics)) != list(map(id, self._statistics)):
            self._statistics = statistics
            self._before = list(map(torch.empty_like, statistics))
        copy_each(self._before, self._statistics)

    def accept(self, norm: Tensor) -> bool:
        """Whether to apply the step; if not, restore the running statistics. `norm` of the mean
        gradient is equal on all ranks.
        """
        if bool(norm.isfinite()):
            self.state.consecutive_skips = 0
            return True
        copy_each(self._statistics, self._before)
        return False

    def record(
        self,
        micro_batches: MicroBatches,
        losses: Scalars,
        norm: Tensor,
        autocast: Autocast,
    ) -> None:
        """Count and report a skipped step. Every rank must call it."""
        state = self.state
        scaler = state.scaler
        step = state.step + 1
        lr = self.plan.lr_at(state.step)
        state.skipped_steps += 1
        if scaler.is_enabled() and scaler.get_scale() > 1:
            bad = any(not value.isfinite() for value in losses.values())
            if not self.strategy.all_reduce_max_async(int(bad), "loss scale")():
                scale = scaler.get_scale()
                logger.info(f"step {step}: fp16 overflow; step skipped, loss scale now {scale:g}")
                return
        state.consecutive_skips += 1
        own = {
            "rank": self.strategy.rank,
            "losses": {name: float(value) for name, value in losses.items()},
        }
        if self.inspect:
            with _inspection(state.model, autocast):
                own["micro_batches"] = [self.inspect(state.model, batch) for batch in micro_batches]
        ranks = self.strategy.gather_objects(own)
        words = f"step {step}: loss or gradient is not finite"
        if self.strategy.is_main and self.folder:
            path = self.folder / f"nonfinite_{step:08d}.json"
            # "NaN" and "Infinity" as json.loads reads them: this is what the file is about
            facts = {
                "step": step,
                "epoch": self.plan.epoch_at(step),
                "lr": lr,
                "grad_norm": float(norm),
                "loss_scale": scaler.get_scale(),
                "in_a_row": state.consecutive_skips,
                "world_size": self.strategy.world_size,
                "ranks": ranks,
            }
            write_json(path, redacted_tree(facts))
            words += f"; see {path}"
        if state.consecutive_skips > self.limit:
            words += f", at lr={lr:g}, {pluralize(state.consecutive_skips, 'step')} in a row"
            raise Divergence(
                f"{words}; "
                "lower optimizer.lr, lengthen schedule.warmup or set trainer.gradient_clip."
            )
        logger.warning(
            f"{words}; "
            f"the step is left out ({state.consecutive_skips} in a row, {self.limit} allowed)",
            extra={"rank_zero_only": True},
        )


@contextmanager
def _inspection(model: nn.Module, autocast: Autocast) -> Iterator[None]:
    """Within it one rank can look at one image: no gradients, the precision of the step, batch
    norms by running statistics.
    """
    norms = live_norms(model)
    for norm in norms:
        norm.eval()
    try:
        with torch.no_grad(), autocast():
            yield
    finally:
        for norm in norms:
            norm.train()
