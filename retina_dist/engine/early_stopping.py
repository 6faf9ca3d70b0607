"""The best value of the monitored metric: the trainer stops early by it, the checkpoint store ranks
its files by it.
"""

import math
import re
from collections.abc import Iterable, Mapping

from torch.optim.optimizer import StateDict

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import Limits


def default_mode(metric: str) -> str:
    """A loss or an error is best when it is lowest, every other metric when it is highest.

    >>> [default_mode(metric) for metric in ("val/loss_classification", "val/mae", "val/accuracy")]
    ['min', 'min', 'max']
    """
    return "min" if re.search(r"loss|error|\b(?:mae|r?mse|nll|perplexity)\b", metric) else "max"


class BestMetric:
    """The best `value` of the metric `name` so far, None before the first one; part of the train
    state.

    `mode` None is the `default_mode` of the name. `patience` is how many validations may pass
    without a better value, None any number. Without a `name`, as in a run that does not validate, a
    resume keeps what there was.
    """

    def __init__(
        self, name: str | None = None, mode: str | None = None, patience: int | None = None
    ) -> None:
        self.name = name
        self.mode: str = mode or default_mode(name or "")
        self.patience = patience
        self.value: float | None = None
        self.evals_since_best = 0

    def __str__(self) -> str:
        return f"{'highest' if self.mode == 'max' else 'lowest'} {self.name}"

    def rank(self, value: float) -> float:
        """A sort key: a better value has a lower one."""
        return -value if self.mode == "max" else value

    def update(self, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a validation; a value that is not finite does not count. Raises
        ConfigError if `name` is missing.
        """
        if self.name is None:
            return
        check_metric(self.name, metrics)
        value = metrics[self.name]
        if not math.isfinite(value):
            return
        if self.value is None or self.rank(value) < self.rank(self.value):
            self.value = value
            self.evals_since_best = 0
        else:
            self.evals_since_best += 1

    @property
    def exhausted(self) -> bool:
        """Whether the patience is used up."""
        return self.patience is not None and self.evals_since_best >= self.patience

    def describe_stop(self) -> str:
        """Why the run ends, where `exhausted`."""
        return (
            f"stopped early: {self.name} has not improved in {self.evals_since_best} validations."
        )

    def state_dict(self) -> StateDict:
        """Plain values. The patience is a setting and may change on resume."""
        return {
            "name": self.name,
            "mode": self.mode,
            "value": self.value,
            "evals_since_best": self.evals_since_best,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Put back what `state_dict` returned; the value of another metric or mode is forgotten."""
        if self.name is None and state.get("name"):
            self.name = state["name"]
            self.mode = state["mode"]
        self.value = None
        self.evals_since_best = 0
        if self.same_metric(state):
            self.value = state["value"]
            self.evals_since_best = int(state["evals_since_best"])

    def same_metric(self, state: StateDict) -> bool:
        """Whether a state's value can be compared with this metric's."""
        other = (state.get("name", self.name), state.get("mode", self.mode))
        return self.name is None or other == (self.name, self.mode)


def check_metric(name: str, metrics: Iterable[str]) -> None:
    """Raise ConfigError, on all ranks alike, unless the validation gives the metric `name`."""
    problem = Limits(choices=tuple(sorted(metrics))).problem("trainer.monitor", name)
    if problem:
        raise ConfigError(problem, collective=True)
