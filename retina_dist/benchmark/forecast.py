"""How long does a training take on N GPUs, how efficiently, and how many GPU hours is that?

    python -m retina_dist.benchmark step output=step.json                    on one GPU of that kind; then, anywhere:
    python -m retina_dist.benchmark forecast sku=[Standard_ND96amsr_A100_v4] measured=[step.json] plot=plot.png table=rows.csv
    python -m retina_dist.benchmark forecast experiment=torchvision_v1 gpus=[8] measured=[step.json] price=[PER_MACHINE_HOUR]
    python -m retina_dist.benchmark forecast sku=[custom] step_ms=[250] batch_size=4 custom.gpus=4 custom.inside=12 …
    python -m retina_dist.benchmark forecast seed=true                          against what was measured in 2018

A calculation (`communication` has the formulas, the machines and their sources) from a step that was measured on one GPU
and the gradients of the real model. What it takes for granted and what it leaves out stands above its tables. It has not been held
against a cluster of today; the one point it is held against is that of 2018.
"""

from __future__ import annotations

import difflib
import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from retina_dist.benchmark.communication import (
    MACHINES,
    Gradients,
    Machine,
    Step,
    step_time,
)
from retina_dist.benchmark.gradient_timeline import Timeline, timeline
from retina_dist.benchmark.recipe import Recipe, recipe_of
from retina_dist.benchmark.reference_2018 import Reference2018, seed_in_words, seed_speedup
from retina_dist.benchmark.report import finish, write_table
from retina_dist.benchmark.settings import ForecastBenchmarkConfig
from retina_dist.config.entry_point import entry_point
from retina_dist.detection.model.build import build_model
from retina_dist.errors import ConfigError
from retina_dist.files import read_bytes
from retina_dist.reporting.scaling import Forecast, plot_forecasts
from retina_dist.words import pluralize

MEASURE = "python -m retina_dist.benchmark step output=step.json on one such GPU"


COSTS = {"cost": "cost", "low_priority_cost": "low priority"}  # columns and their titles


class StepOfOne(NamedTuple):
    """A step of one GPU: milliseconds, images, and in words where they come from."""

    ms: float
    batch_size: int
    source: str


def benchmark(config: ForecastBenchmarkConfig) -> dict[str, Any]:
    """Print the tables and the comparison with 2018, write what was asked for; return what finish() does."""
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    if not config.seed:
        machines = [_machine(config, name) for name in config.sku]
        steps = _steps(config)
        prices = zip(_prices(config, "price"), _prices(config, "low_priority_price"), strict=True)
        found, recipe = _timeline(config), recipe_of(config)
        print(_assumptions(config, found, recipe))
        for machine, step, (price, low_price) in zip(machines, steps, prices, strict=True):
            own = forecast(config, machine, found, step, recipe, price, low_price)
            rows += own
            _print_table(machine, step, recipe, own)
            if price and low_price:
                print(
                    f"low priority costs less until interruptions make the job run {price / low_price:.3g} times as long; each "
                    "repeats at most what was done\nsince the last checkpoint "
                    f"(trainer.checkpoint_every={config.trainer.checkpoint_every}, trainer.checkpoint_minutes="
                    f"{config.trainer.checkpoint_minutes or 'null'}); how often they come is not known beforehand"
                )
        facts = {
            "settings": asdict(config),
            "recipe": recipe._asdict(),
            "machines": [asdict(machine) for machine in machines],
            "rows": rows,
        }
    without, with_overlap = seed_speedup(overlap=False), seed_speedup(overlap=True)
    print(seed_in_words(without, with_overlap))
    if rows and config.table:
        write_table(Path(config.table), rows)
        print(f"\nwritten to {config.table}")
    if rows and config.plot:
        _plot(config, recipe, rows)
        print(f"{'' if config.table else chr(10)}written to {config.plot}")
    ratios = {f"{row['sku']} {row['gpus']}": row["speedup"] for row in rows}
    seed = {
        "measured": Reference2018.speedup,
        "without_overlap": round(without, 3),
        "with_overlap": round(with_overlap, 3),
    }
    return finish(config, "forecast", ratios | {"2018 without overlap": without}, seed=seed, **facts)


