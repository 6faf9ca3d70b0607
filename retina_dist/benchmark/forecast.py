"""How long does a training take on N GPUs, how efficiently, and how many GPU hours is that?

    python -m retina_dist.benchmark step output=step.json                    on one GPU of that kind; then, anywhere:
    python -m retina_dist.benchmark forecast sku=[Standard_ND96amsr_A100_v4] measured=[step.json] plot=plot.png table=rows.csv
    python -m retina_dist.benchmark forecast experiment=torchvision_v1 gpus=[8] measured=[step.json] price=[PER_MACHINE_HOUR]
    python -m retina_dist.benchmark forecast sku=[custom] step_ms=[250] batch_size=4 custom.gpus=4 custom.inside=12 …
    python -m retina_dist.benchmark forecast published=true plot=published.png  against MLPerf's published results
    python -m retina_dist.benchmark forecast seed=true                          against what was measured in 2018

A calculation (`communication` has the formulas, the machines and their sources) from a step that was measured on one GPU
and the gradients of the real model. What it takes for granted and what it leaves out stands above its tables; how wrong it was
about published results of the same kind (`published_error`) stands below each.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from retina_dist.benchmark.communication import Machine, Step, step_time
from retina_dist.benchmark.forecast_inputs import (
    StepOfOne,
    check_whole,
    machine_of,
    prices_of,
    steps_of,
    timeline_of_model,
)
from retina_dist.benchmark.forecast_report import assumptions, plot_rows, print_interruptions, print_table
from retina_dist.benchmark.gradient_timeline import Timeline
from retina_dist.benchmark.interruptions import daly_interval, expected_hours, young_interval
from retina_dist.benchmark.published_error import published_error
from retina_dist.benchmark.published_report import report_published
from retina_dist.benchmark.recipe import Recipe, recipe_of
from retina_dist.benchmark.reference_2018 import Reference2018, seed_in_words, seed_speedup
from retina_dist.benchmark.report import finish, write_table
from retina_dist.benchmark.settings import ForecastBenchmarkConfig, StorageConfig
from retina_dist.benchmark.storage import blob_in_words, epoch_hours, training_hours
from retina_dist.config.entry_point import entry_point
from retina_dist.engine.duration import to_steps
from retina_dist.errors import ConfigError


def benchmark(config: ForecastBenchmarkConfig) -> dict[str, Any]:
    """Print the tables and the comparison with 2018, write what was asked for; return what finish() does."""
    if config.published:
        return report_published(config)
    if config.newer is not None:
        raise ConfigError(f"newer={config.newer} is read with published=true only; add that or leave newer out.")
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    wrong: dict[str, list[str]] = {}
    if not config.seed:
        machines = [machine_of(config, name) for name in config.sku]
        steps = steps_of(config)
        prices = zip(prices_of(config, "price"), prices_of(config, "low_priority_price"), strict=True)
        found, recipe = timeline_of_model(config), recipe_of(config)
        print(assumptions(config, found, recipe))
        for machine, step, (price, low_price) in zip(machines, steps, prices, strict=True):
            own = forecast(config, machine, found, step, recipe, price, low_price)
            rows += own
            print_table(machine, step, recipe, own)
            wrong[machine.name] = published_error(config, machine)
            print("published: " + "; ".join(wrong[machine.name]))
            if config.mtbi_hours is not None:
                print_interruptions(config, own)
            elif price and low_price:
                print(
                    f"low priority costs less until interruptions make the job run {price / low_price:.3g} times as long; "
                    "mtbi_hours=HOURS tells how long it will"
                )
        if (blob := blob_in_words(recipe.num_images, recipe.epochs, config.storage)) is not None:
            print(f"\n{blob}")
        facts = {
            "settings": asdict(config),
            "recipe": recipe._asdict(),
            "machines": [asdict(machine) for machine in machines],
            "rows": rows,
            "published_error": wrong,
        }
    without, with_overlap = seed_speedup(overlap=False), seed_speedup(overlap=True)
    print(seed_in_words(without, with_overlap))
    if rows and config.table:
        write_table(Path(config.table), rows)
        print(f"\nwritten to {config.table}")
    if rows and config.plot:
        plot_rows(config, recipe, rows, list(dict.fromkeys(sum(wrong.values(), []))))
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

    GPU hours are those of whole machines, as they are paid for. `hours` hold what `config.storage` makes epochs wait, not what
    interruptions add. Raises ConfigError for GPUs that do not fill their machines or cannot share `global_batch` evenly.
    """
    rows = []
    for gpus in config.gpus:
        check_whole(machine, gpus)
        images = _images(config, measured, gpus)
        step = step_time(
            measured.alone(images),
            found.backward_share,
            found.gradients,
            gpus,
            machine,
            bucket_mb=config.bucket_mb,
            algorithm=config.allreduce,  # type: ignore[arg-type]
            overlap=config.overlap,
            compression=1.0 if config.compression == "none" else 0.5,
            variation=config.straggler_cv,
            leaving_ms=config.leaving_ms,
        )
        row = _row(machine, measured, recipe, config.storage, gpus, images, step)
        row["cost"] = None if price is None else round(price * row["machine_hours"], 2)
        low_cost = None if low_priority_price is None else round(low_priority_price * row["machine_hours"], 2)
        row["low_priority_cost"] = low_cost
        rows.append(row | _with_interruptions(config, recipe, row))
    return rows


