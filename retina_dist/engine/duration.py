"""Durations as users write them ("26 epochs", "90k steps", "1M images") in optimizer steps, and minutes by the clock. Layer 0."""

from __future__ import annotations

import math
import re
import time

from retina_dist.errors import ConfigError

_FORM = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kM]?)\s*(step|epoch|ep|image|img)s?\s*$")
_MULTIPLE = {"": 1, "k": 1_000, "M": 1_000_000}


def to_steps(duration: str, *, key: str, num_images: int, batch_size: int) -> int:
    """Optimizer steps in `duration`, rounded up to whole steps; an epoch is ceil(num_images / batch_size) steps.

    `key` is the setting's name, for the ConfigError raised when the text has no such form.

    >>> to_steps("2 epochs", key="trainer.length", num_images=100, batch_size=16)
    14
    >>> to_steps("1.5k images", key="trainer.length", num_images=100, batch_size=16)
    94
    """
    form = _FORM.match(str(duration))
    if form is None:
        raise ConfigError(
            f"{key}={duration} is not a duration; write a number and a unit, such as 12epochs, 90ksteps or 500images."
        )
    amount, unit = float(form[1]) * _MULTIPLE[form[2]], form[3]
    if unit == "step":
        return math.ceil(amount)
    if unit in ("epoch", "ep"):
        return math.ceil(amount * math.ceil(num_images / batch_size))
    return math.ceil(amount / batch_size)


class Alarm:
    """Rings once when `minutes` have gone by since it was made, since it rang or since `reset`; None: never."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes = minutes
        self.reset()

    def reset(self) -> None:
        """Count from now on."""
        self._since = time.monotonic()

    def rings(self) -> bool:
        """Whether the time is up; if so, counts anew."""
        if self.minutes is None or time.monotonic() - self._since < 60 * self.minutes:
            return False
        self.reset()
        return True