def forecast(
    config: ForecastBenchmarkConfig,
    machine: Machine,
    found: Timeline,
    measured: StepOfOne,
    recipe: Recipe,
    price: float | None = None,
    low_priority_price: float | None = None,
) -> list[dict[str, Any]]:
    """A row for each of `config.gpus`: step, efficiency, epoch, hours, GPU hours, and cost by the prices of a machine hour.

    GPU hours are those of whole machines, as they are paid for. Raises ConfigError for GPUs that do not fill their machines.
    """
    rows = []
    step_ms, batch_size = measured.ms, measured.batch_size
    for gpus in config.gpus:
        _check_whole(machine, gpus)
        step: Step = step_time(
            step_ms,
            found.backward_share,
            found.gradients,
            gpus,
            machine,
            bucket_mb=config.bucket_mb,
            algorithm=config.allreduce,  # type: ignore[arg-type]
            overlap=config.overlap,
            compression=1.0 if config.compression == "none" else 0.5,
            variation=config.straggler_cv,
        )
        images_per_s = 1e3 * gpus * batch_size / step.total_ms
        hours = recipe.epochs * recipe.num_images / images_per_s / 3600
        machines = math.ceil(gpus / machine.gpus)
        rows.append(
            {
                "sku": machine.name,
                "gpu": machine.gpu,
                "gpus": gpus,
                "machines": machines,
                "idle_gpus": machines * machine.gpus - gpus,
                "batch_size": gpus * batch_size,
                "step_ms": round(step.total_ms, 3),
                "waiting_ms": round(step.waiting_ms, 3),
                "exposed_ms": round(step.exposed_ms, 3),
                "efficiency": round(step_ms / step.total_ms, 5),
                "speedup": round(gpus * step_ms / step.total_ms, 4),
                "images_per_s": round(images_per_s, 3),
                "epoch_min": round(recipe.num_images / images_per_s / 60, 4),
                "hours": round(hours, 6),
                "gpu_hours": round(hours * machines * machine.gpus, 6),
                "machine_hours": round(hours * machines, 6),
                "cost": None if price is None else round(price * hours * machines, 2),
                "low_priority_cost": None
                if low_priority_price is None
                else round(low_priority_price * hours * machines, 2),
            }
        )
    return rows


def _check_whole(machine: Machine, gpus: int) -> None:
    if gpus < 1 or (gpus > machine.gpus and gpus % machine.gpus):
        near = max(1, round(gpus / machine.gpus)) * machine.gpus
        raise ConfigError(
            f"gpus={gpus} do not fill machines of {machine.gpus} GPUs ({machine.name}); use {near}, or up to "
            f"{machine.gpus} of one machine."
        )


def _machine(config: ForecastBenchmarkConfig, name: str) -> Machine:
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


def _steps(config: ForecastBenchmarkConfig) -> list[StepOfOne]:
    """One GPU's step, for each of `config.sku`."""
    if config.measured is not None:
        if config.step_ms is not None or config.batch_size is not None:
            raise ConfigError("measured= holds step_ms and batch_size already; leave these out.")
        _check_length(config, "measured", config.measured)
        return [_measured(path) for path in config.measured]
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
    return StepOfOne(step_ms, batch_size, f"measured on {how} ({path})")


def _prices(config: ForecastBenchmarkConfig, key: str) -> Sequence[float | None]:
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


def _timeline(config: ForecastBenchmarkConfig) -> Timeline:
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


