"""Load what fits of a state_dict, by name and shape, and list the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from retina_dist.errors import CheckpointError

COUNTER = "num_batches_tracked"  # of live batch norms; no weight


@dataclass(frozen=True)
class WeightsReport:
    """Which tensors a load took, and which it did not: those of the file are `loaded`, `left_over` or `misfits`."""

    source: str
    loaded: tuple[str, ...]  # the model's names, as in `missing`
    missing: tuple[str, ...]  # tensors of the model that the file does not hold: as they were
    left_over: tuple[str, ...]  # tensors of the file that the model does not have
    misfits: tuple[str, ...]  # "name: why" for tensors that both have, of another shape or for other classes

    def __str__(self) -> str:
        listed = {"missing": self.missing, "left over": self.left_over, "misfit": self.misfits}
        lines = [
            f"{self.source}: {len(self.loaded)} tensors loaded, {len(self.missing)} missing, {len(self.left_over)} left over, "
            f"{len(self.misfits)} that do not fit"
        ]
        return "\n".join(lines + [f"  {kind:<11}{item}" for kind, items in listed.items() for item in items])


def load_fitting(
    model: nn.Module,
    source: str,
    state: Mapping[str, Tensor],
    *,
    check: str,
    rename: Callable[[str], str] = str,
    misfit: Callable[[str], str | None] = lambda name: None,
    within: str = "",
) -> WeightsReport:
    """Load the tensors of `state`, which came from `source`, that the model has under their new name in their shape.

    `misfit` says why a tensor of that name is not for this model; only names that begin with `within` can be missing. Raises
    CheckpointError when nothing fits; it tells the user which settings to `check`.
    """
    own = model.state_dict()
    fitting: dict[str, Tensor] = {}
    left_over, misfits = [], {}
    for name, value in state.items():
        target = rename(name)
        if target not in own:
            left_over += [] if name.endswith(COUNTER) else [name]  # frozen batch norms have none
        elif own[target].shape != value.shape:
            misfits[target] = f"{name}: {list(value.shape)} in the file, {list(own[target].shape)} in the model"
        elif why := misfit(target):
            misfits[target] = f"{name}: {why}"
        else:
            fitting[target] = value
    loaded = tuple(name for name in fitting if not name.endswith(COUNTER))
    if not loaded:
        raise CheckpointError(
            f"{source} holds no tensor that fits this model by name and shape (it begins with "
            f"{', '.join(list(state)[:3]) or 'nothing'}); check {check}."
        )
    model.load_state_dict({**own, **fitting})
    expected = [name for name in own if name.startswith(within) and not name.endswith(COUNTER)]
    missing = tuple(name for name in expected if name not in fitting and name not in misfits)
    return WeightsReport(source, loaded, missing, tuple(left_over), tuple(misfits.values()))
