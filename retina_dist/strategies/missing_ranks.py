"""Which processes are still there, after a collective has failed."""

from __future__ import annotations

import time
from collections.abc import Callable

from retina_dist.text import format_ranks

WAIT_S = 5.0  # for the others to notice too


def missing_ranks(
    rank: int, world_size: int, answer: Callable[[str], None], has_answered: Callable[[str], bool]
) -> list[int]:
    """The ranks that do not answer within a few seconds, over notes that a failed collective does not touch.

    A rank that hangs, is stopped or is dead does not answer; neither does one that ends with an error of its own. Each rank
    that asks answers first. Empty when all answer, or when the notes cannot be reached any more.
    """
    try:
        answer(f"here/{rank}")
        until = time.monotonic() + WAIT_S
        missing = [other for other in range(world_size) if other != rank]
        while missing and time.monotonic() < until:
            time.sleep(0.1)
            missing = [other for other in missing if not has_answered(f"here/{other}")]
    except (OSError, RuntimeError):
        return []
    return missing


def peer_lost_message(rank: int, missing: list[int], phase: str, reason: str) -> str:
    """The sentence of the error."""
    if not missing:
        return f"rank {rank} lost another process at {phase} ({reason})."
    names = format_ranks(missing)
    return f"rank {rank} waited for {names} at {phase} ({reason}); what {names} printed last says more."