def _row(
    machine: Machine, measured: StepOfOne, recipe: Recipe, storage: StorageConfig, gpus: int, images: int, step: Step
) -> dict[str, Any]:
    images_per_s = 1e3 * gpus * images / step.total_ms
    efficiency = measured.ms / measured.batch_size * images / step.total_ms
    epoch_h = recipe.num_images / images_per_s / 3600
    machines = math.ceil(gpus / machine.gpus)
    cold_h = epoch_hours(0, epoch_h, recipe.num_images, machines, storage)
    hours = training_hours(recipe.epochs, epoch_h, recipe.num_images, machines, storage)
    return {
        "sku": machine.name,
        "gpu": machine.gpu,
        "gpus": gpus,
        "machines": machines,
        "idle_gpus": machines * machine.gpus - gpus,
        "batch_size": gpus * images,
        "step_ms": round(step.total_ms, 3),
        "waiting_ms": round(step.waiting_ms, 3),
        "exposed_ms": round(step.exposed_ms, 3),
        "efficiency": round(efficiency, 5),
        "speedup": round(gpus * efficiency, 4),
        "images_per_s": round(images_per_s, 3),
        "epoch_min": round(60 * epoch_h, 4),
        "cold_epoch_min": round(60 * cold_h, 4),
        "hours": round(hours, 6),
        "gpu_hours": round(hours * machines * machine.gpus, 6),
        "machine_hours": round(hours * machines, 6),
    }


def _images(config: ForecastBenchmarkConfig, measured: StepOfOne, gpus: int) -> int:
    if config.global_batch is None:
        return measured.batch_size
    if gpus < 1 or config.global_batch % gpus:
        raise ConfigError(
            f"global_batch={config.global_batch} cannot be shared by {gpus} GPUs; use a multiple of {gpus}."
        )
    return config.global_batch // gpus


def _with_interruptions(config: ForecastBenchmarkConfig, recipe: Recipe, row: dict[str, Any]) -> dict[str, Any]:
    """Expected hours with the run's own checkpoint interval and with the best one, None for never; empty without `mtbi_hours`."""
    if config.mtbi_hours is None:
        return {}
    mtbi_h, checkpoint_h = config.mtbi_hours / row["machines"], config.checkpoint_s / 3600
    every = config.trainer.checkpoint_every
    steps = to_steps(every, key="trainer.checkpoint_every", num_images=recipe.num_images, batch_size=row["batch_size"])
    total = recipe.epochs * recipe.num_images / row["batch_size"]
    own_h = row["hours"] * steps / total or math.inf
    if config.trainer.checkpoint_minutes is not None:
        own_h = min(own_h, config.trainer.checkpoint_minutes / 60)
    own_h = min(own_h, row["hours"])
    best_h = min(daly_interval(checkpoint_h, mtbi_h), row["hours"])
    costs = checkpoint_h, config.restart_minutes / 60, mtbi_h
    return {
        "job_mtbi_h": round(mtbi_h, 4),
        "checkpoint_min": round(60 * own_h, 3),
        "expected_h": _if_ever(expected_hours(row["hours"], own_h, *costs)),
        "best_checkpoint_min": round(60 * best_h, 3),
        "best_expected_h": _if_ever(expected_hours(row["hours"], best_h, *costs)),
        "young_checkpoint_min": round(60 * young_interval(checkpoint_h, mtbi_h), 3),
    }


def _if_ever(hours: float) -> float | None:
    return None if math.isinf(hours) else round(hours, 6)


@entry_point("benchmark_forecast")
def main(config: ForecastBenchmarkConfig) -> Any:
    """The tables."""
    benchmark(config)


if __name__ == "__main__":
    main()
