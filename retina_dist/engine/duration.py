"""Durations as users write them ("26 epochs", "90k steps", "1M images") in optimizer steps."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from retina_dist.errors import ConfigError

_FORM = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kM]?)\s*(step|epoch|ep|image|img)s?\s*", re.ASCII)
_MULTIPLE = {"": 1, "k": 1_000, "M": 1_000_000}
MAX_STEPS = 2**63 - 1  # counters are int64 tensors


def to_steps(duration: str, *, key: str, num_images: int, batch_size: int) -> int:
    """Optimizer steps in `duration`, rounded up to whole steps; an epoch is ceil(num_images / batch_size) steps.

    The arithmetic is exact: 1.1 epochs of 100 steps are 110 steps. `key` is the setting's name, for the ConfigError raised
    when the text has no such form or is too long.

    >>> to_steps("2 epochs", key="trainer.max_duration", num_images=100, batch_size=16)
    14
    >>> to_steps("1.5k images", key="trainer.max_duration", num_images=100, batch_size=16)
    94
    """
    form = _FORM.fullmatch(str(duration))
    if form is None:
        raise ConfigError(
            f"{key}={duration} is not a duration; write a number and a unit, such as 12epochs, 90ksteps or 500images."
        )
    amount, unit = Fraction(form[1]) * _MULTIPLE[form[2]], form[3]
    if unit in ("epoch", "ep"):
        amount *= math.ceil(Fraction(num_images, batch_size))
    elif unit != "step":
        amount /= batch_size
    steps = math.ceil(amount)
    if steps > MAX_STEPS:
        raise ConfigError(f"{key}={duration} is too long; it must be below 2^63 steps.")
    return steps
