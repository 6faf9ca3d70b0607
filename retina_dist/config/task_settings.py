"""Settings that every task has; a task has subclasses with its own."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from retina_dist.config.fields import MISSING, setting
from retina_dist.errors import ConfigError

TASKS = ("detection", "classification")  # of the package, each in the folder of its name


@dataclass
class TaskConfig:
    """Which task is trained; an entry from outside the package names its class by `_target_`."""

    name: str = setting(TASKS[0], choices=TASKS)


@dataclass
class DataSettings:
    """What every task's data has."""

    name: str = MISSING
    batch_size: int = setting(
        16, "images of one optimizer step, over all processes and accumulated micro-batches", at_least=1, at_most=10**6
    )

    def check(self) -> None:
        """Raise ConfigError for a name that cannot be a folder's."""
        if self.name in ("", ".", "..") or re.search(r"[/\\\0]", self.name):
            raise ConfigError(f"data.name={self.name} is no name for a folder below runs/.")

    def with_values(self, **values: Any) -> Self:
        """A copy with other values. `dataclasses.replace` would ask for the datasets of a `DatasetConfig` again."""
        found = copy.copy(self)
        for name, value in values.items():
            setattr(found, name, value)
        return found


@dataclass
class ModelSettings:
    """What every task's model has: no setting."""
