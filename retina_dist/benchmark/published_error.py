"""How wrong the model of a step was about published results: sizes of errors, and the words beside a forecast of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from retina_dist.benchmark.communication import Machine
from retina_dist.benchmark.published import (
    FITTED,
    HELD_OUT,
    NETWORKS,
    Constants,
    Forecast,
    Point,
    clusters,
    forecast,
    points_of,
    same_images,
    within_machines,
)
from retina_dist.benchmark.settings import ForecastBenchmarkConfig

KINDS: dict[str, Callable[[Sequence[Point]], list[tuple[Point, Point]]]] = {
    "clusters": clusters,
    "same images a GPU": same_images,
    "within a machine": within_machines,
}
IN_WORDS = {
    "clusters": "fewer images on each of more GPUs, from one machine of 4 or 8 GPUs",
    "same images a GPU": "as many images on each of more GPUs, from 4 to 2,048 GPUs",
    "within a machine": "more GPUs of one machine, from fewer of them",
}
FEW = 10  # points, below which a 90th percentile says no more than the worst


class Errors(NamedTuple):
    """Of `number` forecasts: sizes without signs, the median with its sign too; below FEW no percentile."""

    number: int
    median: float
    percentile_90: float | None
    worst: float
    signed: float


def errors(found: Sequence[float]) -> Errors:
    """Median, 90th percentile and greatest of the sizes of errors, and the median of the errors, above 0 for too slow."""
    median, percentile_90, worst = (float(np.quantile(np.abs(found), q)) for q in (0.5, 0.9, 1.0))
    return Errors(len(found), median, percentile_90 if len(found) >= FEW else None, worst, float(np.median(found)))


def held_out(network: str, constants: Constants = FITTED, kind: str = "clusters") -> list[Forecast]:
    """The forecasts of that kind of the held-out rounds in the package."""
    return [forecast(p, base, constants) for p, base in KINDS[kind](points_of(network)) if p.round >= HELD_OUT]


@cache
def sizes_in_words(kind: str, constants: Constants) -> str:
    """The errors of a kind of forecast for each network: on held-out rounds, on fitted ones where there are no others."""
    parts = []
    for network, name in NETWORKS.items():
        found, where = held_out(network, constants, kind), "held out"
        if kind == "within a machine" or not found:
            pairs = [pair for pair in KINDS[kind](points_of(network)) if pair[0].round < HELD_OUT]
            found, where = [forecast(*pair, constants) for pair in pairs], "fitted"
        e = errors([f.error for f in found])
        most = "" if e.percentile_90 is None else f", 90th percentile {e.percentile_90:.1%}"
        parts.append(f"{name} median {e.median:.1%}{most}, worst {e.worst:.1%} ({e.number} points, {where})")
    return "; ".join(parts)


def published_error(config: ForecastBenchmarkConfig, machine: Machine) -> list[str]:
    """Sentences on the error of forecasts like those of `config` on that machine, with the constants of `config`."""
    several = max(config.gpus) > machine.gpus
    kind = "within a machine" if not several else "clusters" if config.global_batch else "same images a GPU"
    constants = FITTED._replace(leaving_ms=config.leaving_ms, variation=config.straggler_cv)
    said = [f"error on MLPerf 2.0 to 4.1, {IN_WORDS[kind]}: {sizes_in_words(kind, constants)}"]
    if several and not machine.infiniband:
        said.append("no published result is from such a network: the error may be larger")
    validated = {
        "overlap": config.overlap,
        "allreduce": config.allreduce == "auto",
        "compression": config.compression != "none",
        "leaving_ms": config.leaving_ms == FITTED.leaving_ms,
        "straggler_cv": config.straggler_cv == FITTED.variation,
    }
    differing = [f"{key}={getattr(config, key)}" for key, same in validated.items() if not same]
    if differing:
        said.append(
            f"settings differ from the validated ones: {', '.join(differing).replace('=False', '=false')}"
            + " (gradients of 16 bit there)" * (config.compression == "none")
        )
    return said
