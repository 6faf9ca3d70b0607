"""The model of a step held against MLPerf Training: what it predicts for a cluster from results of fewer GPUs, and how wrong it is.

    python -m retina_dist.benchmark forecast published=true [newer=FOLDER] [plot=published.png]

A step of B images on each of N GPUs takes b (c + B) (1 + v E(N)) ms, what `communication` leaves exposed, and `leaving_ms` on more
than one machine. b, the time of an image, comes from the base: a result of one machine. c (a step's fixed cost, in images), v and
`leaving_ms` are fitted once for all accelerators, to rounds 2.0 to 3.1; 4.0 and later are held out. Gradients travel in 16 bit, as
in these submissions. Sources of the results: mlperf/README.md.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torchvision.models import resnet50

from retina_dist.benchmark.communication import (
    INFINIBAND_SHARE,
    INFINIBAND_US,
    LEAVING_MS,
    NVLINK_A100,
    NVLINK_A100_US,
    NVLINK_H200,
    NVLINK_H200_US,
    PCI_4,
    PCI_US,
    VARIATION,
    Machine,
    fill_buckets,
    step_time,
    straggler_factor,
)
from retina_dist.benchmark.gradient_timeline import Timeline, timeline, timeline_of
from retina_dist.detection.model.retinanet import build_retinanet
from retina_dist.errors import ConfigError

DATA = Path(__file__).parent / "mlperf"
NETWORKS = {"retinanet": "RetinaNet", "resnet50": "ResNet-50"}
HELD_OUT = 4.0  # the first round that is held out
SHORTEST_EPOCH_S = 0.1  # below, the logs are coarser than what they measure (10 ms)


class Constants(NamedTuple):
    """What is fitted: a step's fixed cost in images of each network, and the two numbers of `communication`."""

    retinanet: float = 1.03
    resnet50: float = 6.1
    leaving_ms: float = LEAVING_MS
    variation: float = VARIATION


FITTED = Constants()
BEFORE = Constants(0.0, 0.0, 0.0, 0.0)  # images cost the same in any batch; only bandwidth and latency between GPUs


@dataclass(frozen=True)
class Point:
    """A published result: `gpus` GPUs of `kind`, so many images on each, and the milliseconds of a step."""

    network: str
    round: float
    submitter: str
    system: str
    kind: str
    nodes: int
    gpus: int
    images: float
    step_ms: float
    machine: Machine = field(compare=False)


class Forecast(NamedTuple):
    """What `point` is predicted to take, from `base`, which has fewer GPUs."""

    point: Point
    base: Point
    step_ms: float

    @property
    def error(self) -> float:
        """0.1: 10 % too slow."""
        return self.step_ms / self.point.step_ms - 1


def points_of(network: str, newer: str | None = None) -> list[Point]:
    """The points of a network in the package, and in the file of the same name and columns in the folder `newer`.

    Left out: what a later round repeats, accelerators whose machines are not modelled, and epochs under SHORTEST_EPOCH_S.
    """
    points: dict[tuple[object, ...], Point] = {}
    for path in [folder / f"{network}.csv" for folder in (DATA, *([Path(newer)] if newer else []))]:
        try:
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    kind = kind_of(row["accelerator"])
                    if kind and float(row["median_epoch_s"]) >= SHORTEST_EPOCH_S:
                        point = _point(network, kind, row)
                        points.setdefault((kind, point.nodes, point.gpus, point.images, point.step_ms), point)
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(f"{path} does not hold results as {DATA / 'README.md'} explains ({error!r}).") from error
    return list(points.values())


def kind_of(accelerator: str) -> str | None:
    """An accelerator's kind as submitters spell it differently; None for what NVIDIA did not make.

    >>> [kind_of(name) for name in ("NVIDIA A100-SXM-80GB CTS", "NVIDIA H100-PCIe", "NVIDIA Blackwell GPU (B200-SXM-180GB)")]
    ['A100', 'H100-PCIe', 'B200']
    """
    found = re.search(r"\b(GB?\d{3}|[ABH]\d{2,3}G?|L\d+S?|RTX \w+)\b", accelerator)
    if not found or "AMD" in accelerator:
        return None
    form = "-NVL" if "NVL" in accelerator else "-PCIe" if "PCIE" in accelerator.upper() else ""
    return (
        found[1] + form * (found[1] in ("A100", "H100")) + "-40GB" * ("A100-" in accelerator and "40GB" in accelerator)
    )


def _point(network: str, kind: str, row: Mapping[str, str]) -> Point:
    gpus, a_machine = int(row["gpus"]), int(row["gpus_per_node"])
    if kind in ("A100", "A100-40GB"):
        inside, inside_us = NVLINK_A100, NVLINK_A100_US
    elif kind in ("H100", "H200") or kind.startswith(("B", "GB")):
        inside, inside_us = NVLINK_H200, NVLINK_H200_US
    else:
        inside, inside_us = PCI_4, PCI_US
    gbit = float(row.get("gbit") or a_machine * (200 if kind.startswith("A100") else 400))
    machine = Machine(
        kind, kind, a_machine, inside, inside_us, gbit / 8 * INFINIBAND_SHARE, INFINIBAND_US, "MLPerf Training",
        infiniband=True,
    )  # fmt: skip
    return Point(
        network, float(row["round"]), row["submitter"], row["system"], kind, int(row["nodes"]), gpus,
        int(row["global_batch"]) / gpus, float(row["step_ms"]), machine,
    )  # fmt: skip


