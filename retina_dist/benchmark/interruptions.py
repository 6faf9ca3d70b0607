"""What interruptions of machines add to a training, and how often it should write checkpoints.

Interruptions come at any moment alike, `mtbi_h` apart on average for the whole job. Each costs the work since the last checkpoint
and `restart_h`; each checkpoint stops the training for `checkpoint_h`. All times in hours.
"""

from __future__ import annotations

import math

NEVER = 20  # mean times between interruptions for which nothing may happen: once in e^20 attempts


def young_interval(checkpoint_h: float, mtbi_h: float) -> float:
    """The interval that loses least time, to first order: sqrt(2 C M). Young 1974, https://doi.org/10.1145/361147.361115

    >>> young_interval(0.02, 100.0)
    2.0
    """
    return math.sqrt(2 * checkpoint_h * mtbi_h)


def daly_interval(checkpoint_h: float, mtbi_h: float) -> float:
    """The same to higher order: Daly 2006, eq. 37, https://doi.org/10.1016/j.future.2004.11.016"""
    if checkpoint_h >= 2 * mtbi_h:
        return mtbi_h
    small = checkpoint_h / (2 * mtbi_h)
    return young_interval(checkpoint_h, mtbi_h) * (1 + math.sqrt(small) / 3 + small / 9) - checkpoint_h


def expected_hours(work_h: float, interval_h: float, checkpoint_h: float, restart_h: float, mtbi_h: float) -> float:
    """Expected time of `work_h` with a checkpoint after every `interval_h` of work; inf where it never ends in practice.

    M e^(R/M) (e^((t+C)/M) - 1) W/t, exact for exponential times between interruptions, also during restarts and checkpoints,
    and a whole number W/t: Daly 2006, eq. 20.
    """
    interval_h = min(interval_h, work_h)
    exponents = restart_h / mtbi_h, (interval_h + checkpoint_h) / mtbi_h
    if sum(exponents) > NEVER:
        return math.inf
    return mtbi_h * math.exp(exponents[0]) * math.expm1(exponents[1]) * work_h / interval_h
