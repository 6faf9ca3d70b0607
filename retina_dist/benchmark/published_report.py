"""`benchmark forecast published=true`: the errors of the model on published results, before and after it was fitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retina_dist.benchmark.published import BEFORE, FITTED, HELD_OUT, NETWORKS, Forecast, forecast, points_of
from retina_dist.benchmark.published_error import KINDS, Errors, errors
from retina_dist.benchmark.report import finish, write_table
from retina_dist.benchmark.settings import ForecastBenchmarkConfig
from retina_dist.reporting.scaling import plot_published

# Rounds from a first to a last one; what is newer than the package's data appears only with `newer`.
ROUNDS = {"2.0-3.1, fitted": (0.0, HELD_OUT), "4.0-4.1, held out": (HELD_OUT, 5.0), "newer": (5.0, 100.0)}
WORST = 8


def report_published(config: ForecastBenchmarkConfig) -> dict[str, Any]:
    """Print errors, the pairs at equal images a GPU and the worst forecasts; write what was asked for."""
    rows = []
    for network in NETWORKS:
        points = points_of(network, config.newer)
        for kind, pairs in KINDS.items():
            rows += [_row(kind, forecast(*pair, FITTED), forecast(*pair, BEFORE)) for pair in pairs(points)]
    print(f"{FITTED._asdict()}\n")
    found = _print_errors(rows)
    _print_pairs([row for row in rows if row["kind"] == "same images a GPU"])
    _print_worst([row for row in rows if row["kind"] == "clusters" and row["round"] >= HELD_OUT])
    if config.table:
        write_table(Path(config.table), rows)
        print(f"\nwritten to {config.table}")
    if config.plot:
        plot_published([row for row in rows if row["kind"] == "clusters"], Path(config.plot))
        print(f"\nwritten to {config.plot}")
    ratios = {f"median, {name}": 1 - after.median for name, (_, after) in found.items()}
    return finish(config, "forecast", ratios, rows=rows, constants=FITTED._asdict())


def _row(kind: str, after: Forecast, before: Forecast) -> dict[str, Any]:
    point, base = after.point, after.base
    return {
        "network": NETWORKS[point.network],
        "kind": kind,
        "round": point.round,
        "submitter": point.submitter,
        "gpu": point.kind,
        "nodes": point.nodes,
        "gpus": point.gpus,
        "images": round(point.images, 1),
        "base": f"{base.round} {base.submitter}, {base.gpus} GPUs x {base.images:.4g}",
        "base_nodes": base.nodes,
        "base_ms": base.step_ms,
        "step_ms": point.step_ms,
        "forecast_ms": round(after.step_ms, 3),
        "before_ms": round(before.step_ms, 3),
    }


def _print_errors(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[Errors, ...]]:
    print(
        f"{'':<54}{'points':>7}{'before: median':>17}{'90 %':>8}{'worst':>8}{'after: median':>17}{'90 %':>8}{'worst':>8}"
        f"{'signed median':>16}"
    )
    found = {}
    for kind in KINDS:
        for network in NETWORKS.values():
            for rounds, (first, end) in ROUNDS.items():
                own = [row for row in rows if (row["network"], row["kind"]) == (network, kind)]
                own = [row for row in own if first <= row["round"] < end]
                if not own:
                    continue
                both = tuple(
                    errors([row[key] / row["step_ms"] - 1 for row in own]) for key in ("before_ms", "forecast_ms")
                )
                found[f"{network}, {kind}, {rounds}"] = both
                cells = "".join(f"{e.median:>17.1%}{_percent(e.percentile_90):>8}{e.worst:>8.1%}" for e in both)
                print(f"{f'{network}, {kind}, {rounds}':<54}{len(own):>7}{cells}{both[1].signed:>+16.1%}")
    return found


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _print_pairs(rows: Sequence[dict[str, Any]]) -> None:
    print(
        "\nsame images a GPU, more machines: a longer step by\n"
        + " " * 66
        + f"{'published':>10}{'before':>8}{'after':>8}"
    )
    for row in rows:
        what = f"{row['network']}, {row['round']} {row['submitter']}, {row['gpu']}, {row['images']:g} images"
        change = "".join(
            f"{row[key] / row['base_ms'] - 1:>{width}.1%}"
            for key, width in (("step_ms", 10), ("before_ms", 8), ("forecast_ms", 8))
        )
        print(f"{what:<54}{row['base_nodes']:>4} -> {row['nodes']:<4}{change}  (from {row['base']})")


def _print_worst(rows: Sequence[dict[str, Any]]) -> None:
    print(f"\nworst of the clusters held out\n{'':<54}{'published ms':>14}{'forecast ms':>13}{'error':>8}")
    for row in sorted(rows, key=lambda row: -abs(row["forecast_ms"] / row["step_ms"] - 1))[:WORST]:
        what = f"{row['network']}, {row['round']} {row['submitter']}, {row['gpus']} {row['gpu']} x {row['images']:g}"
        error = row["forecast_ms"] / row["step_ms"] - 1
        print(f"{what:<54}{row['step_ms']:>14.2f}{row['forecast_ms']:>13.2f}{error:>8.1%}  (from {row['base']})")
