"""What `benchmark forecast` prints and draws."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retina_dist.benchmark.communication import Machine
from retina_dist.benchmark.forecast_inputs import StepOfOne
from retina_dist.benchmark.gradient_timeline import Timeline
from retina_dist.benchmark.recipe import Recipe
from retina_dist.benchmark.settings import ForecastBenchmarkConfig
from retina_dist.reporting.scaling import Forecast, plot_forecasts
from retina_dist.text import pluralize

COSTS = {"cost": "cost", "low_priority_cost": "low priority"}  # columns and their titles


def assumptions(config: ForecastBenchmarkConfig, found: Timeline, recipe: Recipe) -> str:
    """What the calculation takes for granted and what it leaves out."""
    sent = "" if config.compression == "none" else f", sent as {config.compression}"
    how = {"auto": "ring or hierarchical, whichever is faster", "ring": "ring", "hierarchical": "hierarchical"}
    stragglers = f"vary by {config.straggler_cv:.1%}" if config.straggler_cv else "do not vary (straggler_cv=0)"
    prices = [key for key in ("price", "low_priority_price") if getattr(config, key) is not None]
    left_out = ["reading of data (it must keep up; storage.image_kb and storage.gb_s say how fast it comes)"] * (
        config.storage.image_kb is None or config.storage.gb_s is None
    )
    left_out += ["validation", "the start and end of machines"]
    left_out += ["checkpoints, interruptions (mtbi_hours)"] * (config.mtbi_hours is None)
    rows = {
        "length": str(recipe),
        "sku": ", ".join(config.sku)
        + (" (sku's default; sku=[NAME] chooses another)" if config.sku == ForecastBenchmarkConfig().sku else ""),
        "batch": f"global_batch={config.global_batch}, shared by the GPUs"
        if config.global_batch
        else "every GPU takes as many images a step as the one that was measured, so the batch grows with the GPUs; the "
        f"settings ask for data.batch_size={config.data.batch_size}, which needs another learning rate",
        "gradients": f"{found.num_bytes / 1e6:.1f} MB{sent}, in buckets of {config.bucket_mb:g} MiB, averaged "
        f"{'during' if config.overlap else 'after'} the backward pass, which is {found.backward_share:.0%} of a step; all-reduce "
        f"by {how[config.allreduce]}",
        "GPUs": f"equally fast on average; step times {stragglers}; {config.leaving_ms:g} ms a step on more than one machine",
        "rent": "machines are rented whole: 3 GPUs of a machine of 4 cost as much as 4, and GPU hours count all of them",
        "price": f"of a whole machine for an hour, as given by {' and '.join(prices)}; the cost is in the same currency"
        if prices
        else "none given (price=[P] of a whole machine for an hour, low_priority_price=[P]), so no cost",
        "left out": ", ".join(left_out),
    }
    lines = [
        textwrap.fill(text, 130, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)
        for name, text in rows.items()
    ]
    return "\n".join(["assumed", *lines])


def print_table(machine: Machine, step: StepOfOne, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> None:
    """The rows of `forecast` for one machine."""
    several = f"{machine.gpus} {machine.gpu}, " + f"{machine.inside:.3g} GB/s among them, " * (machine.gpus > 1)
    print(f"\n{machine.name}: {several}{machine.outside:.3g} GB/s between machines [{machine.source}]")
    print(f"one GPU: {step.ms:g} ms a step of {pluralize(step.batch_size, 'image')}, {step.source}")
    costs = {key: title for key, title in COSTS.items() if rows[0][key] is not None}
    print(
        f"{'GPUs':>6}{'machines':>12}{'batch':>7}{'step ms':>10}{'exposed':>9}{'waiting':>9}{'efficiency':>12}{'speed-up':>10}"
        f"{'images/s':>10}{'epoch min':>11}{'cold':>8}{f'{recipe.epochs:.4g} epochs h':>14}{'machine h':>11}{'GPU hours':>11}"
        + "".join(f"{title:>14}" for title in costs.values())
    )
    for row in rows:
        machines = f"{row['machines']}" + f", {row['idle_gpus']} idle" * (row["idle_gpus"] > 0)
        print(
            f"{row['gpus']:>6}{machines:>12}{row['batch_size']:>7}{row['step_ms']:>10.1f}{row['exposed_ms']:>9.2f}"
            f"{row['waiting_ms']:>9.2f}{row['efficiency']:>12.1%}{row['speedup']:>10.2f}{row['images_per_s']:>10,.1f}"
            f"{_short(row['epoch_min']):>11}{_short(row['cold_epoch_min']):>8}{_short(row['hours']):>14}{_short(row['machine_hours']):>11}"
            f"{_short(row['gpu_hours']):>11}" + "".join(f"{row[key]:>14,.2f}" for key in costs)
        )


def _short(value: float | None) -> str:
    """Three digits, more before the point; None is "never"."""
    if value is None:
        return "never"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def print_interruptions(config: ForecastBenchmarkConfig, rows: Sequence[dict[str, Any]]) -> None:
    """What interruptions add, with the run's own checkpoint interval and with the best one."""
    print(
        f"interruptions: one machine every {config.mtbi_hours:g} h on average (mtbi_hours), {config.restart_minutes:g} min to the "
        f"next step (restart_minutes), {config.checkpoint_s:g} s a checkpoint (checkpoint_s)\n"
        f"{'GPUs':>6}{'job every h':>13}{'checkpoint every min':>22}{'expected h':>12}{'best every min':>16}{'expected h':>12}"
        f"{'cost':>12}"
    )
    for row in rows:
        price = "low_priority_cost" if row["low_priority_cost"] is not None else "cost"
        cost = (
            "-"
            if row[price] is None or row["expected_h"] is None
            else f"{row[price] * row['expected_h'] / row['hours']:,.2f}"
        )
        print(
            f"{row['gpus']:>6}{_short(row['job_mtbi_h']):>13}{_short(row['checkpoint_min']):>22}{_short(row['expected_h']):>12}"
            f"{_short(row['best_checkpoint_min']):>16}{_short(row['best_expected_h']):>12}{cost:>12}"
        )
    print(
        "checkpoint every: trainer.checkpoint_every and trainer.checkpoint_minutes; best: Daly 2006 (Young 1974, sqrt(2 C M), "
        f"gives {rows[-1]['young_checkpoint_min']:.3g} min in the last row); cost with the run's own"
    )


def plot_rows(
    config: ForecastBenchmarkConfig, recipe: Recipe, rows: Sequence[dict[str, Any]], published: Sequence[str] = ()
) -> None:
    """Draw the rows of all machines to `config.plot`, with the sentences of `published_error` below."""
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
        *published,
    ]
    plot_forecasts(lines, Path(config.plot or ""), cost="cost" if priced else "GPU hours", notes=notes)
