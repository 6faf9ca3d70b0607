"""What `benchmark forecast` starts from: machines, a step of one GPU, prices, the model's gradients. Each checked in a sentence."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

import torch

from retina_dist.benchmark.communication import MACHINES, Gradients, Machine
from retina_dist.benchmark.gradient_timeline import Timeline, timeline
from retina_dist.benchmark.published import FITTED
from retina_dist.benchmark.settings import ForecastBenchmarkConfig
from retina_dist.detection.model.build import build_model
from retina_dist.errors import ConfigError
from retina_dist.files import read_bytes

MEASURE = "python -m retina_dist.benchmark step output=step.json on one such GPU"


class StepOfOne(NamedTuple):
    """A step of one GPU: milliseconds, images, and in words where they come from; of these, `fixed_ms` whatever the images.

    None: not known, and taken as 0.
    """

    ms: float
    batch_size: int
    source: str
    fixed_ms: float | None = None

    def alone(self, images: float) -> float:
        """Milliseconds of a step of so many images."""
        fixed_ms = self.fixed_ms or 0.0
        return fixed_ms + (self.ms - fixed_ms) / self.batch_size * images


def check_whole(machine: Machine, gpus: int) -> None:
    """Raise ConfigError for GPUs that are neither of one machine nor of whole machines."""
    if gpus < 1 or (gpus > machine.gpus and gpus % machine.gpus):
        near = max(1, round(gpus / machine.gpus)) * machine.gpus
        raise ConfigError(
            f"gpus={gpus} do not fill machines of {machine.gpus} GPUs ({machine.name}); use {near}, or up to "
            f"{machine.gpus} of one machine."
        )


def machine_of(config: ForecastBenchmarkConfig, name: str) -> Machine:
    """The machine of that name, or the one that `config.custom` describes."""
    if name == "custom":
        missing = [key for key, value in asdict(config.custom).items() if value is None]
        if missing:
            keys = ", ".join(f"custom.{key}" for key in missing)
            raise ConfigError(f"sku=custom needs {keys}; conf/benchmark_forecast.yaml tells where they are explained.")
        wrong = [key for key, value in asdict(config.custom).items() if key != "gpu" and value < (key == "gpus")]
        wrong += [key for key in ("inside", "outside") if getattr(config.custom, key) == 0]
        if wrong:
            raise ConfigError(f"custom.{wrong[0]}={getattr(config.custom, wrong[0])} is too small.")
        return Machine(name="custom", source="given on the command line", **asdict(config.custom))
    if name not in MACHINES:
        near = difflib.get_close_matches(name, MACHINES, 1, 0.3)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise ConfigError(f"sku={name} is not known; {hint} are {', '.join(MACHINES)} and custom.")
    return MACHINES[name]


def steps_of(config: ForecastBenchmarkConfig) -> list[StepOfOne]:
    """One GPU's step, for each of `config.sku`."""
    if config.measured is not None:
        if config.step_ms is not None or config.batch_size is not None:
            raise ConfigError("measured= holds step_ms and batch_size already; leave these out.")
        _check_length(config, "measured", config.measured)
        found = [_measured(path) for path in config.measured]
    else:
        found = _given(config)
    if config.fixed_ms is not None:
        if config.global_batch is None:
            raise ConfigError(
                "fixed_ms changes nothing without global_batch; give global_batch=N or leave fixed_ms out."
            )
        _check_length(config, "fixed_ms", config.fixed_ms)
        for fixed_ms, step in zip(config.fixed_ms, found, strict=True):
            if not 0 <= fixed_ms < step.ms:
                raise ConfigError(f"fixed_ms={fixed_ms:g} is not between 0 and the step's {step.ms:g} ms.")
        return [
            step._replace(fixed_ms=fixed_ms, source=f"{step.source}; {fixed_ms:g} ms of it fixed, as given by fixed_ms")
            for step, fixed_ms in zip(found, config.fixed_ms, strict=True)
        ]
    return [step if step.fixed_ms is not None or config.global_batch is None else _assume_fixed(step) for step in found]


def _assume_fixed(step: StepOfOne) -> StepOfOne:
    fixed_ms = step.ms * FITTED.retinanet / (FITTED.retinanet + step.batch_size)
    return step._replace(
        fixed_ms=fixed_ms,
        source=f"{step.source}; {fixed_ms:.3g} ms of it fixed, assumed as in MLPerf's RetinaNet (`benchmark step "
        "batch_sizes=[4,16]` measures it)",
    )


