"""Who or what is slow: the step of a rank, the network. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from retina_dist.preflight.checks import Finding
from retina_dist.preflight.facts import Facts
from retina_dist.preflight.network import Link

SLOW_STEP = {True: 1.1, False: 1.5}  # times the median, on a GPU, on a CPU that others may use too


def step_findings(ranks: Sequence[Facts]) -> Iterator[Finding]:
    """The slowest rank, where it is much slower than the median."""
    facts, ratio = slowest(ranks)
    if facts is not None and ratio > SLOW_STEP[facts.gpu is not None]:
        yield Finding(
            "warning",
            "step",
            f"rank {facts.rank} on {facts.host} takes {facts.step_ms:.1f} ms for a step, {ratio:.2f} times the median: every "
            "step waits for it",
            "Look there for other processes, a hot GPU or a low power limit (nvidia-smi -q -d PERFORMANCE), or leave the host out.",
        )


def slowest(ranks: Sequence[Facts]) -> tuple[Facts | None, float]:
    """The rank with the longest step, and how many times the median that is; of two ranks, the faster one is the median."""
    timed = [facts for facts in ranks if facts.step_ms]
    if not timed:
        return None, 1.0
    worst = max(timed, key=lambda facts: facts.step_ms or 0.0)
    median = statistics.median_low(facts.step_ms or 0.0 for facts in timed)
    return worst, (worst.step_ms or 0.0) / median


def link_findings(links: Sequence[Link], ranks: int, expect_gb_s: float | None) -> Iterator[Finding]:
    """The largest all-reduce, where it is slower than `expect_gb_s` asks."""
    remedy = (
        "See in NCCL_DEBUG=INFO which network was chosen (NET/IB or NET/Socket), give nccl=NAME for this kind of machine, and run "
        "nccl-tests between pairs of hosts."
    )
    if links and expect_gb_s and links[-1].gb_s(ranks) < expect_gb_s:
        reached = f"an all-reduce of {links[-1].size_mb} MB reaches {links[-1].gb_s(ranks):.2f} GB/s"
        text = f"{reached}, below expect_gb_s={expect_gb_s:g}"
        yield Finding("error", "network", text, remedy)
