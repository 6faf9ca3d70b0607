"""metrics.csv of a run, for tests."""

from __future__ import annotations

from pathlib import Path

from retina_dist.tracking.loggers import read_rows


def read_metrics(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Metric name -> (steps, values) in the order logged."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    header, *rows = read_rows(path)
    for row in rows:
        for name, text in zip(header[1:], row[1:], strict=True):
            if text:
                steps, values = series.setdefault(name, ([], []))
                steps.append(int(row[0]))
                values.append(float(text))
    return series