def _given(config: ForecastBenchmarkConfig) -> list[StepOfOne]:
    if config.step_ms is None or config.batch_size is None:
        missing = " and ".join(key for key in ("step_ms", "batch_size") if getattr(config, key) is None)
        raise ConfigError(
            f"{missing} of one GPU must be given; run {MEASURE} and say measured=[step.json], or step_ms=[MILLISECONDS] "
            "batch_size=N; seed=true shows the point of 2018 without."
        )
    _check_length(config, "step_ms", config.step_ms)
    for step_ms in config.step_ms:
        if step_ms <= 0:
            raise ConfigError(f"step_ms={step_ms} is too small; it must be above 0.")
    return [StepOfOne(step_ms, config.batch_size, "as given by step_ms and batch_size") for step_ms in config.step_ms]


def _measured(path: str) -> StepOfOne:
    try:
        found = json.loads(read_bytes(Path(path)))
        step_ms, batch_size = float(found["step_ms"]), int(found["batch_size"])
        machine, of = found.get("machine", {}), found.get("step_of", {})
        device = (machine.get("gpus") or [f"{machine.get('cpu', 'an unknown machine')}, no GPU"])[0]
        canvas = of.get("canvas")
        size = [] if canvas is None else [canvas if isinstance(canvas, str) else "x".join(map(str, canvas))]
        how = ", ".join([device, *([of["path"]] if "path" in of else []), *size])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"measured={path} does not hold step_ms and batch_size ({error!r}); write it with {MEASURE}."
        ) from error
    if not (step_ms > 0 and batch_size > 0):
        raise ConfigError(f"measured={path} holds step_ms={step_ms} and batch_size={batch_size}; both must be above 0.")
    fixed_ms = _fixed_of(found)
    if fixed_ms is not None and fixed_ms >= step_ms:
        raise ConfigError(f"measured={path} has steps that hardly grow with the images; measure more rounds.")
    also = f"; {fixed_ms:.3g} ms of it fixed, by its batch sizes" if fixed_ms is not None else ""
    return StepOfOne(step_ms, batch_size, f"measured on {how} ({path}){also}", fixed_ms)


def _fixed_of(found: dict[str, Any]) -> float | None:
    """Where the line through the steps of the same path and canvas meets no images; None for one batch size."""
    of = found.get("step_of", {})
    if "path" not in of:  # of `benchmark scaling`
        return None
    rows = found.get("mix") or [row for row in found.get("rows", []) if row.get("canvas") == of.get("canvas")]
    points = {
        row["batch_size"]: row["batch_size"] / row["images_per_s"] for row in rows if row.get("path") == of["path"]
    }
    if len(points) < 2:
        return None
    return max(0.0, 1e3 * linear_regression(list(points), list(points.values())).intercept)


def prices_of(config: ForecastBenchmarkConfig, key: str) -> Sequence[float | None]:
    """The price of a machine hour for each of `config.sku`, None where none was given."""
    prices: list[float] | None = getattr(config, key)
    if prices is None:
        return [None] * len(config.sku)
    _check_length(config, key, prices)
    if min(prices) < 0:
        raise ConfigError(f"{key}={prices} is below 0.")
    return prices


def _check_length(config: ForecastBenchmarkConfig, key: str, values: Sequence[Any]) -> None:
    if len(values) != len(config.sku):
        raise ConfigError(
            f"{key} has {len(values)} values for {len(config.sku)} of sku; give one for each, in their order."
        )


def timeline_of_model(config: ForecastBenchmarkConfig) -> Timeline:
    """The gradients of the model, or what `config.gradient_mb` and `config.backward_share` say instead."""
    if len(config.canvas) != 2 or min(config.canvas) < 32:
        raise ConfigError(f"canvas={config.canvas} is not a height and a width of at least 32, such as [800,1088].")
    if config.bucket_mb <= 0:
        raise ConfigError(f"bucket_mb={config.bucket_mb} is too small; it must be above 0.")
    if not config.gpus:
        raise ConfigError("gpus=[] is empty; give numbers of GPUs such as [1,8].")
    settings = replace(config.model, weights=None, backbone_weights=None)
    with torch.device("meta"):
        model = build_model(settings, settings.num_classes or 1)
    found = timeline(model, *config.canvas)
    if config.gradient_mb is not None:
        if config.gradient_mb <= 0:
            raise ConfigError(f"gradient_mb={config.gradient_mb} is too small; it must be above 0.")
        factor = config.gradient_mb * 1e6 / found.num_bytes
        found = found._replace(gradients=[Gradients(factor * g.num_bytes, g.ready) for g in found.gradients])
    return found if config.backward_share is None else found._replace(backward_share=config.backward_share)