def _assumptions(config: ForecastBenchmarkConfig, found: Timeline, recipe: Recipe) -> str:
    sent = "" if config.compression == "none" else f", sent as {config.compression}"
    how = {"auto": "ring or hierarchical, whichever is faster", "ring": "ring", "hierarchical": "hierarchical"}
    stragglers = f"vary by {config.straggler_cv:.1%}" if config.straggler_cv else "do not vary (straggler_cv=0)"
    prices = [key for key in ("price", "low_priority_price") if getattr(config, key) is not None]
    rows = {
        "length": str(recipe),
        "sku": ", ".join(config.sku)
        + (" (sku's default; sku=[NAME] chooses another)" if config.sku == ForecastBenchmarkConfig().sku else ""),
        "batch": "every GPU takes as many images a step as the one that was measured, so the batch grows with the GPUs; the "
        f"settings ask for data.batch_size={config.data.batch_size}, which needs another learning rate",
        "gradients": f"{found.num_bytes / 1e6:.1f} MB{sent}, in buckets of {config.bucket_mb:g} MiB, averaged "
        f"{'during' if config.overlap else 'after'} the backward pass, which is {found.backward_share:.0%} of a step; all-reduce "
        f"by {how[config.allreduce]}",
        "GPUs": f"equally fast on average; step times {stragglers}",
        "rent": "machines are rented whole: 3 GPUs of a machine of 4 cost as much as 4, and GPU hours count all of them",
        "price": f"of a whole machine for an hour, as given by {' and '.join(prices)}; the cost is in the same currency"
        if prices
        else "none given (price=[P] of a whole machine for an hour, low_priority_price=[P]), so no cost",
        "left out": "reading of data (it must keep up), validation, checkpoints, the start and end of machines, storage, "
        "interruptions",
    }
    lines = [
        textwrap.fill(text, 130, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)
        for name, text in rows.items()
    ]
    return "\n".join(["assumed", *lines])


def _print_table(machine: Machine, step: StepOfOne, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> None:
    several = f"{machine.gpus} {machine.gpu}, " + f"{machine.inside:.3g} GB/s among them, " * (machine.gpus > 1)
    print(f"\n{machine.name}: {several}{machine.outside:.3g} GB/s between machines [{machine.source}]")
    print(f"one GPU: {step.ms:g} ms a step of {pluralize(step.batch_size, 'image')}, {step.source}")
    costs = {key: title for key, title in COSTS.items() if rows[0][key] is not None}
    print(
        f"{'GPUs':>6}{'machines':>12}{'batch':>7}{'step ms':>10}{'exposed':>9}{'waiting':>9}{'efficiency':>12}{'speed-up':>10}"
        f"{'images/s':>10}{'epoch min':>11}{f'{recipe.epochs:.4g} epochs h':>14}{'machine h':>11}{'GPU hours':>11}"
        + "".join(f"{title:>14}" for title in costs.values())
    )
    for row in rows:
        machines = f"{row['machines']}" + f", {row['idle_gpus']} idle" * (row["idle_gpus"] > 0)
        print(
            f"{row['gpus']:>6}{machines:>12}{row['batch_size']:>7}{row['step_ms']:>10.1f}{row['exposed_ms']:>9.2f}"
            f"{row['waiting_ms']:>9.2f}{row['efficiency']:>12.1%}{row['speedup']:>10.2f}{row['images_per_s']:>10,.1f}"
            f"{_short(row['epoch_min']):>11}{_short(row['hours']):>14}{_short(row['machine_hours']):>11}"
            f"{_short(row['gpu_hours']):>11}" + "".join(f"{row[key]:>14,.2f}" for key in costs)
        )


def _short(value: float) -> str:
    """Three digits, more before the point."""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def _plot(config: ForecastBenchmarkConfig, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> None:
    lines: dict[str, list[Forecast]] = {}
    priced = rows[0]["cost"] is not None
    for row in rows:
        cost = None if row["idle_gpus"] else row["cost"] if priced else row["gpu_hours"]
        point = Forecast(row["gpus"], row["epoch_min"], row["efficiency"], row["hours"], cost)
        lines.setdefault(f"{row['sku']} ({row['gpu']})", []).append(point)
    notes = [
        f"calculated, not measured: {recipe.num_images:,} images, {recipe.epochs:.4g} epochs",
        f"communication {'overlaps' if config.overlap else 'follows'} the backward pass",
        f"step times vary by {config.straggler_cv:.1%}",
    ]
    plot_forecasts(lines, Path(config.plot or ""), cost="cost" if priced else "GPU hours", notes=notes)


@entry_point("benchmark_forecast")
def main(config: ForecastBenchmarkConfig) -> Any:
    """The tables."""
    benchmark(config)


if __name__ == "__main__":
    main()
