"""`python -m tests.distributed.broken_host ARGUMENTS`: the doctor on a host where all is wrong that a test cannot arrange outside.

Another version of torchvision, and a step that sleeps.
"""

from __future__ import annotations

import time
from typing import Any

import torchvision
from torch import nn

from retina_dist import doctor
from retina_dist.preflight import facts

SLEEP_S = 2.0


class Slow(nn.Module):
    """A model whose step takes `SLEEP_S` longer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        """What the model answers, later."""
        time.sleep(SLEEP_S)
        return self.model(x)


if __name__ == "__main__":
    build = facts.resnet18
    setattr(facts, "resnet18", lambda **options: Slow(build(**options)))  # noqa: B010 - mypy knows modules' attributes
    setattr(facts, "FEWEST_STEPS", 1)  # noqa: B010
    setattr(torchvision, "__version__", "0.0.1")  # noqa: B010
    doctor.main()
