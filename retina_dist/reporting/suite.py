"""The image of the GPU suite: four panels, each of which says why it is empty where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retina_dist.reporting.plots import COLORS, FAINT, footnote, new_figure
from retina_dist.text import pluralize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Parts = Mapping[str, Mapping[str, Any]]


def plot_suite(result: Mapping[str, Any], out: Path) -> None:
    """Draw what suite.json holds: steps against torchvision, MLPerf, memory, and several processes."""
    about, parts = result["machine"], result["parts"]
    device = f"{len(about['gpus'])} x {about['gpus'][0]}" if about["gpus"] else f"CPU: {about['cpu']}"
    with new_figure(out, (12.4, 8.6)) as figure:
        small = ", small settings: no speed of the machine" if result["small"] else ""
        figure.suptitle(
            f"{device}, commit {result['commit'] or 'unknown'}{small}", x=0.02, ha="left", fontweight="bold"
        )
        panels: list[tuple[str, str, Callable[[Axes, Parts], None], tuple[str, ...]]] = [
            ("A step against torchvision's loop", "images a second", _draw_steps, ("step", "step_2", "step_8", "step_16")),
            ("MLPerf's RetinaNet", "images a second a GPU", _draw_mlperf, ("mlperf",)),
            ("Peak memory, predicted and measured", "GiB", _draw_memory, ("memory_bf16", "memory_fp32")),
            ("Several processes", "images a second", _draw_scaling, ("scaling", "all_reduce")),
        ]  # fmt: skip
        for axes, (title, unit, draw, names) in zip(figure.subplots(2, 2).flat, panels, strict=True):
            axes.set(title=title, ylabel=unit)
            axes.grid(visible=False, axis="x")
            there = {name: parts[name]["figures"] for name in names if parts.get(name, {}).get("figures")}
            if there.keys() - {"all_reduce"}:
                draw(axes, there)
            else:
                _empty(
                    axes, [f"{name}: {_why(parts.get(name))}" for name in names if name in parts] or ["not part of it"]
                )
        versions = result["versions"]
        counts = [part["status"] for part in parts.values()]
        notes = [f"torch {versions['torch']}", f"CUDA {about['cuda']}", f"NCCL {about['nccl'] or 'not used'}"]
        footnote(
            figure, [*notes, ", ".join(f"{pluralize(counts.count(s), 'part')} {s}" for s in dict.fromkeys(counts))]
        )


def _why(part: Mapping[str, Any] | None) -> str:
    return "not run" if part is None else f"{part['status']}, {part.get('reason', 'no figures')}"


def _empty(axes: Axes, reasons: Sequence[str]) -> None:
    import textwrap

    axes.set(xticks=[], yticks=[], ylabel="")
    text = "\n".join(line for reason in reasons for line in textwrap.wrap(reason, 60))
    axes.text(0.5, 0.5, text, ha="center", va="center", color=FAINT, transform=axes.transAxes)


def _bars(axes: Axes, groups: Sequence[str], series: Mapping[str, Mapping[str, tuple[float, str]]]) -> None:
    """Groups of bars, one of each series, with a label on each bar: series -> group -> (height, label)."""
    width = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        own = [group for group in groups if group in values]
        places = [groups.index(group) + (i - (len(series) - 1) / 2) * width for group in own]
        color = COLORS[i % len(COLORS)]
        bars = axes.bar(places, [values[group][0] for group in own], width * 0.92, label=name, color=color)
        axes.bar_label(bars, [values[group][1] for group in own], fontsize=7.5, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.margins(y=0.16)
    if len(series) > 1:
        lines = 1 + max(group.count("\n") for group in groups)
        columns = 3 if max(map(len, series)) < 18 else 2
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.06 - 0.06 * lines), borderaxespad=0, ncols=columns, fontsize=8
        )


def _draw_steps(axes: Axes, parts: Parts) -> None:
    rows = sorted((row for part in parts.values() for row in part["rows"]), key=lambda row: row["batch_size"])
    series: dict[str, dict[str, tuple[float, str]]] = {}
    for row in rows:
        group = f"batch {row['batch_size']}"
        series.setdefault(row["path"], {})[group] = (row["images_per_s"], f"{row['ratio']:.2f}x")
    _bars(axes, list(dict.fromkeys(f"batch {row['batch_size']}" for row in rows)), series)


def _draw_mlperf(axes: Axes, parts: Parts) -> None:
    found = parts["mlperf"]
    bars = {
        f"measured here, {found['path']},\nbatch {found['batch_size']}, without reading data": found["images_per_s"]
    }
    if found["published_images_per_s"]:
        bars["published,\none of 8 GPUs,\nwhole epochs"] = found["published_images_per_s"]
    _bars(axes, list(bars), {"": {name: (value, f"{value:,.4g}") for name, value in bars.items()}})
    share = found["share"]
    axes.set_title(
        "MLPerf's RetinaNet: "
        + (f"{share:.0%} of the published figure" if share else "no figure published for this device")
    )
    axes.set_xlim(-0.9, len(bars) - 0.1)


def _draw_memory(axes: Axes, parts: Parts) -> None:
    rows = [row for part in parts.values() for row in part["rows"]]
    series = {
        title: {row["name"]: (row[key], f"{row[key]:.3g}") for row in rows}
        for title, key in (("predicted", "predicted_gib"), ("measured", "measured_gib"))
    }
    _bars(axes, [row["name"] for row in rows], series)


def _draw_scaling(axes: Axes, parts: Parts) -> None:
    links = parts.get("all_reduce", {}).get("all_reduce", [])
    said = ", ".join(f"{link['gb_s']:.3g} GB/s at {link['size_mb']} MB" for link in links)
    axes.set_title(f"Several processes; all-reduce {said}" if links else "Several processes")
    rows = parts["scaling"]["rows"]
    series: dict[str, dict[str, tuple[float, str]]] = {}
    for row in rows:
        name = f"{row['launcher']} ({row['backend']})" if row["launcher"] != "python" else "one plain process"
        group = pluralize(row["processes"], "process")
        series.setdefault(name, {})[group] = (row["images_per_s"], f"{row['speedup']:.2f}x")
    _bars(axes, [pluralize(n, "process") for n in sorted({row["processes"] for row in rows})], series)