@cache
def network_timeline(network: str) -> Timeline:
    """The gradients of a network of MLPerf, in DDP's buckets."""
    with torch.device("meta"):
        if network == "resnet50":
            model = resnet50()
            found = timeline_of(model, lambda: model(torch.empty(1, 3, 224, 224)))
        else:
            found = timeline(build_retinanet(num_classes=264, backbone="resnext50_32x4d", trainable_layers=3,
                                             norm="frozen_bn"), 800, 800)  # fmt: skip
    return found._replace(gradients=fill_buckets(found.gradients, 25.0))


def step_ms(point: Point, alone_ms: float, constants: Constants) -> float:
    """The step of a point's GPUs when one alone takes `alone_ms`."""
    found = network_timeline(point.network)
    return step_time(
        alone_ms, found.backward_share, found.gradients, point.gpus, point.machine, bucket_mb=0.0, compression=0.5,
        variation=constants.variation, leaving_ms=constants.leaving_ms,
    ).total_ms  # fmt: skip


def forecast(point: Point, base: Point, constants: Constants = FITTED) -> Forecast:
    """A step of `point` from that of `base`: the time of an image is what gives `base` its published step."""
    fixed = getattr(constants, point.network)
    slower = straggler_factor(base.gpus, constants.variation)
    exposed = step_ms(base, base.step_ms / slower, constants) - base.step_ms
    image_ms = (base.step_ms - exposed) / slower / (fixed + base.images)
    return Forecast(point, base, step_ms(point, image_ms * (fixed + point.images), constants))


def clusters(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Each point of several machines with its base: one machine of the same kind of GPU, of no later round.

    The submitter's own before others', then the newest round, as many GPUs a machine, the nearest images a GPU, the median speed.
    """
    found = []
    for point in points:
        bases = [b for b in points if b.nodes == 1 and b.kind == point.kind and b.gpus < point.gpus]
        bases = [base for base in bases if base.round <= point.round]
        keys: Sequence[Callable[[Point, Point], float]] = (
            lambda base, point: base.submitter != point.submitter,
            lambda base, point: -base.round,
            lambda base, point: base.machine.gpus != point.machine.gpus,
            lambda base, point: abs(math.log(base.images / point.images)),
        )
        for key in keys:
            least = min((key(base, point) for base in bases), default=0.0)
            bases = [base for base in bases if key(base, point) <= least + 1e-9]
        if point.nodes > 1 and bases:
            found.append((point, sorted(bases, key=lambda base: base.step_ms)[len(bases) // 2]))
    return found


def within_machines(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Each point of one machine with one of fewer GPUs of the same kind, submitter and round."""
    found = []
    for point in points:
        like = [b for b in points if (b.submitter, b.kind, b.round) == (point.submitter, point.kind, point.round)]
        bases = [base for base in like if base.nodes == 1 and base.gpus < point.gpus]
        if point.nodes == 1 and bases:
            found.append((point, min(bases, key=lambda base: abs(math.log(base.images / point.images)))))
    return found


def same_images(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Each point of several machines with one of fewer such machines, of the same submitter and images a GPU.

    Only these isolate the network. The base is of the newest round up to the point's, and the greatest of that round.
    """
    found = []
    for point in points:
        alike = (point.kind, point.submitter, point.machine.gpus, point.images)
        bases = [b for b in points if (b.kind, b.submitter, b.machine.gpus, b.images) == alike and b.gpus < point.gpus]
        bases = [base for base in bases if base.round <= point.round]
        if bases:
            found.append((point, max(bases, key=lambda base: (base.round, base.gpus))))
    return found


def fit(start: Constants = FITTED) -> Constants:
    """The constants that forecast the rounds before HELD_OUT best: robust least squares on log(forecast / published).

    Gauss-Newton steps on the logarithms of the constants, with the weights of a Cauchy distribution of 3 %: a submission that
    misses by much more, for reasons of its machines, hardly counts.
    """
    pairs = [
        pair
        for network in NETWORKS
        for pair in [*clusters(points_of(network)), *within_machines(points_of(network))]
        if pair[0].round < HELD_OUT
    ]

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        constants = Constants(*np.exp(logarithms))
        return np.array([math.log1p(forecast(*pair, constants).error) for pair in pairs])

    found, small = np.log(np.array(start)), 1e-3
    for _ in range(60):
        now = residuals(found)
        slopes = np.stack([(residuals(found + small * axis) - now) / small for axis in np.eye(len(found))], axis=1)
        weights = (1 + (now / 0.03) ** 2) ** -0.5
        step = np.linalg.lstsq(slopes * weights[:, None], -now * weights, rcond=None)[0]
        found = found + np.clip(step, -0.3, 0.3)
        if np.abs(step).max() < small:
            break
    return Constants(*(float(value) for value in np.exp(found)))
